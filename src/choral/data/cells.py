"""Cells of a table as people write them: blanks, numbers with currency and thousands, flags, dates.

Each function takes a pandas series and answers for the whole of it. Nothing here decides what a column is: that is
`choral.data.recognition`.
"""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

LARGEST = 1e30  # of a number; beyond it float32 cannot square what a network sees
_EMPTY = ("", "?", "na", "n/a", "n.a.", "nan", "null", "#n/a", "<na>")
_BLANKS = (*_EMPTY, "none", "-", "--", ".", "missing")
_SPACES = re.compile(r"(?<=\d)[\s\u00a0\u2009\u202f'](?=\d{3}(?!\d))")
_MONEY = re.compile(r"[$€£¥₹₽₩]|\b(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|INR|CNY|SEK|NOK|DKK|PLN)\b", re.IGNORECASE)
_PLAIN = re.compile(r"\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_COMMA = re.compile(r"(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d*)?")
_SHOWS_COMMA = re.compile(r"\d,(?:\d{1,2}|\d{4,})\D*$|\.\d{3},\d|\d\.\d{3}\.\d{3}")
_SHOWS_POINT = re.compile(r"\d\.(?:\d{1,2}|\d{4,})\D*$|,\d{3}\.\d|\d,\d{3},\d{3}")
FLAGS = (("yes", "no"), ("true", "false"), ("y", "n"), ("t", "f"), ("on", "off"))
_DATE = re.compile(r"\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{1,2} \w{3,9} \d{4}|\w{3,9} \d{1,2}, \d{4})\b")
FORMATS = {
    "ISO8601": "year first",
    "%Y/%m/%d": "year first",
    "%m/%d/%Y": "month first",
    "%d/%m/%Y": "day first",
    "%d.%m.%Y": "day first",
    "%d-%m-%Y": "day first",
    "%m-%d-%Y": "month first",
    "%m/%d/%Y %H:%M": "month first",
    "%d/%m/%Y %H:%M": "day first",
    "%d.%m.%Y %H:%M": "day first",
    "%m/%d/%Y %H:%M:%S": "month first",
    "%d/%m/%Y %H:%M:%S": "day first",
    "%d.%m.%Y %H:%M:%S": "day first",
    "%d %b %Y": "day first",
    "%d %B %Y": "day first",
    "%b %d, %Y": "month first",
    "%B %d, %Y": "month first",
}
"""Formats of dates that are tried, in this order, and how they are said."""


def texts(cells: Any) -> np.ndarray:
    """Return every cell as text without spaces around it; empty for cells without a value."""
    held = cells.astype(object).where(cells.notna().to_numpy(), "").to_numpy()
    return np.array([str(value).strip() for value in held], dtype=object)


def blank(cells: Any, *, target: bool = False) -> np.ndarray:
    """Return which cells hold no value: empty, or a word people write for that.

    Args:
        cells: a column.
        target: whether words that may well name a class ('none', 'missing', '-') count as values.
    """
    none = np.asarray(cells.isna().to_numpy(), bool)
    if not _is_text(cells):
        return none
    words = _EMPTY if target else _BLANKS
    return none | np.array([value.lower() in words for value in texts(cells)], bool)


def lines(cells: Any, which: np.ndarray) -> str:
    """Return the first of some cells' places as people count them in a file: the header is line 1."""
    found = [str(i + 2) if isinstance(i, int) else str(i) for i in cells.index[which][:5].tolist()]
    return f"line{'s' if len(found) > 1 else ''} " + ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")


def _is_text(cells: Any) -> bool:
    return cells.dtype.kind == "O" or str(cells.dtype) in ("str", "string", "category")


def is_number(cells: Any) -> bool:
    """Return whether a column has a type of numbers."""
    return cells.dtype.kind in "fiu"


def is_flag(cells: Any) -> bool:
    """Return whether a column has the type of true and false."""
    return cells.dtype.kind == "b"


def is_date(cells: Any) -> bool:
    """Return whether a column has the type of dates."""
    return cells.dtype.kind == "M" or (
        cells.dtype.kind == "O"
        and {type(v).__name__ for v in cells.dropna()} in ({"date"}, {"datetime"}, {"Timestamp"})
    )


def writes_comma(words: Iterable[str]) -> bool:
    """Return whether numbers are written with a decimal comma, as far as any of them shows it.

    >>> writes_comma(["1,5", "2"]), writes_comma(["1,500", "2"]), writes_comma(["1.234,50"]), writes_comma(["1,234.50"])
    (True, False, True, False)
    """
    held = [w for w in words if "," in w or "." in w]
    return any(map(_SHOWS_COMMA.search, held)) and not any(map(_SHOWS_POINT.search, held))


def number(word: str, *, comma: bool = False) -> float:
    """Return the number a word means, NaN if it means none.

    >>> [number(w) for w in ("$54,321", "1 234.5", "(3)", "12.5%", "-€7", "1e3", "12 Main St")]
    [54321.0, 1234.5, -3.0, 0.125, -7.0, 1000.0, nan]
    >>> number("1.234,5", comma=True), number("1,234,5"), number("1,2.3")
    (1234.5, nan, nan)
    """
    word = word.strip()
    if word.startswith("(") and word.endswith(")"):
        return -number(word[1:-1], comma=comma)
    bare = _SPACES.sub("", _MONEY.sub("", word).strip()).replace("\u2212", "-")
    share = bare.endswith("%")
    bare = bare.removesuffix("%").strip()
    sign = -1.0 if bare[:1] == "-" else 1.0
    bare = bare[1:].strip() if bare[:1] in ("+", "-") else bare
    if comma and _COMMA.fullmatch(bare):
        bare = bare.replace(".", "").replace(",", ".")
    elif not comma and _THOUSANDS.fullmatch(bare):
        bare = bare.replace(",", "")
    if not _PLAIN.fullmatch(bare):
        return np.nan
    return sign * float(bare) / (100 if share else 1)


def numbers(cells: Any, *, comma: bool = False) -> np.ndarray:
    """Return a column's numbers in float64; NaN where there is none, also where a word is not a number."""
    if is_number(cells) or is_flag(cells):
        return np.asarray(cells.to_numpy(np.float64, na_value=np.nan))
    words = texts(cells)
    known = {word: number(word, comma=comma) for word in set(words)}
    return np.array([known[word] for word in words], np.float64)


def date_format(cells: Any) -> str | None:
    """Return the first of the formats that reads at least nine in ten cells, None if none does; '' for a column of dates."""
    if is_date(cells):
        return ""
    words = [w for w in texts(cells)[~blank(cells)] if w]
    if not words or not all(map(_DATE.match, words[:20])):
        return None
    return next((f for f in FORMATS if np.isfinite(_days(words, f)).mean() >= 0.9), None)


def days(cells: Any, form: str) -> np.ndarray:
    """Return dates as days since 1970, with their fractions; NaN where there is none."""
    if is_date(cells):
        return _days(cells, None)
    return _days(texts(cells), form or "ISO8601")


def _days(cells: Any, form: str | None) -> np.ndarray:
    import pandas as pd

    if form is None:
        moments = pd.to_datetime(pd.Series(cells), errors="coerce", utc=True)
    else:
        moments = pd.to_datetime(pd.Series(cells, dtype=object), errors="coerce", format=form, utc=True)
    found = moments.to_numpy("datetime64[s]")
    whole = found.astype(np.int64).astype(np.float64) / 86_400
    return np.where(np.isnat(found), np.nan, whole)
