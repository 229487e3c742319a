"""Numbers as people write them in a cell: with currency, thousands, decimal commas, shares, thousands as a letter, a unit."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

_SPACES = re.compile(r"(?<=\d)[\s\u00a0\u2009\u202f'\u2019`](?=\d{3}(?!\d))")
_MONEY = re.compile(
    r"\b(?:US|R|A|C|CA|AU|HK|NZ|NT|S|MX)\$|[$€£¥₹₽₩]|\bRs\b\.?|\b(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|INR|CNY|SEK|NOK|DKK|PLN)\b",
    re.IGNORECASE,
)
_NAMES = {"USD": "$", "US$": "$", "RS": "₹", "RS.": "₹", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹"}
_PLAIN = re.compile(r"\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d*)?")  # or of lakhs: 12,34,567
_WHOLE = re.compile(r"(?<=\d)[.,](?:[-\u2013\u2014]|--)$")  # 5.-- and 5,- have no cents
_LEDGER = re.compile(r"\d[\d.,]*[.,]\d+-")  # 2- is a grade, 2019- a span of years
_COMMA = re.compile(r"(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d*)?")
SHOWS_COMMA = re.compile(r"(?<![\d.,])0,\d|\d,(?:\d{1,2}|\d{4,})\D*$|\.\d{3},\d|\d\.\d{3}\.\d{3}")
SHOWS_POINT = re.compile(r"(?<![\d.,])0\.\d|\d\.(?:\d{1,2}|\d{4,})\D*$|,\d{3}\.\d|\d,\d{3},\d{3}")
DOUBTFUL = re.compile(r"\D*\d{1,3}[.,]\d{3}\D*")  # thousands, or three decimals
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "mn": 1e6, "Mio": 1e6, "B": 1e9, "bn": 1e9, "Mrd": 1e9}
_FACTOR = re.compile(rf"(?<=[\d.,])\s?({'|'.join(_FACTORS)})\.?$")
_UNIT = re.compile(r"(.*\d[.,]?)\s?([^\W\d_]{1,12}[²³23]?(?:/[^\W\d_]{1,8}[²³23]?)?|°\s?[CF])\.?")
_BOUND = re.compile(r"(?:[<>]=?|=[<>]|[≤≥])(.*\d.*)|(.*\d.*)\+")
STAND_INS = (-99, -999, -9999, -99999, -999999, 999, 9999, 99999, 999999)  # for cells without a value
_MOSTLY = 0.9  # of the words must have a unit for it to be that of the column


def number(word: str, *, comma: bool = False, unit: str | None = None) -> float:
    """Return the number a word means, NaN if it means none.

    Args:
        word: a cell.
        comma: whether decimals follow a comma.
        unit: what may stand behind the number, or a currency, which may stand before it; a share (%) must carry its sign. Empty for
            nothing but the number, None for any currency and %.

    >>> [
    ...     number(w)
    ...     for w in ("$54,321", "1 234.5", "(3)", "12.5%", "-€7", "1e3", "3.1k", "1'234'567", "7.5-", "12 Main St")
    ... ]
    [54321.0, 1234.5, -3.0, 0.125, -7.0, 1000.0, 3100.0, 1234567.0, -7.5, nan]
    >>> number("1.234,5", comma=True), number("1,234,5"), number("1,2.3"), number("5 kg"), number("5 kg", unit="kg")
    (1234.5, nan, nan, nan, 5.0)
    >>> (
    ...     number("5 USD", unit="$"),
    ...     number("5", unit="$"),
    ...     number("€5", unit="$"),
    ...     number("5", unit="%"),
    ...     number("5%", unit=""),
    ... )
    (5.0, 5.0, nan, nan, nan)
    """
    word = word.strip()
    if word.startswith("(") and word.endswith(")"):
        return -number(word[1:-1], comma=comma, unit=unit)
    parts = _UNIT.fullmatch(word) if unit else None
    bare = parts[1] if parts and parts[2] == unit else word
    share, money = bare.endswith("%"), currency(bare)
    if unit is not None and (share != (unit == "%") or money not in ("", unit)):
        return np.nan
    bare = _WHOLE.sub("", _SPACES.sub("", _MONEY.sub("", bare).strip()).replace("\u2212", "-"))
    factor = _FACTOR.search(bare)
    bare = bare.removesuffix("%").strip() if share or not factor else bare[: factor.start()]
    if _LEDGER.fullmatch(bare):
        bare = "-" + bare[:-1]
    sign = -1.0 if bare[:1] == "-" else 1.0
    bare = bare[1:].strip() if bare[:1] in ("+", "-") else bare
    found = sign * _plain_number(bare, comma) / (100 if share else 1)
    return found * _FACTORS[factor[1]] if factor and not share else found


def _plain_number(bare: str, comma: bool) -> float:
    """Return the number that digits and their marks mean, NaN if they mean none."""
    if comma and _COMMA.fullmatch(bare):
        bare = bare.replace(".", "").replace(",", ".")
    elif not comma and _THOUSANDS.fullmatch(bare):
        bare = bare.replace(",", "")
    return float(bare) if _PLAIN.fullmatch(bare) else np.nan


def factors_in(words: Iterable[str]) -> str:
    """Return the letters that stand for thousands or more behind some numbers, in words.

    >>> factors_in(["3.1k", "950", "2M", "5 kg"])
    'k = 1,000, M = 1,000,000'
    """
    found = {match[1] for w in words if (match := _FACTOR.search(w)) and not np.isnan(number(w))}
    return ", ".join(f"{letter} = {_FACTORS[letter]:,.0f}" for letter in sorted(found, key=lambda n: (_FACTORS[n], n)))


def is_share(word: str) -> bool:
    """Return whether a word ends with %, also where brackets make it negative.

    >>> is_share("5 %"), is_share("(5%)"), is_share("5")
    (True, True, False)
    """
    return word.removesuffix(")").endswith("%")


def currency(word: str) -> str:
    """Return the currency that a word names, by its sign where it has one; empty for none.

    >>> currency("$5"), currency("5 usd"), currency("12 CHF"), currency("5 kg")
    ('$', '$', 'CHF', '')
    """
    found = _MONEY.search(word)
    return _NAMES.get(found[0].upper(), found[0].upper()) if found else ""


def _unit_in(word: str) -> str | None:
    """Return what makes a word more than a number: %, a currency or a unit; empty for a number alone, None for no number."""
    if not (np.isnan(number(word)) and np.isnan(number(word, comma=True))):
        return "%" if is_share(word) else currency(word)
    parts = _UNIT.fullmatch(word.strip())
    known = parts and not (np.isnan(number(parts[1])) and np.isnan(number(parts[1], comma=True)))
    return parts[2] if parts and known else None


def bound_in(word: str) -> str:
    """Return the number, as it is written, that a word bounds from above or below; empty for a word that is no bound.

    >>> [bound_in(w) for w in ("<0.5", ">= 3 kg", "≤1,5", "65+", "3", "A+", "<5 or more>")]
    ['0.5', '3 kg', '1,5', '65', '', '', '']
    """
    if word[:1] not in "<>=≤≥" and word[-1:] != "+":  # nearly all words, which must not take long
        return ""
    found = _BOUND.fullmatch(word)
    bare = (found[1] or found[2]).strip() if found else ""
    return bare if bare and _unit_in(bare) is not None else ""


def units_in(words: Iterable[str]) -> Counter[str]:
    """Return what stands behind or before the numbers of some words, and how often; empty for numbers alone.

    >>> units_in(["5 kg", "7kg", "500 g", "3.1k", "12", "12 Main St", "5%", "€5"])
    Counter({'kg': 2, '': 2, 'g': 1, '%': 1, '€': 1})
    """
    found = (_unit_in(word) for word in words)
    return Counter(unit for unit in found if unit is not None)


def currency_of(found: Counter[str]) -> str:
    """Return the currency of nearly all amounts that name one; empty if they name several, or none does.

    >>> currency_of(units_in(["$5", "7 USD", "9"])), currency_of(units_in(["$5", "€7"]))
    ('$', '')
    """
    named = Counter({unit: count for unit, count in found.items() if unit and currency(unit)})
    return next((unit for unit, count in named.most_common(1) if count >= _MOSTLY * named.total()), "")


def unit_of(words: Sequence[str]) -> str:
    """Return the unit that nearly all words have behind a number, or the currency of nearly all amounts; empty if there is none.

    >>> (
    ...     unit_of(["5 kg", "7.5 kg"]),
    ...     unit_of(["5 kg", "500 g"]),
    ...     unit_of(["5", "7"]),
    ...     unit_of(["5", "$7"]),
    ...     unit_of(["5", "7%"]),
    ... )
    ('kg', '', '', '$', '')
    """
    found = units_in(words)
    return next((u for u, n in found.most_common(1) if u and n >= _MOSTLY * len(words)), "") or currency_of(found)


def mixed_units(words: Sequence[str]) -> tuple[str, str] | None:
    """Return two words that are numbers in different units, if nearly all words of a column are such; codes (12A, 7C) and places (1st, 2nd) are not.

    >>> mixed_units(["5 kg", "500 g", "7"]), mixed_units(["5 kg", "7 kg"]), mixed_units(["12A", "7C"])
    (('5 kg', '500 g'), None, None)
    >>> mixed_units(["5%", "7"]), mixed_units(["$5", "7"]), mixed_units(["$5", "7 EUR"])
    (('5%', '7'), None, ('$5', '7 EUR'))
    """
    found = units_in(words)
    shares = found["%"] > 0  # beside which a number alone is in another unit
    named = [unit for unit, count in found.items() if (unit or shares) and count >= 0.05 * len(words)]
    if len(named) < 2 or len(found) > 9 or found.total() < _MOSTLY * len(words):
        return None
    if any(len(unit) == 1 and unit.isupper() for unit in found) or set(found) <= {"st", "nd", "rd", "th"}:
        return None
    one, other = (next(w for w in words if _unit_in(w) == unit) for unit in named[:2])
    return one, other


def mixed_decimals(words: Sequence[str]) -> tuple[str, str] | None:
    """Return two words of which one shows a decimal point and one a decimal comma, if nearly all words are numbers in one way or the other.

    >>> mixed_decimals(["0.5", "1,5", "2.5"]), mixed_decimals(["0.5", "2.5"]), mixed_decimals(["0.5", "1,5", "soon"])
    (('0.5', '1,5'), None, None)
    """
    points, commas = ([w for w in words if shows.search(w)] for shows in (SHOWS_POINT, SHOWS_COMMA))
    if not points or not commas or min(len(points), len(commas)) < 0.05 * len(words):
        return None
    read = sum(not (np.isnan(number(w)) and np.isnan(number(w, comma=True))) for w in words)
    return (points[0], commas[0]) if read >= _MOSTLY * len(words) else None


def writes_comma(words: Iterable[str]) -> bool:
    """Return whether numbers are written with a decimal comma, as far as any of them shows it.

    >>> writes_comma(["1,5", "2"]), writes_comma(["1,500", "2"]), writes_comma(["1.234,50"]), writes_comma(["1,234.50"])
    (True, False, True, False)
    """
    held = [w for w in words if "," in w or "." in w]
    return any(map(SHOWS_COMMA.search, held)) and not any(map(SHOWS_POINT.search, held))


def groups_thousands(words: Sequence[str], *, comma: bool = False) -> bool:
    """Return whether numbers have marks between thousands as well as decimals, but never exactly three of these.

    >>> groups_thousands(["$6,310.30", "12"]), groups_thousands(["6.31", "12"]), groups_thousands(["6,310.305"])
    (True, False, False)
    """
    thousands, point = (r"\.", ",") if comma else (",", r"\.")
    known = (rf"\d{thousands}\d{{3}}(?!\d)", rf"\d{point}\d+\D*$", rf"\d{point}\d{{3}}\D*$")
    marked, decimals, three = (any(re.search(pattern, word) for word in words) for pattern in known)
    return marked and decimals and not three


def stand_in(values: np.ndarray, known: Iterable[float] = STAND_INS) -> float | None:
    """Return a number that may stand for no value: one that is known to, more than once, far below or above all others.

    >>> stand_in(np.array([-999.0, 2.0, 5.0, -999.0])), stand_in(np.array([-999.0, 2.0, -900.0, -999.0]))
    (-999, None)
    """
    held = values[np.isfinite(values)]
    for code in known:
        rest, count = held[held != code], int((held == code).sum())
        if count > 1 and len(rest) and max(rest.min() - code, code - rest.max()) > np.ptp(rest):
            return code
    return None
