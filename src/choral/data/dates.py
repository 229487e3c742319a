"""Dates and times of the day as people and programs write them in cells: 2024-03-01T00:37:00Z, 1/13/23, Jan 2023, 2023-W05, 1:30 PM.

A word is taken apart into a date, a time and a zone once; which of the formats its date has is decided for all words of a
column together (`choral.data.cells`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
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
    "%d-%b-%y": "day first" + _SHORT,
    "%b %d, %Y": "month first",
    "%b %Y": "months",
    "%b-%y": "months" + _SHORT,
    "%m/%Y": "months",
    "%m.%Y": "months",
    "%G-W%V-%u": "weeks",
    "Q%m %Y": "quarters",
}
"""Formats of dates that are tried, the first of those that read equally many, and how they are said; times may follow. Weeks are written with their first day, quarters with their first
month, and names of months with three letters (`_plain`)."""
_OLDER = {"%d %B %Y": "%d %b %Y", "%d-%b-%Y": "%d %b %Y", "%B %d, %Y": "%b %d, %Y", "%B %Y": "%b %Y"}
_MONTH = r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec|january|february|march|april|august|september|october|november|december)\.?"
_DAY = r"\d{1,2}(?:st|nd|rd|th|\.)?"
_WORDED = (
    rf"{_DAY}[ /-]?{_MONTH},?[ /-]?(?:\d{{4}}|\d{{2}})|{_MONTH} {_DAY},? \d{{4}}|\d{{4}}-{_MONTH}-\d{{1,2}}|{_MONTH}[ -]\d{{4}}|{_MONTH}-\d{{2}}|"
    rf"\d{{4}}[ -]{_MONTH}"
)
_DATE = (
    r"\d{4}(?P<a>[-/.])\d{1,2}(?P=a)\d{1,2}|\d{1,2}(?P<b>[-/.])\d{1,2}(?P=b)\d{4}|\d{1,2}/\d{1,2}/\d{2}|\d{2}\.\d{2}\.\d{2}|\d{2}[/.]\d{4}|"
    rf"(?:19|20)\d{{2}}[/-]\d{{2}}|(?:19|20)\d{{6}}|{_WORDED}"
)
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d(?:[.,]\d+)?))?(?:\s?(?P<half>[ap])\.?m\.?)?"
_ZONES = {"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "CET": 1, "CEST": 2}
_ZONE = rf"(?P<zone>Z|UTC|GMT|{'|'.join(_ZONES)}|[+-]\d{{2}}(?::?\d{{2}})?)"
_WEEK = re.compile(r"((?:19|20)\d{2})-?W(\d{2})(?:-?([1-7]))?", re.IGNORECASE)
_QUARTER = re.compile(
    r"(?P<early>(?:19|20)\d{2})?[ -]?Q(?P<quarter>[1-4])(?(early)|[ /-]?(?P<late>(?:19|20)\d{2}))", re.IGNORECASE
)
_NAMED = r"(?:(?:mon|tue|tues|wed|wednes|thu|thurs|fri|sat|satur|sun)(?:day)?\.?,? +)?"
_MOMENT = re.compile(rf"{_NAMED}(?P<date>{_DATE})(?:(?:T|,?\s+|:){_TIME}(?:\s?{_ZONE})?)?", re.IGNORECASE)
_DIGITS = re.compile(
    rf"(?P<date>(?:19|20)\d{{6}})(?:T?(?P<hour>\d{{2}})(?P<minute>[0-5]\d)(?P<second>[0-5]\d)?{_ZONE}?)?(?:\.0)?"
)  # as numbers with gaps between them have it
_LATE = re.compile(
    rf"{_NAMED}({_MONTH}) +(\d{{1,2}}) ([\d:.]+(?: [A-Z]{{3,4}})?) (\d{{4}})", re.IGNORECASE
)  # the year is last
_UNREAD = re.compile(r"\d{2}-\d{2}-\d{2}|(?:19|20)\d{2}([-_/])\d{2}\1\d{2}.*")
_HOURS = _TIME.replace(r"\d{1,2}):", r"\d{1,4}):", 1)
_CLOCK = re.compile(rf"(?P<sign>[-+])?(?:(?P<days>\d+) days?,? \+?)?{_HOURS}", re.IGNORECASE)
_SPAN = re.compile(  # 1h 30m; capitals alone would be codes
    r"(?=\d)(?:(\d+)\s?d(?:ays?)?,?\s*)?(?:(\d+(?:\.\d+)?)\s?h(?:rs?|ours?)?,?\s*)?(?:(\d+(?:\.\d+)?)\s?m(?:ins?|inutes?)?,?\s*)?"
    r"(?:(\d+(?:\.\d+)?)\s?s(?:ecs?|econds?)?)?"
)
_ISO_SPAN = re.compile(r"P(?=.*\d)(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
IN_NAMES = re.compile(
    r"time|date|datum|fecha|epoch|unix|stamp|when|seconds|millis|(?:^|[\W_])(?:ts|dt|day|ymd|yyyymmdd)(?:$|[\W_])",
    re.IGNORECASE,
)
"""What the names of columns that tell a time have in them."""
STAND_INS = tuple(
    float(np.datetime64(day, "D").astype(int))
    for day in (
        "1753-01-01",
        "1899-12-30",
        "1899-12-31",
        "1900-01-01",
        "1970-01-01",
        "2099-12-31",
        "2999-12-31",
        "9999-12-31",
    )
)
"""Days, since 1970, that databases write for no date."""
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
    matched = _DIGITS.fullmatch(word) or _MOMENT.fullmatch(word)
    if matched is None and word[-4:].isdecimal():
        matched = _MOMENT.fullmatch(_LATE.sub(r"\1 \2, \4 \3", word))
    if matched is None:
        return _plain(word), 0.0
    parts = matched.groupdict()
    if parts["hour"] and int(parts["hour"]) > (12 if parts.get("half") else 24):
        return "", 0.0
    date = parts["date"]
    plain = date if date.upper() == date.lower() else _plain(date)  # most have no letters
    return plain, (_hour(parts) - _zone(parts["zone"])) / 24 if parts["hour"] else 0.0


def _zone(name: str | None) -> float:
    """Return the hours that a zone is ahead of UTC."""
    if not name or name[0] not in "+-":
        return _ZONES.get((name or "").upper(), 0.0)
    digits = name[1:].replace(":", "").ljust(4, "0")
    return float(name[0] + "1") * (int(digits[:2]) + int(digits[2:]) / 60)


@lru_cache(maxsize=10_000)
def _plain(date: str) -> str:
    """Return a date with a week, a quarter or the name of a month as `FORMATS` have it; empty for anything else.

    >>> _plain("2023-W05"), _plain("2023W053"), _plain("Q2 2023"), _plain("2023-Q4"), _plain("Q2")
    ('2023-W05-1', '2023-W05-3', 'Q04 2023', 'Q10 2023', '')
    >>> (
    ...     _plain("20th December, 2021"),
    ...     _plain("Sept. 5 2021"),
    ...     _plain("2021-Dec-20"),
    ...     _plain("JAN-23"),
    ...     _plain("5-Jan-23"),
    ... )
    ('20 Dec 2021', 'Sep 5, 2021', '20 Dec 2021', 'Jan-23', '5-Jan-23')
    """
    week, quarter = _WEEK.fullmatch(date), _QUARTER.fullmatch(date)
    if week:
        return f"{week[1]}-W{week[2]}-{week[3] or 1}"
    if quarter:
        return f"Q{3 * int(quarter['quarter']) - 2:02d} {quarter['early'] or quarter['late']}"
    return _worded(date) if re.fullmatch(_WORDED, date, re.IGNORECASE) else ""


def _worded(date: str) -> str:
    """Return a date that names its month, with three letters of it: day and year, year and day, or the year alone around it."""
    month = next(part for part in re.findall(r"[a-z]{3,}", date.lower())).capitalize()[:3]
    numbers = re.findall(r"\d+", date)
    first = date[:1].isalpha()
    if len(numbers) == 1:
        return f"{month}-{numbers[0]}" if len(numbers[0]) == 2 else f"{month} {numbers[0]}"
    if first:
        return f"{month} {numbers[0]}, {numbers[1]}"
    day, year = reversed(numbers) if len(numbers[0]) == 4 else numbers
    return f"{day} {month} {year}" if len(year) == 4 else f"{day}-{month}-{year}"


def _hour(parts: Mapping[str, str]) -> float:
    """Return the hours that a time says."""
    hour = int(parts["hour"])
    if parts.get("half"):
        hour = hour % 12 + 12 * (parts["half"].lower() == "p")
    return hour + int(parts["minute"]) / 60 + float((parts["second"] or "0").replace(",", ".")) / 3600


def hours(words: Iterable[str]) -> np.ndarray:
    """Return times of the day and durations as hours; NaN where a word is neither.

    >>> hours(["06:30", "1:30 PM", "100:00:36", "2 days 01:00:00", "-0:45", "1h 30m", "PT36S", "25%"]).tolist()
    [6.5, 13.5, 100.01, 49.0, -0.75, 1.5, 0.01, nan]
    """
    known: dict[str, float] = {}
    return np.array([known[w] if w in known else known.setdefault(w, _length(w)) for w in words], np.float64)


def _length(word: str) -> float:
    parts = _CLOCK.fullmatch(word)
    span = _SPAN.fullmatch(word) or _ISO_SPAN.fullmatch(word) if parts is None else None
    if span:
        return sum(float(part or 0) * length for part, length in zip(span.groups(), (24, 1, 1 / 60, 1 / 3600)))
    if parts is None or (parts["half"] and int(parts["hour"]) > 12):
        return np.nan
    return (24 * int(parts["days"] or 0) + _hour(parts.groupdict())) * (-1 if parts["sign"] == "-" else 1)


def zones_of(words: Iterable[str]) -> tuple[str, str] | None:
    """Return a moment that names its zone and one that does not, if some words do and some do not.

    >>> zones_of(["2023-01-01 10:00Z", "2023-01-02 10:00"]), zones_of(["2023-01-01 10:00Z", "2023-01-02"])
    (('2023-01-01 10:00Z', '2023-01-02 10:00'), None)
    """
    known: dict[bool, str] = {}
    for word in words:
        parts = _DIGITS.fullmatch(word) or _MOMENT.fullmatch(word)
        if parts and parts["hour"]:
            known.setdefault(bool(parts["zone"]), word)
        if len(known) == 2:
            return known[True], known[False]
    return None


def is_month(word: str) -> bool:
    """Return whether a word is a number that may be a month of a year, 01.2023.

    >>> is_month("01.2023"), is_month("13.2023"), is_month("1.2023")
    (True, False, False)
    """
    return bool(re.fullmatch(r"(?:0[1-9]|1[0-2])\.(?:19|20)\d{2}", word))


def looks_unread(words: Sequence[str]) -> bool:
    """Return whether nearly all words look like dates that have no format: 20-12-21, 2021_12_20.

    >>> looks_unread(["20-12-21", "21-12-21"]), looks_unread(["a", "b"])
    (True, False)
    """
    return bool(words) and sum(map(bool, map(_UNREAD.fullmatch, words))) >= MOSTLY * len(words)


def is_compact(word: str) -> bool:
    """Return whether a word is nothing but digits, and may be a day or a moment.

    >>> is_compact("20230131"), is_compact("20230131101500"), is_compact("2023-01-31"), is_compact("20239999")
    (True, True, False, True)
    """
    return bool(_DIGITS.fullmatch(word)) and word.removesuffix(".0").isdecimal()


def known_form(form: str) -> str:
    """Return a format as `FORMATS` has it: older files named the time as well, and whole names of months.

    >>> known_form("%d-%b-%Y %H:%M"), known_form("ISO8601")
    ('%d %b %Y', 'ISO8601')
    """
    plain = form.split(" %H")[0]
    return _OLDER.get(plain, plain)


def days(words: Moments, form: str) -> np.ndarray:
    """Return dates of one format as days since 1970, with their fractions; NaN where there is none.

    >>> days(moments(["1970-01-02 06:00", "1970-02", "2/1/1970"]), "ISO8601").tolist()
    [1.25, 31.0, nan]
    """
    import pandas as pd

    plain = known_form(form)
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
