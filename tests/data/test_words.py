"""Columns and classes of words that mean the same in more than one spelling."""

import numpy as np
import pandas as pd
import pytest

from choral.data.cells import Cells
from choral.data.tables import learn_table
from choral.data.words import FlagColumn


def cells(values, name="c"):
    return Cells(pd.Series(values, name=name))


def learned(words):
    frame = pd.DataFrame({"c": words, "more": np.arange(len(words)) % 3, "t": np.arange(len(words)) + 0.5})
    return learn_table(frame, "t").columns[0]


FLAGS = {
    "whole words and letters": ["Yes", "n", "y", "No"],
    "words and digits": ["true", "0", "1", "FALSE"],
    "a word and a digit": ["Yes", "0", "Yes", "0"],
    "one way": ["on", "off", "On", "OFF"],
}


@pytest.mark.parametrize("name", FLAGS)
def test_yes_and_no_in_several_spellings_are_one_flag(name):
    words = FLAGS[name]
    column = learned(words * 9)
    assert isinstance(column, FlagColumn)
    said = [1.0 if word.lower() in ("yes", "y", "true", "1", "on") else -1.0 for word in words]
    assert column.encode(cells(words), path="it")[:, 0].tolist() == said
    assert column.encode(cells(["Y", "no", "TRUE", "f", 1.0]), path="it")[:, 0].tolist() == [1, -1, 1, -1, 1]


@pytest.mark.parametrize("words", [["y", "yes"], ["t", "f", "m"], ["n", "s", "y"], ["0", "1"]])
def test_words_that_do_not_all_say_yes_or_no_are_no_flag(words):
    assert not isinstance(learned(words * 9), FlagColumn)


def test_classes_that_differ_in_capitals_or_spaces_alone_are_said():
    frame = pd.DataFrame({"a": np.arange(36.0), "t": ["Yes", "yes", "No", "very  well"] * 9})
    with pytest.warns(UserWarning, match="it: the target 't' holds 'Yes' and 'yes', which are two classes; spell them"):
        assert len(learn_table(frame, "t", path="it").classes) == 4
    learn_table(frame.assign(t=["Yes", "No"] * 18), "t")  # warnings are errors
