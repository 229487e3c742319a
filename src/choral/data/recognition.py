"""What a column of a table is, decided from its cells: a number, flag, date, category, an id or free text."""

import re
from collections.abc import Mapping

import numpy as np

from choral.base.errors import InputError
from choral.base.text import short
from choral.data.calendar import ClockColumn, DateColumn
from choral.data.cells import FLAGS, NO, YES, Cells
from choral.data.columns import Column, LeftOutColumn, NumberColumn, say
from choral.data.dates import IN_NAMES, looks_unread
from choral.data.numerals import bound_in, mixed_decimals, mixed_units, units_in
from choral.data.words import CategoryColumn, FlagColumn, OrderedColumn

_MOSTLY = 0.9  # of the cells that hold something must be numbers, or dates, for the column to be one
_SAMPLE = 1000  # words that are looked at to see how long they are
_MANY = 20  # rows, fewer of which do not show that every value occurs once
_NAMED_ID = re.compile(r"(?:^|[\s_.-])(?:id|ids|uuid|guid|index|idx|rowid|row_number)$|^unnamed: \d+$|^row$", re.I)
_NUMBERED = re.compile(
    r"(?:^|[\s_.-])(?:uid|account|serial|(?:order|account|serial|invoice|ticket|customer|transaction|booking|case|policy|record|item|part|product)"
    r"[\s_.-]?(?:no|nr|num|number))\.?$",
    re.I,
)
_DIGITS = 1e5  # least number with so many digits as those that are given to rows one after the other
_CAMEL_ID = re.compile(r"[a-z](?:ID|Id)$")
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
"""Orders that are recognized without being told, if at least three of their words occur and no other."""


def learn_column(cells: Cells, *, order: tuple[str, ...] = (), path: str) -> Column:
    """Return what a column is, learned from its training cells.

    Args:
        cells: the training cells.
        order: its values from first to last, if the user gave them.
        path: what to call the table in an error.
    """
    name, gaps, rows = cells.name, bool(cells.absent.any()), int((~cells.absent).sum())
    if not rows:
        return LeftOutColumn(name=name, reason="every cell is without a value")
    if order:
        return _ordered(cells, order, path)
    if cells.is_nested:
        return LeftOutColumn(name=name, reason="its cells hold lists or structures")
    if len(cells.held) == 1 and not gaps:
        return LeftOutColumn(name=name, reason=f"every cell is {short(cells.held[0], 20)!r}")
    if cells.is_flag or _flag(cells):
        yes, no = _flag(cells) or ("true", "false")
        return FlagColumn(name=name, yes=yes, no=no, missing=gaps)
    unique = rows >= _MANY and len(cells.held) >= 0.99 * rows
    if cells.is_category:
        return _words(cells, rows, unique)
    if _numeric(cells, rows) and not cells.is_days:
        if unique and (is_id(name) or (_NUMBERED.search(name) and _whole(cells))):
            return LeftOutColumn(name=name, reason="an id: its name says so and every value occurs once", beside=True)
        if unique and _counts_rows(cells):
            return LeftOutColumn(name=name, reason="an id: whole numbers one after the other, each once", beside=True)
        return NumberColumn.learn(cells, path=path)
    if cells.form is not None:
        return DateColumn.learn(cells, cells.form, path=path)
    if cells.is_clock:
        return ClockColumn.learn(cells, path=path)
    mixed = _mixed(cells)
    if mixed:
        what, advice = mixed
        done = "left out" if unique else "read as words"
        say(f"{path}: column '{short(name)}' holds {what}, so it is {done}; {advice}.")
        if unique:
            return LeftOutColumn(name=name, reason=f"it holds {what}")
        return _words(cells, rows, unique)
    found = _words(cells, rows, unique)
    _say_half(cells, found, path)
    return found


def _mixed(cells: Cells) -> tuple[str, str] | None:
    """Return two cells that are written in different ways, in words, and what to do; None where cells are alike."""
    ways, units, decimals = cells.ways, mixed_units(cells.held[:_SAMPLE]), mixed_decimals(cells.held[:_SAMPLE])
    if ways:
        said = f"{short(ways[0])!r} and {short(ways[1])!r}, dates written in different ways"
        return said, "write them all as 2024-03-25 to have it read as dates"
    if looks_unread(cells.held[:_SAMPLE]):
        said = f"{short(cells.held[0])!r}, which looks like a date in a way that is not read"
        return said, "write them all as 2024-03-25 to have it read as dates"
    if units:
        said = f"{short(units[0])!r} and {short(units[1])!r}, numbers in different units"
        return said, "write them all in one unit, or currency, to have it read as numbers"
    if decimals:
        said = f"{short(decimals[0])!r} and {short(decimals[1])!r}, numbers with decimal points and with decimal commas"
        return said, "write them all in one way to have it read as numbers"
    return None


def _say_half(cells: Cells, found: Column, path: str) -> None:
    """Warn of a column read as words, or left out, in which numbers are at least half of the cells, and other words keep it from being one."""
    if len(cells.held) <= _MANY or cells.is_category or is_id(cells.name) or not _numbers_in(cells) >= 0.5:
        return
    numbers = np.isfinite(cells.own_numbers)
    odd = ~numbers & ~cells.absent
    if not cells.is_code and numbers.sum() >= 0.5 * (~cells.absent).sum() and odd.any():
        done = "left out" if found.codes == 0 else "read as words"
        say(
            f"{path}: column '{short(cells.name)}' holds {short(cells.words[odd][0])!r} in {cells.lines(odd)}, so it is {done} although {numbers.sum():,} of "
            f"{len(cells):,} cells are numbers; write numbers alone, or leave the others empty, to have it read as numbers."
        )


def _words(cells: Cells, rows: int, unique: bool) -> Column:
    """Return what a column of text is."""
    different = len(cells.held)
    long = float(np.mean([len(w.split()) for w in cells.held[:_SAMPLE]])) >= 4
    if long and different > max(_MANY, 0.5 * rows):
        return LeftOutColumn(name=cells.name, reason=f"free text: {different:,} different values of several words")
    if unique or (rows >= _MANY and is_id(cells.name) and different > 0.9 * rows):
        return LeftOutColumn(name=cells.name, reason="an id: every value occurs once", beside=True)
    steps = ladder(cells)
    if steps:
        return OrderedColumn(name=cells.name, values=steps, missing=bool(cells.absent.any()))
    return CategoryColumn.learn(cells)


def is_id(name: str) -> bool:
    """Return whether a column's name says that it numbers the rows.

    >>> [is_id(n) for n in ("customerID", "id", "user_id", "Unnamed: 0", "paid", "width", "grid")]
    [True, True, True, True, False, False, False]
    """
    return bool(_CAMEL_ID.search(name) or _NAMED_ID.search(name))


def _whole(cells: Cells) -> bool:
    values = cells.own_numbers
    return bool((values[np.isfinite(values)] % 1 == 0).all())


def _counts_rows(cells: Cells) -> bool:
    """Return whether different values are large whole numbers with few gaps between them, and no dates or counts of time."""
    values = cells.own_numbers[np.isfinite(cells.own_numbers)]
    if IN_NAMES.search(cells.name) or cells.form is not None or not _whole(cells):
        return False
    return bool(values.min() >= _DIGITS and values.max() - values.min() < 2 * len(values))


def _flag(cells: Cells) -> tuple[str, str] | None:
    """Return how a column says yes and no, in the words of the first pair it has one of; None if it says anything else, or digits alone."""
    held = {w.lower() for w in cells.held[:_MANY]}
    if len(cells.held) > _MANY or not held <= {*YES, *NO} or not held & set(YES) or not held & set(NO):
        return None
    return next((pair for pair in FLAGS if held & set(pair)), None)


def _numbers_in(cells: Cells) -> float:
    """Return the part of some cells that are numbers, with or without a unit, or bounds of such."""
    some = cells.words[~cells.absent]
    some = some[:: max(1, len(some) // _SAMPLE)]
    return units_in(bound_in(word) or word for word in some).total() / len(some)


def _numeric(cells: Cells, rows: int) -> bool:
    if cells.is_number:
        return True
    if _numbers_in(cells) < 0.5:  # most cells are words, or dates: no need to read all as numbers
        return False
    values = cells.own_numbers
    if cells.bounds.any():
        plain, bounds = (len(set(cells.words[which])) for which in (np.isfinite(values), cells.bounds))
        if plain > bounds:  # else they are classes: <=50K and >50K
            values = cells.numbers_or_bounds(comma=cells.comma, unit=cells.unit)
    return not cells.is_code and bool(np.isfinite(values).sum() >= _MOSTLY * rows)


def ladder(cells: Cells) -> tuple[str, ...]:
    """Return the values of a column in their order, if it has one that is known: an ordered type, or one of the ladders."""
    if cells.is_category and cells.series.cat.ordered:
        return tuple(str(c) for c in cells.series.cat.categories)
    held = {w.lower() for w in cells.held[:_MANY]} if len(cells.held) <= _MANY else set()
    known = next((steps for steps in LADDERS if len(held) >= 3 and held <= set(steps)), ())
    return tuple(step for step in known if step in held)


def _ordered(cells: Cells, order: tuple[str, ...], path: str) -> Column:
    held = {w.lower() for w in cells.held}
    odd = sorted(held - {v.lower() for v in order})
    if odd or len(order) < 2:
        raise InputError(
            f"{path}: column '{short(cells.name)}' holds {short(odd[0]) if odd else 'values'!r}, which the given order "
            f"({' < '.join(order)}) does not name; give every value from first to last."
        )
    return OrderedColumn(name=cells.name, values=order, missing=bool(cells.absent.any()))


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
