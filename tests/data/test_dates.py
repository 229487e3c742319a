"""Dates as people and programs write them, one way for each."""

import re

import numpy as np
import pandas as pd
import pytest

from choral.base.errors import InputError
from choral.data.calendar import DateColumn
from choral.data.cells import Cells
from choral.data.columns import NumberColumn
from choral.data.splitting import split_by_time
from choral.data.tables import learn_table, table_from

DAYS = pd.date_range("2021-12-20", periods=60, freq="9D")
MOMENTS = pd.date_range("2023-01-05 00:37", periods=60, freq="2897min")


def cells(values, name="c"):
    return Cells(pd.Series(values, name=name))


def learned(values, name="c"):
    """The column that some cells are read as."""
    frame = pd.DataFrame({name: values, "t": np.arange(len(values)) + 0.5, "more": np.arange(len(values)) % 3})
    return learn_table(frame, "t").columns[0]


def days(when):
    return np.asarray((when - pd.Timestamp(0)) / pd.Timedelta("1D"))


WRITTEN = {
    "weeks": (DAYS.strftime("%G-W%V"), days(DAYS - pd.to_timedelta(DAYS.day_of_week, unit="D")), "weeks"),
    "weeks without a dash": (DAYS.strftime("%GW%V"), days(DAYS - pd.to_timedelta(DAYS.day_of_week, unit="D")), "weeks"),
    "days of weeks": (DAYS.strftime("%G-W%V-%u"), days(DAYS), "weeks"),
    "compact moments": (MOMENTS.strftime("%Y%m%dT%H%M%S"), days(MOMENTS), "year first"),
    "compact moments in UTC": (MOMENTS.strftime("%Y%m%dT%H%MZ"), days(MOMENTS), "year first"),
    "mails": (MOMENTS.strftime("%a, %d %b %Y %H:%M:%S +0000"), days(MOMENTS), "day first"),
    "mails in a zone": (MOMENTS.strftime("%a, %d %b %Y %H:%M:%S +0200"), days(MOMENTS) - 1 / 12, "day first"),
    "servers": (MOMENTS.strftime("%a, %d %b %Y %H:%M:%S GMT"), days(MOMENTS), "day first"),
    "named days": (DAYS.strftime("%A, %B %d, %Y"), days(DAYS), "month first"),
    "quarters": ([f"{2001 + i // 4}-Q{i % 4 + 1}" for i in range(60)], None, "quarters"),
    "quarters first": ([f"Q{i % 4 + 1} {2001 + i // 4}" for i in range(60)], None, "quarters"),
    "quarters of pandas": ([f"{2001 + i // 4}Q{i % 4 + 1}" for i in range(60)], None, "quarters"),
}
MONTHS = days(pd.date_range("2019-01-01", periods=60, freq="MS"))
NAMES = {
    "%d %B, %Y": DAYS,
    "%d. %B %Y": DAYS,
    "%dth of %B": None,
    "%d%b%Y": DAYS,
    "%Y-%b-%d": DAYS,
    "%B %dth, %Y": DAYS,
    "%b. %d %Y": DAYS,
    "%d/%b/%Y:%H:%M:%S +0000": MOMENTS,
    "%a %b %d %H:%M:%S %Y": MOMENTS,
    "%a %b %d %H:%M:%S UTC %Y": MOMENTS,
    "%d %b %y": DAYS,
}
QUARTERS = days(pd.date_range("2001-01-01", periods=60, freq="QS"))


@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize("name", WRITTEN)
def test_standard_ways_of_writing_dates_are_read(name, repeated):
    words, when, how = WRITTEN[name]
    column = learned(list(words) * repeated)
    assert isinstance(column, DateColumn)
    assert column.how == how
    found = column.scale.undo(column.encode(cells(list(words)), path="it")[:, 0])
    assert found == pytest.approx(QUARTERS if when is None else when, abs=1e-6)
    assert table_from({"kind": "Table", "columns": [column.to_dict()]}, "it").columns[0] == column
    assert sorted(split_by_time(cells(list(words)), 0.25)[1].tolist()) == list(range(45, 60))


@pytest.mark.parametrize(
    "words", [["W05", "W06", "W07"], ["2023-W54", "2023-W60"], ["Q1", "Q2"], ["2023-Q5", "2023-Q7"]]
)
def test_words_that_are_no_dates_stay_words(words):
    assert learned(words * 10).read_as == "category"


@pytest.mark.parametrize("form", NAMES)
def test_dates_with_the_name_of_a_month_are_read_in_any_of_their_ways(form):
    words, when = DAYS.strftime(form) if NAMES[form] is None else NAMES[form].strftime(form), NAMES[form]
    column = learned(words)
    if when is None:
        assert column.read_as != "date"
        return
    assert isinstance(column, DateColumn)
    assert column.scale.undo(column.encode(cells(words), path="it")[:, 0]) == pytest.approx(days(when), abs=1e-6)


@pytest.mark.parametrize("form", ["%Y %b", "%b-%y", "%B-%Y", "%Y/%m", "%m.%Y"])
def test_months_are_dates_and_never_numbers(form):
    words = pd.date_range("2019-01-01", periods=60, freq="MS").strftime(form)
    column = learned(words)
    assert column.how.startswith("year first" if form == "%Y/%m" else "months")
    assert column.scale.undo(column.encode(cells(words), path="it")[:, 0]) == pytest.approx(MONTHS)
    assert isinstance(learned(["12.2021", "11.2034", "10.1975"] * 9), NumberColumn)  # decimals: no zero before them


def test_how_older_ensembles_wrote_dates_still_reads_them():
    for form, word in (("%d %B %Y", "5 March 1970"), ("%d-%b-%Y", "05-Mar-1970"), ("%B %d, %Y", "March 5, 1970")):
        assert cells([word]).days(form).tolist() == [63]
    assert cells(["March 1970"]).days("%B %Y").tolist() == [59]


def test_zones_by_name_and_moments_without_one_beside_them():
    hour = {"EST": 15, "PDT": 17, "CET": 9, "CEST": 8, "GMT": 10}
    for zone, there in hour.items():
        assert cells([f"1970-01-02 10:00 {zone}"]).days("ISO8601")[0] == pytest.approx(1 + there / 24)
    words = [f"2023-01-{1 + i % 28:02d} 10:00:00" + "Z" * (i % 2) for i in range(60)]
    said = "column 'c' holds '2023-01-02 10:00:00Z' and '2023-01-01 10:00:00', times with a zone and without; those without are read as UTC"
    with pytest.warns(UserWarning, match=said):
        assert isinstance(learned(words), DateColumn)


@pytest.mark.parametrize("words", [DAYS.strftime("%d-%m-%y"), DAYS.strftime("%Y_%m_%d"), DAYS.strftime("%Y-%m-%d %H")])
def test_what_looks_like_dates_in_a_way_that_is_not_read_is_said(words):
    with pytest.warns(
        UserWarning, match=f"column 'c' holds '{words[0]}', which looks like a date in a way that is not read"
    ):
        assert learned(words).read_as == "left out"


COMPACT = DAYS.strftime("%Y%m%d")


@pytest.mark.parametrize("values", [COMPACT, COMPACT.astype(int), COMPACT.astype(float)], ids=["text", "int", "float"])
def test_whole_numbers_that_are_all_calendar_days_are_dates(values):
    for column in (learned(values), learned(values[:8], "order_date"), learned([*values[:8]] * 5, "DateOfSale")):
        assert isinstance(column, DateColumn)
        assert column.how == "year first"
        found = column.scale.undo(column.encode(cells(values), path="it")[:, 0])
        assert found == pytest.approx(days(DAYS))
        assert column.encode(cells(DAYS.strftime("%Y-%m-%d")), path="it") == pytest.approx(
            column.encode(cells(values), path="it")
        )


NUMBERS = {
    "few, and no name for dates": (COMPACT[:8], "c"),
    "one is no day": ([*COMPACT, "20230230"], "day"),
    "counted on from the first": (np.arange(20230101, 20230131), "n"),
    "years far away": ([str(30000101 + i) for i in range(20)] * 2, "date"),
    "amounts": (np.random.default_rng(0).integers(19_000_000, 21_000_000, 60), "day_rate"),
    "updated amounts": (np.random.default_rng(0).integers(19_000_000, 21_000_000, 60), "updated"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_whole_numbers_of_eight_digits_stay_numbers_where_nothing_says_that_they_are_days(name):
    values, column = NUMBERS[name]
    assert isinstance(learned(values, column), NumberColumn)


def test_compact_days_are_no_targets_unless_asked_for():
    frame = pd.DataFrame({"a": np.arange(60.0), "t": COMPACT.astype(int)})
    with pytest.raises(InputError, match=re.escape(f"the target 't' holds dates ('{COMPACT[0]}'); give a number")):
        learn_table(frame, "t")
    assert learn_table(frame, "t", task="regression").targets(frame)[0] == int(COMPACT[0])


@pytest.mark.parametrize("word", ["9999-12-31", "1900-01-01", "1970-01-01", "2999-12-31"])
def test_dates_that_may_stand_for_no_date_are_said(word):
    words = [word if i % 6 == 0 else f"2023-01-{1 + i % 28:02d}" for i in range(60)]
    for values in (words, pd.Series(words).astype("datetime64[s]")):
        with pytest.warns(
            UserWarning,
            match=rf"'c' holds {word} in 10 cell\(s\), far from all others \(2023-01-01 to 2023-01-28\); leave",
        ):
            assert isinstance(learned(values), DateColumn)
