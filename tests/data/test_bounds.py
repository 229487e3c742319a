"""Cells that bound a number (<0.5, >3, 3+): the number for inputs, refused as targets, each with a sentence."""

import re

import numpy as np
import pandas as pd
import pytest

from choral.base.errors import InputError
from choral.data.cells import Cells
from choral.data.columns import NumberColumn
from choral.data.tables import learn_table, table_from

FEW = [f"{i / 7 + 1:.2f}" for i in range(56)] + ["<0.5", ">9", "≤0.5", ">= 9"]
MANY = [f"{i / 7 + 1:.2f}" for i in range(40)] + ["<0.5"] * 20
COUNTS = ["1", "2", "3+"] * 20


def cells(values, name="c"):
    return Cells(pd.Series(values, name=name))


def framed(words):
    return pd.DataFrame({"c": words, "more": np.arange(len(words)) % 3, "t": np.arange(len(words)) + 0.5})


@pytest.mark.parametrize("words", [FEW, MANY, COUNTS, [f"{w} kg" for w in FEW], [w.replace(".", ",") for w in MANY]])
def test_bounds_among_numbers_count_as_their_number_and_that_is_said(words):
    count = sum(not word[0].isdigit() or "+" in word for word in words)
    with pytest.warns(UserWarning, match=rf"column 'c' holds '\S+.*' in rows? .*, a bound and no number; {count} such"):
        column = learn_table(framed(words), "t").columns[0]
    assert isinstance(column, NumberColumn)
    assert not column.missing
    assert f"; {count} bound(s) count as their number" in column.detail
    assert table_from({"kind": "Table", "columns": [column.to_dict()]}, "it").columns[0] == column
    read = column.scale.undo(column.encode(cells(words), path="it")[:, 0])
    assert read[0] == pytest.approx(1)
    assert read[-1] == pytest.approx(
        {FEW[-1]: 9, MANY[-1]: 0.5, "3+": 3}[words[-1].removesuffix(" kg").replace(",", ".")]
    )


def test_bounds_in_a_later_file_count_as_their_number_and_that_is_said():
    column = learn_table(framed([f"{i / 7 + 1:.2f}" for i in range(56)]), "t").columns[0]
    with pytest.warns(UserWarning, match=r"column 'c' holds '<0.5' in row 0, a bound and no number; 1 such cell\(s\)"):
        found = column.encode(cells(["<0.5"]), path="it")
    assert column.scale.undo(found[0, 0]) == pytest.approx(0.5)


@pytest.mark.parametrize("words", [["<18", "18-65", "65+"], ["<=50K", ">50K"], ["<1", "1", ">1"], ["A+", "B+"]])
def test_words_that_are_bounds_alone_or_beside_words_stay_words(words):
    assert learn_table(framed(words * 12), "t").columns[0].read_as == "category"
    table = learn_table(framed([0.5] * 36).assign(c=(words * 36)[:36], t=np.arange(36.0)), "c", task="classification")
    assert set(table.classes) == set(words)


@pytest.mark.parametrize("words", [FEW, MANY, COUNTS, [f">{i}" for i in range(60)]])
def test_bounds_are_no_targets_unless_each_is_a_class(words):
    frame = pd.DataFrame({"a": np.arange(60.0), "t": words})
    shown = next(word for word in words if not word[0].isdigit() or "+" in word)
    said = f"the target 't' holds bounds such as {shown!r}"
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        learn_table(frame, "t", path="f.csv")
    for part in ("f.csv: ", "write a number", "leave such cells empty", "--task classification"):
        assert part in str(caught.value)
    with pytest.raises(InputError, match=re.escape(said)):
        learn_table(frame, "t", task="regression")
    if words is COUNTS:
        assert learn_table(frame, "t", task="classification").classes == ("1", "2", "3+")


@pytest.mark.parametrize("words", [["<=50K", ">50K"], ["<18", "18-65", "65+"]])
def test_bounds_that_are_all_classes_are_targets(words):
    frame = pd.DataFrame({"a": np.arange(36.0), "t": (words * 36)[:36]})
    assert learn_table(frame, "t").task == "classification"


def test_a_bound_in_a_later_file_s_target_is_refused():
    table = learn_table(pd.DataFrame({"a": np.arange(60.0), "t": np.arange(60) + 0.5}), "t")
    with pytest.raises(InputError, match=r"the target 't' holds '>3' \(row 1\), which is not a number"):
        table.targets(pd.DataFrame({"t": ["1", ">3"]}))
