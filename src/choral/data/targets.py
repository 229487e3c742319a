"""Targets of tables: classes or numbers, as their column tells, and what refuses them."""

import math
import re
from typing import Literal

import numpy as np

from choral.base.errors import InputError
from choral.base.text import short
from choral.data.cells import LARGEST, Cells
from choral.data.columns import say, say_stand_in
from choral.data.numerals import factors_in, mixed_decimals, mixed_units, number
from choral.data.recognition import ladder

_SAMPLE = 10_000  # different targets that are looked at for their units
_FEW = 20  # integer targets with at most this many different values are read as classes
_CLASSES = 100  # different numbers that may be asked to be classes
WHOLE = re.compile(r"-?(?:0|[1-9]\d*)(?:\.0*)?")  # 1 and 1.0 are one class; 01, $1 and 100% are words

Kind = Literal["classification", "regression"]


def labels(cells: Cells) -> list[str]:
    """Return the class of every cell as text: whole numbers as such, whatever type they have, and all else as it is spelled."""
    whole = all(map(WHOLE.fullmatch, cells.different))
    names = {w: str(int(w.split(".")[0])) if whole else w for w in cells.different}
    return [names[w] for w in cells.words]


def target_numbers(cells: Cells, comma: bool, unit: str, path: str) -> np.ndarray:
    """Return the targets of a regression; InputError for cells that are no numbers, or too large."""
    values = cells.numbers(comma=comma, unit=unit)
    bad = ~(np.abs(values) <= LARGEST)
    if bad.any():
        raise InputError(
            f"{path}: the target '{cells.name}' holds {short(cells.words[bad][0])!r} ({cells.lines(bad)}), which "
            f"is not a number{f' in {short(unit)}' if unit else ''} of at most {LARGEST:g} in size; correct or drop it, or use --task classification."
        )
    return values


def check_target(cells: Cells, task: Kind | None, path: str) -> None:
    """Raise InputError for a target that would be read as something else than it is, unless a task is asked for that it can be."""
    mixed = None if cells.is_number else mixed_units(cells.held[:_SAMPLE])
    if mixed and task != "classification":
        raise InputError(
            f"{path}: the target '{cells.name}' holds {short(mixed[0])!r} and {short(mixed[1])!r}, numbers in different units; write them all in "
            "one, or use --task classification."
        )
    decimals = None if cells.is_number else mixed_decimals(cells.held[:_SAMPLE])
    if decimals and task != "classification":
        raise InputError(
            f"{path}: the target '{cells.name}' holds {short(decimals[0])!r} and {short(decimals[1])!r}, numbers with decimal points and with decimal "
            "commas; write them all in one way, or use --task classification."
        )
    if task != "classification" and _bounded(cells):
        some = " and ".join(repr(short(word, 20)) for word in list(dict.fromkeys(cells.words[cells.bounds]))[:2])
        raise InputError(
            f"{path}: the target '{cells.name}' holds bounds such as {some} ({cells.bounds.sum():,} of {len(cells):,} rows), which are no numbers; write "
            "a number for each, such as the bound itself, leave such cells empty to leave their rows out, or use --task classification to take every "
            "value as a class."
        )
    if task is None and cells.is_days:
        raise InputError(f"{path}: the target '{cells.name}' {_moments_in(cells)}, or use --task regression.")


def _bounded(cells: Cells) -> bool:
    """Return whether targets are numbers and bounds (<0.5, 3+), or more different bounds than there are classes."""
    plain = np.isfinite(cells.own_numbers)
    if not cells.bounds.any() or (plain | cells.bounds).mean() < 0.9:
        return False
    return bool(plain.any()) or len(cells.held) > _FEW


def guess_task(cells: Cells) -> tuple[Kind, str]:
    """Return 'classification' or 'regression' for a target column, and the reason in words."""
    values, different = cells.own_numbers, len(cells.different)
    if cells.is_category:
        return "classification", f"its type is category, with {different} values"
    if cells.is_flag or np.isnan(values).mean() > 0.1:
        return "classification", f"its {different} values are {_what_words_are(cells)}"
    if cells.is_code:
        return "classification", f"its {different} values are codes that begin with 0"
    held = np.unique(values[np.isfinite(values)])
    if held.tolist() == [0, 1]:
        return "classification", "it holds only 0 and 1"
    whole = (held % 1 == 0).all() and cells.series.dtype.kind != "f"
    if whole and different <= _FEW and not any("." in w or "," in w for w in cells.different):
        return "classification", f"it holds only {different} different whole numbers{_as_counts(held)}"
    said = [unit_in_words(cells.unit), factors_in(cells.held)]
    return "regression", ", ".join([f"it holds {different} different numbers", *filter(None, said)])


def _what_words_are(cells: Cells) -> str:
    """Return what targets are that are not numbers, and what else to do with those that could be."""
    if cells.is_flag or cells.is_nested or not _moments_in(cells):
        return "not numbers"
    what, instead = ("times or durations", "minutes") if cells.is_clock else ("dates", "the days since a first one")
    return f"{what}, each a class; a regression needs numbers, such as {instead}"


def unit_in_words(unit: str) -> str:
    """Return how the numbers of a target are to be understood; nothing without a unit.

    >>> unit_in_words("kg"), unit_in_words("%"), unit_in_words("")
    ('in kg', '12% is 0.12', '')
    """
    return "12% is 0.12" if unit == "%" else f"in {short(unit, 20)}" * bool(unit)


def _as_counts(values: np.ndarray) -> str:
    """Return what else many whole numbers from 0 or 1 on may be, in words; nothing if they have gaps or are few."""
    if len(values) <= 10 or values[0] not in (0, 1) or values[-1] - values[0] >= len(values):
        return ""
    return "; if they are counts or a rating, use --likelihood poisson or --task regression"


def classes_of(cells: Cells, path: str) -> tuple[str, ...]:
    """Return the classes of a target; InputError for a single one, and for too many."""
    words = labels(cells)
    found = set(words)
    if len(found) < 2:
        raise InputError(
            f"{path}: the target '{cells.name}' has a single value, {short(words[0])}; there is nothing to learn."
        )
    _say_spellings(cells, found, path)
    values = [number(w) for w in found]
    numeric = not any(map(np.isnan, values))
    if (numeric and len(found) > _CLASSES) or (len(found) > 10 and len(found) > len(words) / 2):
        if _moments_in(cells):
            raise InputError(f"{path}: the target '{cells.name}' {_moments_in(cells)}.")
        advice = "use --task regression" if numeric else "name a target whose values repeat"
        raise InputError(
            f"{path}: the target '{cells.name}' has {len(found):,} different values in {len(words):,} rows, too many to be "
            f"classes; {advice}."
        )
    return tuple(sorted(found, key=lambda w: (number(w), w)) if numeric else sorted(found))


def _say_spellings(cells: Cells, found: set[str], path: str) -> None:
    """Warn of two classes that differ in capitals or spaces alone."""
    known: dict[str, str] = {}
    for word in sorted(found):
        other = known.setdefault(" ".join(word.lower().split()), word)
        if other != word:
            say(
                f"{path}: the target '{cells.name}' holds {short(other)!r} and {short(word)!r}, which are two classes; spell them alike if they are one."
            )
            return


def _moments_in(cells: Cells) -> str:
    """Return that a target holds dates or times, and what to give instead; empty if it does not."""
    if cells.is_clock:
        return f"holds times or durations ({short(cells.held[0])!r}); give a number, such as minutes"
    if cells.form is None and not cells.ways:
        return ""
    return f"holds dates ({short(cells.held[0])!r}); give a number, such as the days since a first one"


def in_order(classes: tuple[str, ...], order: tuple[str, ...], cells: Cells, path: str) -> tuple[str, ...]:
    """Return classes from first to last, spelled as the file does; InputError if nothing says their order."""
    if not order and not any(math.isnan(number(c)) for c in classes):
        return classes
    steps = order or ladder(cells)
    place = {s.lower(): i for i, s in enumerate(steps)} | {s: i for i, s in enumerate(steps)}
    places = {c: place.get(c, place.get(c.lower(), -1)) for c in classes}
    odd = [c for c in classes if places[c] < 0]
    if odd or len(set(places.values())) < len(classes):
        shown = "<".join(short(c, 20) for c in classes[:10])
        what = f"the given order ({' < '.join(order)}) does not tell" if order else "nothing tells"
        raise InputError(
            f"{path}: {what} the order of the classes of the target '{cells.name}'{f': where is {short(odd[0])!r}' if odd and order else ''}; "
            f"write every class from first to last, as in --order '{cells.name}={shown}', in their right order."
        )
    return tuple(sorted(classes, key=places.__getitem__))


def check_numbers(cells: Cells, rows: np.ndarray | None, path: str) -> None:
    """Raise InputError for a target of a regression that holds text, or one value alone."""
    if np.isnan(cells.own_numbers).mean() > 0.5:
        if _moments_in(cells):
            raise InputError(f"{path}: the target '{cells.name}' {_moments_in(cells)}.")
        raise InputError(
            f"{path}: the target '{cells.name}' holds text, so it cannot be a regression; use classification."
        )
    values = target_numbers(cells, cells.comma, cells.unit, path)
    say_stand_in(f"the target '{cells.name}'", values, path)
    held = values if rows is None else values[rows]
    if len(held) > 1 and (held == held[0]).all():
        raise InputError(
            f"{path}: the target '{cells.name}' has the same value, {held[0]:g}, in every training row; there is nothing to learn."
        )
