"""Where the header of a file is: notes and titles above it, units below it, and what separates its cells."""

import csv
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from choral.base.text import short
from choral.data.cells import Cells
from choral.data.numerals import number

SEPARATORS = {",": "a comma", ";": "';'", "\t": "a tab", "|": "'|'"}
_SEP = re.compile(r"""["']?sep=(.|\\t)["']?""", re.IGNORECASE)  # Excel writes and obeys it
_HIGHEST = 20  # lines above a header that are looked at
_BELOW = 1000  # rows that show whether a column is of numbers
_NONE = ("", "-", "--", "nan", "none")
_BRACKETED = re.compile(r"\[.*\]|\(.*\)|\{.*\}|<.*>")
_UNITS = re.compile(
    r"[kcmµun]?m[23²³]?|mi|ft|in|inch|yd|ha|sqm|sqft|m?l|[kmµu]?g|t|lbs?|oz|m?s|sec|min|h|hrs?|d|days?|weeks?|months?|years?|yrs?|hours|minutes|seconds|"
    r"k?m/[sh][2²]?|kmh|mph|°[cf]?|k|c|[hkm]?pa|bar|psi|k?n|[km]?j|[km]?wh?|[km]?v|m?ah?|[kmg]?hz|ohm|db|lux|lm|cd|m?mol|[km]?g/d?[lm][23²³]?|m?mol/l|"
    r"pp[mb]|[%‰$€£¥]|deg|rad|usd|eur|gbp|chf|jpy|cad|aud|inr|cny|counts?|pcs|pieces|units?|"
    r"text|string|str|int|integer|float|double|number|numeric|date|bool",
    re.IGNORECASE,
)


def after_notes(path: Path, text: str, usual: str) -> tuple[str, str]:
    """Return a text whose notes before the header are blank lines, and the mark between cells if the first line says it (sep=;)."""
    first, end, rest = text.partition("\n")
    said = _SEP.fullmatch(first.strip())
    if said:
        return end + rest, said[1].replace("\\t", "\t")
    head = text[:100_000].splitlines(keepends=True)
    notes = next((i for i, line in enumerate(head) if line.strip() and not line.lstrip().startswith("#")), 0)
    if not notes:
        return text, ""
    mark = separator([line for line in head[notes:] if line.strip()][:50], usual)
    cells = [next(csv.reader([line], delimiter=mark), []) for line in head[: notes + 1]]
    if len(cells[-2]) == len(cells[-1]) > 1:  # the header itself begins with #
        notes -= 1
    count = sum(line.lstrip().startswith("#") for line in head[:notes])
    if count:
        warnings.warn(f"{path}: {count} line(s) before the header begin with # and are passed over.", stacklevel=4)
    return "\n" * notes + text[sum(map(len, head[:notes])) :], ""


def separator(lines: list[str], usual: str) -> str:
    """Return the mark between cells: the one that gives most lines as many cells as the header, more than one."""
    best, score = usual, 0.0
    for mark in (usual, *(m for m in SEPARATORS if m != usual)):
        try:
            rows = list(csv.reader(lines, delimiter=mark))
        except csv.Error:
            continue
        width = len(rows[0])
        same = sum(len(r) == width for r in rows) / len(rows)
        if width > 1 and same > score + 1e-9:
            best, score = mark, same
    return best


def after_titles(path: Path, text: str, usual: str, said: str) -> str:
    """Return a text whose titles above the header are blank lines; a warning says which they are.

    Args:
        path: of the file.
        text: all of it, without notes.
        usual: the mark between cells that is expected.
        said: the mark that the file itself says, if it does.
    """
    head = text[:100_000].splitlines(keepends=True)
    held = [i for i, line in enumerate(head) if line.strip()][:50]
    lines = [head[i] for i in held]
    for above in range(min(len(lines) - 1, _HIGHEST)):
        try:
            rows = list(csv.reader(lines[above:], delimiter=said or separator(lines[above:], usual)))
        except csv.Error:
            return text
        if is_header(rows):
            if not above or not _names_columns(rows[0]):
                return text
            say_titles(str(path), [(held[i] + 1, lines[i].strip().rstrip(",;\t|")) for i in range(above)])
            return "\n" * held[above] + "".join(head[held[above] :]) + text[sum(map(len, head)) :]
    return text


def is_header(rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether the first of some rows is no title: it fills more than one cell, and more than half of those that the others have.

    One cell that is not the first names the only column beside numbers of rows.

    >>> (
    ...     is_header([["Sales"], ["a", "b"], ["1", "2"]]),
    ...     is_header([["a", "b"], ["1", "2"]]),
    ...     is_header([["", "town"], ["a", "Ulm"]]),
    ... )
    (False, True, True)
    """
    filled = sum(map(bool, map(_word, rows[0])))
    if filled == 1 and not _word(rows[0][0]):
        return True
    widths = Counter(max((i + 1 for i, cell in enumerate(row) if _word(cell)), default=0) for row in rows[1:])
    return filled > 1 and 2 * filled > max(widths.most_common(1)[0][0] if widths else 0, 1)


def _names_columns(row: Sequence[Any]) -> bool:
    """Return whether cells may name columns below a title: none is a number."""
    return all(np.isnan(number(_word(cell))) for cell in row)


def titles_in(rows: Sequence[Sequence[Any]]) -> int:
    """Return how many of the first rows of a sheet stand above its header."""
    found = next((i for i in range(min(len(rows) - 1, _HIGHEST)) if is_header(rows[i:])), 0)
    return found if found and _names_columns(rows[found]) else 0


def say_titles(path: str, titles: Sequence[tuple[int, str]]) -> None:
    """Warn of titles, each with its line, if there are any."""
    if not titles:
        return
    lines = f"lines {titles[0][0]} to {titles[-1][0]}" if len(titles) > 1 else f"line {titles[0][0]}"
    more, verbs = (", ...", "stand|are") if len(titles) > 1 else ("", "stands|is")
    one, other = verbs.split("|")
    warnings.warn(
        f"{path}: {lines} ({short(titles[0][1])!r}{more}) {one} above the header and {other} passed over.", stacklevel=5
    )


def without_units(frame: Any, path: Path, line: int) -> tuple[Any, int]:
    """Return a table without the units or types that stand below its header, and the line of its first row; a warning says them.

    Every cell of such a line is empty or a unit, and of the columns with one at least one is of numbers from there on.

    Args:
        frame: the table.
        path: of its file.
        line: that of its first row.
    """
    first = [_word(cell) for cell in frame.iloc[0]] if len(frame) > 1 else []
    units = [i for i, word in enumerate(first) if word.lower() not in _NONE]
    if not units or not all(_is_unit(first[i]) for i in units):
        return frame, line
    if not any(_numeric(frame.iloc[1 : _BELOW + 1, i]) for i in units):
        return frame, line
    shown = ", ".join(repr(short(first[i], 20)) for i in units[:3]) + ", ..." * (len(units) > 3)
    warnings.warn(f"{path}: line {line} ({shown}) holds units or types and is passed over.", stacklevel=4)
    return frame.iloc[1:].infer_objects(), line + 1


def _is_unit(word: str) -> bool:
    """Return whether a word is a unit, alone or in brackets; (3) is a number.

    >>> [_is_unit(w) for w in ("[m]", "kWh", "(10^3 kg)", "(3)", "Anna", "12")]
    [True, True, True, False, False, False]
    """
    if _BRACKETED.fullmatch(word):
        return bool(np.isnan(number(word[1:-1])))
    return bool(_UNITS.fullmatch(word))


def _numeric(column: Any) -> bool:
    cells = Cells(column)
    held = ~cells.absent
    return bool(held.any() and np.isfinite(cells.own_numbers[held]).mean() >= 0.9)


def _word(cell: Any) -> str:
    return "" if cell is None or cell != cell else str(cell).strip()
