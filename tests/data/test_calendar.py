"""Durations as people and programs write them."""

import numpy as np
import pandas as pd
import pytest

from choral.base.errors import InputError
from choral.data.calendar import ClockColumn
from choral.data.cells import Cells
from choral.data.tables import learn_table


def learned(words):
    frame = pd.DataFrame({"c": words, "more": np.arange(len(words)) % 3, "t": np.arange(len(words)) + 0.5})
    return learn_table(frame, "t").columns[0]


MINUTES = [float(7 * i + 5) for i in range(60)]
WRITTEN = {
    "letters": [f"{m // 60:.0f}h {m % 60:.0f}m" for m in MINUTES],
    "short ones": [f"{m // 60:.0f}h{m % 60:.0f}m" if m >= 60 else f"{m:.0f}m" for m in MINUTES],
    "words": [f"{m // 60:.0f} hours {m % 60:.0f} minutes" for m in MINUTES],
    "one unit each": [f"{m / 60:.9f} h" if i % 2 else f"{m:.0f} min" for i, m in enumerate(MINUTES)],
    "ISO": [f"PT{m // 60:.0f}H{m % 60:.0f}M" for m in MINUTES],
    "ISO with days": [f"P{m // 1440:.0f}DT{m % 1440 // 60:.0f}H{m % 60:.0f}M0.0S" for m in MINUTES],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_durations_with_units_are_read(name):
    column = learned(WRITTEN[name])
    assert isinstance(column, ClockColumn)
    found = column.scale.undo(column.encode(Cells(pd.Series(WRITTEN[name], name="c")), path="it")[:, 0])
    assert found == pytest.approx(np.array(MINUTES) / 60, abs=1e-6)
    with pytest.raises(InputError, match=r"the target 't' holds (times or durations|.*numbers in different units)"):
        learn_table(pd.DataFrame({"a": MINUTES, "t": WRITTEN[name]}), "t")


def test_numbers_of_one_unit_of_time_stay_numbers_and_codes_words():
    assert learned([f"{m:.0f} min" for m in MINUTES]).read_as == "number"
    assert learned(["5M", "7S", "3D", "4M"] * 9).read_as == "category"
    assert learned(["P1", "P2", "PT", "T"] * 9).read_as == "category"
