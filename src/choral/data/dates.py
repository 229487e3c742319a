"""Dates and times of the day as people and programs write them in cells: 2024-03-01T00:37:00Z, 1/13/23, Jan 2023, 2023-W05, 1:30 PM.

A word is taken apart into a date, a time and a zone once; which of the formats its date has is decided for all words of a
column together (`choral.data.cells`).
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

_SHORT = ", years 1969 to 2068"
FORMATS = {
    "ISO8601": "year first",
    "%Y/%m/%d": "year first",
    "%Y.%m.%d": "year first",
    "%m/%d/%Y": "month first",
    "%d/%m/%Y": "day first",
    "%d.%m.%Y": "day first",
    "%d-%m-%Y": "day first",
    "%m-%d-%Y": "month first",
    "%m/%d/%y": "month first" + _SHORT,
    "%d/%m/%y": "day first" + _SHORT,
    "%d.%m.%y": "day first" + _SHORT,
    "%d %b %Y": "day first",
    "%d %B %Y": "day first",
    "%d-%b-%Y": "day first",
    "%d-%b-%y": "day first" + _SHORT,
    "%b %d, %Y": "month first",
    "%B %d, %Y": "month first",
    "%b %Y": "months",
    "%B %Y": "months",
    "%m/%Y": "months",
    "%G-W%V-%u": "weeks",
    "Q%m %Y": "quarters",
}
"""Formats of dates that are tried, the first of those that read equally many, and how they are said; times may follow. Weeks are written with their first day, quarters with their
first month (`_plain`)."""
_DATE = (
    r"\d{4}(?P<a>[-/.])\d{1,2}(?P=a)\d{1,2}|\d{1,2}(?P<b>[-/.])\d{1,2}(?P=b)\d{4}|\d{1,2}/\d{1,2}/\d{2}|\d{2}\.\d{2}\.\d{2}|\d{1,2}[ -][^\W\d]{3,9}[ -]\d{4}|"
    r"\d{1,2}-[^\W\d]{3}-\d{2}|[^\W\d]{3,9} \d{1,2}, \d{4}|[^\W\d]{3,9} \d{4}|\d{2}/\d{4}|(?:19|20)\d{2}-\d{2}|(?:19|20)\d{6}"
)
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d(?:[.,]\d+)?))?(?:\s?(?P<half>[ap])\.?m\.?)?"
_ZONE = r"(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)"
_WEEK = re.compile(r"((?:19|20)\d{2})-?W(\d{2})(?:-?([1-7]))?", re.IGNORECASE)
_QUARTER = re.compile(
    r"(?P<early>(?:19|20)\d{2})?[ -]?Q(?P<quarter>[1-4])(?(early)|[ /-]?(?P<late>(?:19|20)\d{2}))", re.IGNORECASE
)
_NAMED = r"(?:(?:mon|tue|tues|wed|wednes|thu|thurs|fri|sat|satur|sun)(?:day)?\.?,? +)?"
_MOMENT = re.compile(rf"{_NAMED}(?P<date>{_DATE})(?:(?:T|,?\s+){_TIME}(?:\s?{_ZONE})?)?", re.IGNORECASE)
_DIGITS = re.compile(
    rf"(?P<date>(?:19|20)\d{{6}})(?:T?(?P<hour>\d{{2}})(?P<minute>[0-5]\d)(?P<second>[0-5]\d)?(?P<half>p)?{_ZONE}?)?(?:\.0)?"
)  # as numbers with gaps between them have it
_HOURS = _TIME.replace(r"\d{1,2}):", r"\d{1,4}):", 1)
_CLOCK = re.compile(rf"(?P<sign>[-+])?(?:(?P<days>\d+) days?,? \+?)?{_HOURS}", re.IGNORECASE)
IN_NAMES = re.compile(
    r"time|date|datum|fecha|epoch|unix|stamp|when|seconds|millis|(?:^|[\W_])(?:ts|dt|day|ymd|yyyymmdd)(?:$|[\W_])",
    re.IGNORECASE,
)
"""What the names of columns that tell a time have in them."""
MOSTLY = 0.9
"""Part of the words that must be dates, or times, for their column to hold such."""


class Moments(NamedTuple):
    """Words taken apart: their dates as text, empty where there is none, and the rest of each as a part of a day."""

    dates: np.ndarray
    rest: np.ndarray


def moments(words: Iterable[str]) -> Moments:
    """Return words taken apart into dates and times; zones are counted back to UTC.

    >>> moments(["2024-03-01T12:00:00+06:00", "1/13/2023 6:00 PM", "Jan 2023", "soon"])
    Moments(dates=array(['2024-03-01', '1/13/2023', 'Jan 2023', ''], dtype=object), rest=array([0.25, 0.75, 0.  , 0.  ]))
    """
    known: dict[str, tuple[str, float]] = {}
    found = [known.get(word) or known.setdefault(word, _parted(word)) for word in words]
    return Moments(
        np.array([date for date, _ in found], dtype=object), np.array([rest for _, rest in found], np.float64)
    )


def _parted(word: str) -> tuple[str, float]:
    parts = _DIGITS.fullmatch(word) or _MOMENT.fullmatch(word)
    if parts is None:
        return _plain(word), 0.0
    if parts["hour"] and int(parts["hour"]) > (12 if parts["half"] else 24):
        return "", 0.0
    zone = 0.0
    if parts["zone"] and parts["zone"][0] in "+-":
        digits = parts["zone"][1:].replace(":", "").ljust(4, "0")
        zone = float(parts["zone"][0] + "1") * (int(digits[:2]) + int(digits[2:]) / 60)
    return parts["date"], ((_hour(parts) - zone) / 24 if parts["hour"] else 0.0)


def _plain(word: str) -> str:
    """Return a week with its first day and a quarter as its first month, as `FORMATS` have them; empty for anything else.

    >>> _plain("2023-W05"), _plain("2023W053"), _plain("Q2 2023"), _plain("2023-Q4"), _plain("Q2")
    ('2023-W05-1', '2023-W05-3', 'Q04 2023', 'Q10 2023', '')
    """
    week, quarter = _WEEK.fullmatch(word), _QUARTER.fullmatch(word)
    if week:
        return f"{week[1]}-W{week[2]}-{week[3] or 1}"
    return f"Q{3 * int(quarter['quarter']) - 2:02d} {quarter['early'] or quarter['late']}" if quarter else ""


def _hour(parts: re.Match[str]) -> float:
    """Return the hours that a time says."""
    hour = int(parts["hour"])
    if parts["half"]:
        hour = hour % 12 + 12 * (parts["half"].lower() == "p")
    return hour + int(parts["minute"]) / 60 + float((parts["second"] or "0").replace(",", ".")) / 3600


def hours(words: Iterable[str]) -> np.ndarray:
    """Return times of the day and durations as hours; NaN where a word is neither.

    >>> hours(["06:30", "1:30 PM", "100:00:36", "2 days 01:00:00", "-0:45", "25%"]).tolist()
    [6.5, 13.5, 100.01, 49.0, -0.75, nan]
    """
    known: dict[str, float] = {}
    return np.array([known[w] if w in known else known.setdefault(w, _length(w)) for w in words], np.float64)


def _length(word: str) -> float:
    parts = _CLOCK.fullmatch(word)
    if parts is None or (parts["half"] and int(parts["hour"]) > 12):
        return np.nan
    return (24 * int(parts["days"] or 0) + _hour(parts)) * (-1 if parts["sign"] == "-" else 1)


def is_compact(word: str) -> bool:
    """Return whether a word is nothing but digits, and may be a day or a moment.

    >>> is_compact("20230131"), is_compact("20230131101500"), is_compact("2023-01-31"), is_compact("20239999")
    (True, True, False, True)
    """
    return bool(_DIGITS.fullmatch(word)) and word.removesuffix(".0").isdecimal()


def days(words: Moments, form: str) -> np.ndarray:
    """Return dates of one format as days since 1970, with their fractions; NaN where there is none.

    >>> days(moments(["1970-01-02 06:00", "1970-02", "2/1/1970"]), "ISO8601").tolist()
    [1.25, 31.0, nan]
    """
    import pandas as pd

    plain = form.split(" %H")[0]  # older files named the time as well
    return _since(pd.to_datetime(pd.Series(words.dates, dtype=object), errors="coerce", format=plain)) + words.rest


def typed_days(cells: Any) -> np.ndarray:
    """Return a column that has the type of dates as days since 1970."""
    import pandas as pd

    return _since(pd.to_datetime(pd.Series(cells), errors="coerce", utc=True))


def _since(dates: Any) -> np.ndarray:
    found = dates.to_numpy("datetime64[s]")
    return np.where(np.isnat(found), np.nan, found.astype(np.int64).astype(np.float64) / 86_400)


def form_of(words: Moments) -> str | None:
    """Return the format that reads most of some words, at least nine in ten; None if none does.

    >>> form_of(moments(["1/13/23", "2/3/23 10:30"])), form_of(moments(["2023-01-13", "13/01/2023"]))
    ('%m/%d/%y', None)
    """
    if not len(words.dates) or (words.dates != "").mean() < MOSTLY:
        return None
    shares = {form: float(np.isfinite(days(words, form)).mean()) for form in FORMATS}
    best = max(shares, key=shares.__getitem__)  # the first of equal ones
    return best if shares[best] >= MOSTLY else None


def ways(words: Moments) -> tuple[int, int] | None:
    """Return the places of two words whose dates are written in different ways, if nearly all are dates and no way is that of most.

    >>> ways(moments(["2023-01-13", "13/01/2023"])), ways(moments(["2023-01-13", "soon"]))
    ((0, 1), None)
    """
    if not len(words.dates) or (words.dates != "").mean() < MOSTLY or form_of(words) is not None:
        return None
    read = {form: np.isfinite(days(words, form)) for form in FORMATS}
    first = max(read, key=lambda form: int(read[form].sum()))
    others = np.any(list(read.values()), axis=0) & ~read[first]
    if not read[first].any() or (read[first] | others).mean() < MOSTLY:
        return None
    return int(np.flatnonzero(read[first])[0]), int(np.flatnonzero(others)[0])


def turned(form: str) -> str:
    """Return a format with day and month the other way round; empty for those that leave no doubt.

    >>> turned("%d/%m/%Y"), turned("ISO8601"), turned("%d %b %Y"), turned("%m/%Y")
    ('%m/%d/%Y', '', '', '')
    """
    if not {"%d", "%m"} <= set(re.findall("%.", form)) or form.startswith("%Y"):
        return ""
    return form.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m")
