"""Cells of a table as people write them: blanks, numbers with currency and thousands, flags, dates.

`Cells` is one column of a table; each way to look at it is worked out once, for all rows together where they are written
plainly (300,000 rows of 15 columns take 8 s; cell by cell 27). Nothing here decides what a column is: that is
`choral.data.recognition`.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from choral.data import dates
from choral.data.numerals import (
    DOUBTFUL,
    SHOWS_COMMA,
    SHOWS_POINT,
    bound_in,
    currency_of,
    is_share,
    number,
    unit_of,
    units_in,
    writes_comma,
)

LARGEST = 1e30  # of a number; beyond it float32 cannot square what a network sees
_ERRORS = ("#div/0!", "#ref!", "#value!", "#name?", "#num!", "#null!", "#n/a")  # of spreadsheets
_EMPTY = ("", "?", "na", "n/a", "n.a.", "nan", "null", "<na>", *_ERRORS)
_BLANKS = (*_EMPTY, "none", "-", "--", ".", "missing")
_SAMPLE = 10_000  # different words that are looked at to see how numbers are written
FIRST_LINE = "choral: first line"  # what frames know of the file they come from: the line of their first row
SECONDS = "seconds"  # the unit of a column that has the type of spans of time
_CODE = re.compile(r"0\d+")
FLAGS = (("yes", "no"), ("true", "false"), ("y", "n"), ("t", "f"), ("on", "off"))
YES = (*(yes for yes, _ in FLAGS), "1", "1.0")
NO = (*(no for _, no in FLAGS), "0", "0.0")


def _cases(words: Iterable[str]) -> list[str]:
    """Return words as they are, in capitals, and with a capital first; these are the ways people write them."""
    return sorted({form for w in words for form in (w, w.upper(), w.capitalize(), w.title())} | {"NaN"})


def _holds_spans(series: Any) -> bool:
    from pandas.api.types import infer_dtype

    kind = series.dtype.kind
    return kind == "m" or (kind == "O" and infer_dtype(series, skipna=True) in ("timedelta", "timedelta64"))


def _in_seconds(series: Any) -> Any:
    import pandas as pd

    return pd.to_timedelta(series).dt.total_seconds()


class Cells:
    """One column of a table.

    Attributes:
        name: of the column.
        series: the pandas series; spans of time are numbers of seconds in it.
        is_span: whether the column has the type of spans of time.
    """

    def __init__(self, series: Any):
        self.is_span = _holds_spans(series)
        self.series, self.name = _in_seconds(series) if self.is_span else series, str(series.name)
        self._first_line: int | None = series.attrs.get(FIRST_LINE)
        self.usual: bool | None = None  # whether the file's other columns write decimal commas, as far as is known
        self._numbers: dict[tuple[bool, str], np.ndarray] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.series)

    @property
    def is_number(self) -> bool:
        """Whether the column has a type of numbers."""
        return self.series.dtype.kind in "fiu"

    @property
    def is_flag(self) -> bool:
        """Whether the column has the type of true and false."""
        return self.series.dtype.kind == "b"

    @property
    def is_category(self) -> bool:
        """Whether the column has the type of categories, whatever these are."""
        return str(self.series.dtype) == "category"

    @cached_property
    def is_date(self) -> bool:
        """Whether the column has the type of dates."""
        from pandas.api.types import infer_dtype

        return self.series.dtype.kind == "M" or infer_dtype(self.series, skipna=True) in (
            "date",
            "datetime",
            "datetime64",
        )

    @property
    def is_nested(self) -> bool:
        """Whether cells hold lists or structures."""
        odd = list | dict | tuple | np.ndarray | bytes
        return self.series.dtype.kind == "O" and any(isinstance(v, odd) for v in self.series.head(50))

    @cached_property
    def words(self) -> np.ndarray:
        """Every cell as text without spaces around it; empty for cells without a value."""
        if self.is_category:  # whose whole numbers would become 1.0 beside gaps
            names = [str(name).strip() for name in self.series.cat.categories]
            return np.array([*names, ""], dtype=object)[self.series.cat.codes.to_numpy()]
        held = self.series.to_numpy(object)
        none = self.series.isna().to_numpy()
        if none.any():
            held = np.where(none, "", held)
        found = np.empty(len(held), dtype=object)
        found[:] = [value.strip() if type(value) is str else str(value).strip() for value in held]
        return found

    @cached_property
    def different(self) -> list[str]:
        """The different words, in the order of their first rows."""
        import pandas as pd

        return list(pd.unique(pd.Series(self.words, dtype=object)))

    @cached_property
    def absent(self) -> np.ndarray:
        """Which cells hold no value: empty, or a word people write for that."""
        return self._without(_BLANKS)

    @cached_property
    def empty(self) -> np.ndarray:
        """The same, where words that may well name a class ('none', 'missing', '-') count as values."""
        return self._without(_EMPTY)

    def _without(self, blanks: tuple[str, ...]) -> np.ndarray:
        import pandas as pd

        none = np.asarray(self.series.isna().to_numpy(), bool)
        if self.is_number or self.is_flag or self.series.dtype.kind == "M":
            return none
        return none | pd.Series(self.words, dtype=object).isin(_cases(blanks)).to_numpy()

    @cached_property
    def held(self) -> list[str]:
        """The different words of cells that have a value."""
        import pandas as pd

        return list(pd.unique(pd.Series(self.words[~self.absent], dtype=object)))

    def numbers(self, *, comma: bool = False, unit: str = "") -> np.ndarray:
        """Return the numbers in float64; NaN where there is none, also where a word is not a number, or one in another unit.

        Amounts in any one currency are numbers where no unit is said, and so are shares without % if none of the cells has it.
        """
        if (comma, unit) not in self._numbers:
            self._numbers[comma, unit] = self._read(comma, unit)
        return self._numbers[comma, unit]

    @property
    def own_numbers(self) -> np.ndarray:
        """The numbers, read as the column itself shows that they are written."""
        return self.numbers(comma=self.comma, unit=self.unit)

    def _read(self, comma: bool, unit: str) -> np.ndarray:
        import pandas as pd

        if self.is_number or self.is_flag:
            return np.asarray(self.series.to_numpy(np.float64, na_value=np.nan))
        found = np.full(len(self), np.nan)
        if not comma:
            found = np.array(pd.to_numeric(pd.Series(self.words, dtype=object), errors="coerce"), np.float64)
        rest = ~np.isfinite(found) & ~self.absent  # an endless number is looked at again: 1e400 is one, 'inf' a word
        if unit == "%" and self._has_shares:
            rest, found = ~self.absent, np.full(len(self), np.nan)  # a number alone is in another unit
        if rest.any():
            own = self._unit_or_currency(unit)
            known = {word: number(word, comma=comma, unit=own) for word in set(self.words[rest])}
            found[rest] = [known[word] for word in self.words[rest]]
        if unit == SECONDS:
            found = np.where(np.isnan(found), 3600 * self.hours, found)
        return found

    def numbers_or_bounds(self, *, comma: bool = False, unit: str = "") -> np.ndarray:
        """Return the same, where a bound (<0.5, 3+) is the number it names."""
        found = self.numbers(comma=comma, unit=unit)
        if not self.bounds.any():
            return found
        own = self._unit_or_currency(unit)
        known = {word: number(bound_in(word), comma=comma, unit=own) for word in set(self.words[self.bounds])}
        return np.array([known.get(word, value) for word, value in zip(self.words, found)])

    @cached_property
    def bounds(self) -> np.ndarray:
        """Which cells hold a bound instead of a number: <0.5, >3, 3+."""
        found = np.zeros(len(self), bool)
        if not (self.is_number or self.is_flag or self.is_date):
            odd = np.isnan(self.numbers()) & ~self.absent
            found[odd] = [bool(bound_in(word)) for word in self.words[odd]]
        return found

    @cached_property
    def _figures(self) -> list[str]:
        """The first different words, bounds without their signs."""
        return [bound_in(word) or word for word in self.held[:_SAMPLE]]

    def _unit_or_currency(self, unit: str) -> str:
        return unit if unit and (unit != "%" or self._has_shares) else self._currency

    @cached_property
    def _has_shares(self) -> bool:
        return any(map(is_share, self.held))

    @cached_property
    def _currency(self) -> str:
        """The currency of nearly all amounts that name one; empty if they name several."""
        return currency_of(units_in(self._figures))

    @cached_property
    def doubtful(self) -> str:
        """A word that may be thousands or three decimals, if no word of the column tells which; else empty."""
        if self.is_number or self.is_flag:
            return ""
        marked = [w for w in self.held[:_SAMPLE] if "," in w or "." in w]
        shown = any(SHOWS_COMMA.search(w) or SHOWS_POINT.search(w) for w in marked)
        return marked[0] if marked and not shown and all(map(DOUBTFUL.fullmatch, marked)) else ""

    @cached_property
    def shows(self) -> bool | None:
        """Whether numbers show a decimal comma (True) or point (False); None where they show neither, or are none."""
        if self.is_number or self.is_flag:
            return None
        marked = [w for w in self._figures if "," in w or "." in w]
        comma, point = (any(map(p.search, marked)) for p in (SHOWS_COMMA, SHOWS_POINT))
        if (
            comma == point
            or np.isnan([number(w, comma=comma, unit=self.unit or None) for w in marked[:100]]).mean() > 0.1
        ):
            return None
        return comma

    @cached_property
    def comma(self) -> bool:
        """Whether numbers are written with a decimal comma."""
        if self.usual and self.doubtful:
            return True
        plain = self.is_number or self.is_flag or not (np.isnan(self.numbers()) & ~self.absent).any()
        shown = any("," in w for w in self.held[:_SAMPLE])
        return (not plain or shown) and writes_comma(self.held[:_SAMPLE])

    @cached_property
    def unit(self) -> str:
        """What stands behind nearly all numbers (kg, km/h, %), or the currency of all amounts; empty for none."""
        if self.is_span:
            return SECONDS
        return "" if self.is_number or self.is_flag or self.is_date else unit_of(self._figures)

    @cached_property
    def is_code(self) -> bool:
        """Whether whole numbers are written with zeros before them: 00123 is a code, not 123."""
        if self.is_number or self.is_flag or not any(map(_CODE.fullmatch, self.held)):
            return False
        values = self.own_numbers
        whole = values[np.isfinite(values)]
        return bool((whole == np.round(whole)).all())

    @cached_property
    def _moments(self) -> dates.Moments:
        """Every cell taken apart into date and time."""
        return dates.moments(self.words)

    @cached_property
    def _sample(self) -> dates.Moments:
        """The same of the first different words; of none where the first few are no dates."""
        held = dates.moments(self.held[:20])
        few = (held.dates != "").mean() < 0.5 if len(held.dates) else True
        return dates.moments(() if few else self.held[:_SAMPLE])

    @cached_property
    def form(self) -> str | None:
        """The format that reads most cells, at least nine in ten, None if none does; '' for a column of dates."""
        return "" if self.is_date else dates.form_of(self._sample)

    @cached_property
    def is_days(self) -> bool:
        """Whether numbers are days, 20230131, moments, 20230131101500, or months, 01.2023: each is in the calendar, and it is no accident.

        Of months one at least has a zero before it, as decimals do not. Else one in 27 numbers of that size is. That the column's name speaks of time is enough, and so are 20 different ones of more
        than one month: numbers that are given to rows one after the other leave the calendar at the end of a month.
        """
        if self.is_flag or self.is_date or (self.is_number and not np.nanmin(self.numbers(), initial=np.inf) > 1.9e7):
            return False
        if self.form is None:
            return False
        if all(map(dates.is_month, self.held)) and any(word.startswith("0") for word in self.held):
            return True
        if not all(map(dates.is_compact, self.held)):
            return False
        many = len(self.held) >= 20 and len({word[:6] for word in self.held}) > 1
        found = dates.days(dates.moments(self.held), self.form)
        return bool(np.isfinite(found).all() and (many or dates.IN_NAMES.search(self.name)))

    @property
    def zones(self) -> tuple[str, str] | None:
        """Two words, a moment that names its zone and one that does not, if the column has both."""
        return None if self.is_date else dates.zones_of(self.held[:_SAMPLE])

    @property
    def ways(self) -> tuple[str, str] | None:
        """Two words that are dates written in different ways, if the column is of dates but has no format."""
        places = None if self.is_date else dates.ways(self._sample)
        return None if places is None else (self.held[places[0]], self.held[places[1]])

    def days(self, form: str) -> np.ndarray:
        """Return dates as days since 1970, with their fractions; NaN where there is none."""
        return dates.typed_days(self.series) if self.is_date else dates.days(self._moments, form or "ISO8601")

    @cached_property
    def is_clock(self) -> bool:
        """Whether at least nine in ten cells are times of the day or durations: 13:45, 100:00:30."""
        if self.is_number or self.is_flag or self.is_date or not self.held:
            return False
        return bool(np.isfinite(dates.hours(self.held[:_SAMPLE])).mean() >= dates.MOSTLY)

    @cached_property
    def hours(self) -> np.ndarray:
        """Times of the day and durations as hours; NaN where there is none."""
        return self.numbers() / 3600 if self.is_span else dates.hours(self.words)

    @property
    def places_in_time(self) -> np.ndarray:
        """What puts rows in time: days, hours or plain numbers; NaN where a cell tells none."""
        if self.form is not None:
            return self.days(self.form)
        return self.hours if self.is_clock else self.own_numbers

    def turned(self, form: str) -> str:
        """Return the first cell that shows that dates are written with day and month the other way round; else empty.

        That is one which has no meaning in this format, where as many cells or more have one in the other.
        """
        other = dates.turned(form)
        if self.is_date or not other:
            return ""
        here, there = (np.isfinite(dates.days(self._moments, f)) for f in (form, other))
        shown = there & ~here
        return str(self.words[shown][0]) if shown.any() and there.sum() >= here.sum() else ""

    def is_open(self, form: str) -> bool:
        """Whether every date has a meaning with day and month the other way round, too, and another one in some cell."""
        other = dates.turned(form)
        if self.is_date or not other:
            return False
        held = dates.moments(self.held)
        here, there = (dates.days(held, f) for f in (form, other))
        return bool(np.isfinite(there[np.isfinite(here)]).all() and (there != here)[np.isfinite(here)].any())

    def lines(self, which: np.ndarray) -> str:
        """Return the first of some cells' places: lines as people count them in a file, or rows as a data frame names them."""
        of_file, first = self._first_line is not None, self._first_line or 0
        found = [str(i + first) if isinstance(i, int) else str(i) for i in self.series.index[which][:5].tolist()]
        word = f"{'line' if of_file else 'row'}{'s' if len(found) > 1 else ''}"
        return f"{word} {', '.join(found[:4])}{', ...' if len(found) > 4 else ''}"
