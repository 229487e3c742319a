"""Numbers as people, ledgers and spreadsheets write them; what is nearly a column of numbers is said."""

import re

import numpy as np
import pandas as pd
import pytest

from choral.base.errors import InputError
from choral.data.cells import Cells
from choral.data.tables import learn_table, with_target


def cells(values, name="c"):
    return Cells(pd.Series(values, name=name))


def learned(words):
    frame = pd.DataFrame({"c": words, "more": np.arange(len(words)) % 3, "t": np.arange(len(words)) + 0.5})
    return learn_table(frame, "t", path="f.csv").columns[0]


def test_errors_of_spreadsheets_are_cells_without_a_value():
    errors = ["#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!", "#N/A"]
    column = learned([f"{i}.5" for i in range(40)] + errors * 2)
    assert (column.read_as, column.missing, column.unread) == ("number", True, 0)
    with pytest.warns(UserWarning, match="7 of 17 row"):
        assert len(with_target(pd.DataFrame({"t": ["1"] * 10 + errors}), "t", "it")) == 10


@pytest.mark.parametrize(
    ("word", "value"),
    [("12.5-", -12.5), ("1,234.50-", -1234.5), ("1,234-", -1234), ("1,23,456", 123456), ("12,34,567.5", 1234567.5)],
)
def test_ledgers_write_minus_behind_numbers_and_lakhs(word, value):
    words = [f"{i + 100}.25" for i in range(59)] + [word]
    column = learned(words)
    assert column.unread == 0
    assert column.scale.undo(column.encode(cells(words), path="it")[-1, 0]) == pytest.approx(value)


def test_grades_are_no_negative_numbers():
    assert learned(["1-", "2", "2-", "3", "3-"] * 8).read_as == "category"


NEARLY = {
    "notes behind numbers": [f"{i}.5 [1]" if i < 20 else f"{i}.5" for i in range(60)],
    "stars": [f"{i}*" if i < 20 else f"{i}" for i in range(60)] * 2,
    "a word": [f"{i}.5" if i > 12 else "not measured" for i in range(60)],
}


@pytest.mark.parametrize("name", NEARLY)
def test_a_column_that_is_half_of_numbers_is_not_read_as_words_in_silence(name):
    words = NEARLY[name]
    odd = next(word for word in words if np.isnan(cells([word]).own_numbers[0]))
    with pytest.warns(UserWarning, match=re.escape(f"f.csv: column 'c' holds {odd!r} in row")) as said:
        column = learned(words)
    count = sum(np.isfinite(cells([word]).own_numbers[0]) for word in words)
    assert f"{count} of {len(words)} cells are numbers" in str(said[0].message)
    assert ("left out" if column.read_as == "left out" else "read as words") in str(said[0].message)


@pytest.mark.parametrize(
    "words", [["1", "2", "3", "not rated"] * 9, [f"0{i}" for i in range(40)], ["12A", "12B", "13"] * 9]
)
def test_words_and_codes_of_which_some_are_numbers_are_nothing_to_say(words):
    learned(words)  # warnings are errors


def test_decimal_commas_and_points_in_one_column_are_said_and_refused_as_targets():
    words = [f"{i},5" if i % 2 else f"{i}.5" for i in range(60)]
    what = "holds '0.5' and '1,5', numbers with decimal points and with decimal commas"
    with pytest.warns(UserWarning, match=f"f.csv: column 'c' {what}, so it is left out; write"):
        assert learned(words).read_as == "left out"
    with pytest.raises(InputError, match=f"the target 't' {what}; write"):
        learn_table(pd.DataFrame({"a": np.arange(60.0), "t": words}), "t")


STANDING = {
    "below": (
        [-999 if i % 6 == 0 else i + 0.5 for i in range(60)],
        "-999 in 10 cell(s), far from all others (1.5 to 59.5)",
    ),
    "above": ([9999 if i % 20 == 0 else i for i in range(60)], "9999 in 3 cell(s), far from all others (1 to 59)"),
    "as text": (["-99.0" if i < 2 else f"{i}" for i in range(60)], "-99 in 2 cell(s), far from all others (2 to 59)"),
}


@pytest.mark.parametrize("name", STANDING)
def test_numbers_that_may_stand_for_no_value_are_said(name):
    values, said = STANDING[name]
    with pytest.warns(UserWarning, match=re.escape(f"f.csv: column 'c' holds {said}; leave")):
        assert learned(values).read_as == "number"
    with pytest.warns(UserWarning, match=re.escape(f"f.csv: the target 't' holds {said}; leave")):
        learn_table(pd.DataFrame({"a": np.arange(60.0), "t": values}), "t", task="regression", path="f.csv")


@pytest.mark.parametrize(
    "values", [np.arange(60) * 40 - 999, np.r_[np.arange(59), -999], np.r_[np.arange(900, 1010)] * 1.0]
)
def test_numbers_among_others_are_nothing_to_say(values):
    learned(values)  # warnings are errors


WRITTEN = {
    "shares in brackets": (["(5%)", "12%", "(0.5 %)"], [-0.05, 0.12, -0.005], "%"),
    "dollars of the United States": (["US$ 5", "US$1,200", "$7"], [5, 1200, 7], "$"),
    "reals": (["R$ 5", "R$ 1.200,50", "R$ 7,25"], [5, 1200.5, 7.25], "R$"),
    "rupees": (["Rs. 5", "Rs 12,34,567", "₹7"], [5, 1234567, 7], "₹"),
    "whole francs": (["CHF 5.--", "CHF 1'200.--", "CHF 7.50"], [5, 1200, 7.5], "CHF"),
    "whole crowns": (["5,-", "1200,-", "7,50"], [5, 1200, 7.5], ""),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_amounts_and_shares_as_shops_and_ledgers_write_them(name):
    words, values, unit = WRITTEN[name]
    column = learned(words * 9)
    assert (column.read_as, column.unread) == ("number", 0)
    assert column.unit == unit
    assert column.scale.undo(column.encode(cells(words), path="it")[:, 0]) == pytest.approx(values)


def test_ordinals_are_no_units():
    words = ["1st", "2nd", "3rd", "4th"] * 9
    assert learned(words).read_as == "category"  # warnings are errors
    assert learn_table(pd.DataFrame({"a": np.arange(36.0), "t": words}), "t").task == "classification"
