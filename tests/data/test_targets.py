"""Targets of tables: what they are read as is said, in their units."""

import numpy as np
import pandas as pd
import pytest

from choral.data.cells import Cells
from choral.data.problems import load_problem
from choral.data.sheets import read_table
from choral.data.tables import learn_table, table_from
from choral.data.targets import guess_task

SPANS = pd.to_timedelta(np.arange(60) * 61, unit="s")


def cells(values, name="c"):
    return Cells(pd.Series(values, name=name))


@pytest.mark.parametrize("typed", [SPANS, pd.Series(list(SPANS), dtype=object)], ids=["typed", "of objects"])
def test_spans_of_time_are_read_in_seconds_and_that_is_said(typed):
    frame = pd.DataFrame({"a": np.arange(60.0) % 7, "ride": typed})
    table = load_problem(frame, target="ride", holdout=None).table
    assert table.unit == "seconds"
    assert table.reason == "it holds 60 different numbers, in seconds"
    assert table.targets(frame)[:3].tolist() == [0, 61, 122]
    assert table.targets(pd.DataFrame({"ride": ["61", "122 seconds", "0 days 00:03:03"]})).tolist() == [61, 122, 183]
    assert table_from(table.to_dict(), "it") == table
    column = learn_table(frame.assign(t=np.arange(60) + 0.5), "t").columns[1]
    assert column.detail == "mean 1800, deviation 1056 seconds"


def test_spans_of_time_come_back_from_files_of_text_and_the_other_way(tmp_path):
    frame = pd.DataFrame({"ride": SPANS + pd.Timedelta("1h"), "t": np.arange(60) + 0.5})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    typed, text = read_table(tmp_path / "t.parquet"), read_table(tmp_path / "t.csv")
    for training in (typed, text):
        table = learn_table(training, "t")
        assert table.inputs(typed) == pytest.approx(table.inputs(text), abs=1e-5)


def test_shares_are_targets_between_0_and_1_and_that_is_said():
    words = [f"{i + 20}%" for i in range(60)]
    assert guess_task(cells(words))[1] == "it holds 60 different numbers, 12% is 0.12"
    assert guess_task(cells([f"{i + 20} min" for i in range(60)]))[1] == "it holds 60 different numbers, in min"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1:30", "2:15", "0:45"] * 9, "its 3 values are times or durations, each a class; a regression needs numbers"),
        (["2023-01-01", "2023-02-01"] * 9, "its 2 values are dates, each a class; a regression needs numbers"),
    ],
)
def test_few_times_and_dates_are_classes_and_that_is_said(words, said):
    task, reason = guess_task(cells(words))
    assert task == "classification"
    assert reason.startswith(said)


def test_the_unit_is_said_where_the_task_is_asked_for():
    frame = pd.DataFrame({"a": np.arange(60.0) % 7, "ride": SPANS})
    assert learn_table(frame, "ride", task="regression").reason == "as asked, in seconds"
