"""What a column of a table is, decided from its cells: a number, flag, date, category, an id or free text."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from choral.base.errors import InputError
from choral.base.lettering import short
from choral.data import cells as reading
from choral.data.columns import Column, DateColumn, LeftOutColumn, NumberColumn
from choral.data.words import CategoryColumn, FlagColumn, OrderedColumn

_MOSTLY = 0.9  # of the cells that hold something must be numbers, or dates, for the column to be one
_MANY = 20  # rows, fewer of which do not show that every value occurs once
_NAMED_ID = re.compile(r"(?:^|[\s_.-])(?:id|ids|uuid|guid|index|idx|rowid|row_number)$|^unnamed: \d+$|^row$", re.I)
_CAMEL_ID = re.compile(r"[a-z](?:ID|Id)$")
_CODE = re.compile(r"0\d+")
LADDERS = (
    ("very low", "low", "medium", "high", "very high"),
    ("low", "moderate", "high"),
    ("small", "medium", "large"),
    ("xs", "s", "m", "l", "xl", "xxl"),
    ("mild", "moderate", "severe"),
    ("never", "rarely", "sometimes", "often", "always"),
    ("poor", "fair", "good", "very good", "excellent"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
    ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    ("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
    (
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ),
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
)
"""Orders that are recognised without being told, if at least three of their words occur and no other."""


def learn_column(cells: Any, *, order: tuple[str, ...] = (), path: str) -> Column:
    """Return what a column is, learned from its training cells.

    Args:
        cells: a pandas series.
        order: its values from first to last, if the user gave them.
        path: what to call the table in an error.
    """
    name = str(cells.name)
    absent = reading.blank(cells)
    if absent.all():
        return LeftOutColumn(name=name, reason="every cell is without a value")
    if order:
        return _ordered(cells, absent, order, path)
    words = reading.texts(cells)[~absent]
    different = len(set(words))
    if different == 1 and not absent.any():
        return LeftOutColumn(name=name, reason=f"every cell is {short(words[0], 20)!r}")
    if _nested(cells):
        return LeftOutColumn(name=name, reason="its cells hold lists or structures")
    if reading.is_flag(cells) or _flag(words):
        yes, no = _flag(words) or ("true", "false")
        return FlagColumn(name=name, yes=yes, no=no, missing=bool(absent.any()))
    unique = len(words) >= _MANY and different >= 0.99 * len(words)
    comma = not reading.is_number(cells) and reading.writes_comma(words)
    if _numeric(cells, words, comma):
        if unique and is_id(name):
            return LeftOutColumn(name=name, reason="an id: its name says so and every value occurs once", beside=True)
        return NumberColumn.learn(cells, comma=comma, path=path)
    form = reading.date_format(cells)
    if form is not None:
        return DateColumn.learn(cells, form)
    return _words(cells, words, different, unique, absent)


def _words(cells: Any, words: np.ndarray, different: int, unique: bool, absent: np.ndarray) -> Column:
    """Return what a column of text is."""
    name = str(cells.name)
    long = float(np.mean([len(w.split()) for w in words])) >= 4
    if long and different > max(_MANY, 0.5 * len(words)):
        return LeftOutColumn(name=name, reason=f"free text: {different:,} different values of several words")
    if unique or (len(words) >= _MANY and is_id(name) and different > 0.9 * len(words)):
        return LeftOutColumn(name=name, reason="an id: every value occurs once", beside=True)
    steps = ladder(cells, words)
    if steps:
        return OrderedColumn(name=name, values=steps, missing=bool(absent.any()))
    return CategoryColumn.learn(cells)


def is_id(name: str) -> bool:
    """Return whether a column's name says that it numbers the rows.

    >>> [is_id(n) for n in ("customerID", "id", "user_id", "Unnamed: 0", "paid", "width", "grid")]
    [True, True, True, True, False, False, False]
    """
    return bool(_CAMEL_ID.search(name) or _NAMED_ID.search(name))


def _nested(cells: Any) -> bool:
    return cells.dtype.kind == "O" and any(
        isinstance(v, list | dict | tuple | np.ndarray | bytes) for v in cells.head(50)
    )


def _flag(words: np.ndarray) -> tuple[str, str] | None:
    held = {w.lower() for w in words}
    return next((pair for pair in reading.FLAGS if held == set(pair)), None)


def _numeric(cells: Any, words: np.ndarray, comma: bool) -> bool:
    if reading.is_number(cells):
        return True
    if any(map(_CODE.fullmatch, words)):  # 00123 is a code, not 123
        return False
    held = reading.numbers(cells, comma=comma)
    return bool((~np.isnan(held)).sum() >= _MOSTLY * len(words))


def ladder(cells: Any, words: np.ndarray) -> tuple[str, ...]:
    """Return the values of a column in their order, if it has one that is known: an ordered type, or one of the ladders."""
    if str(cells.dtype) == "category" and cells.cat.ordered:
        return tuple(str(c) for c in cells.cat.categories)
    held = {w.lower() for w in words}
    known = next((steps for steps in LADDERS if len(held) >= 3 and held <= set(steps)), ())
    return tuple(step for step in known if step in held)


def _ordered(cells: Any, absent: np.ndarray, order: tuple[str, ...], path: str) -> Column:
    held = {w.lower() for w in reading.texts(cells)[~absent]}
    odd = sorted(held - {v.lower() for v in order})
    if odd or len(order) < 2:
        raise InputError(
            f"{path}: column '{short(str(cells.name))}' holds {short(odd[0]) if odd else 'values'!r}, which the given order "
            f"({' < '.join(order)}) does not name; give every value from first to last."
        )
    return OrderedColumn(name=str(cells.name), values=order, missing=bool(absent.any()))


def orders_of(given: list[str]) -> Mapping[str, tuple[str, ...]]:
    """Return orders by column from texts such as 'size=small<medium<large'.

    >>> orders_of(["size=small<medium<large"])
    {'size': ('small', 'medium', 'large')}
    """
    found = {}
    for text in given:
        name, sign, values = text.partition("=")
        steps = tuple(v.strip() for v in values.split("<"))
        if not sign or len(steps) < 2 or not all(steps) or len(set(steps)) < len(steps):
            raise InputError(f"--order is {text!r}; write it as COLUMN=first<second<third, every value once.")
        found[name.strip()] = steps
    return found
