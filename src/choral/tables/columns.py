"""Columns: how each column of a table becomes numbers, one frozen value for each kind of column.

A column is learned from training rows, stored with the ensemble, and encodes later rows in two steps: `read` makes one number of each
cell, and `encode` makes the inputs of the network from it, with arithmetic that an exported graph repeats. A cell without a value, or with
an unknown one, never raises an error: it has its own code, and a warning names it.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError, warn
from choral.base.text import short
from choral.base.values import Finite, Positive, Value
from choral.data.tensors import LARGEST
from choral.tables.reading import MOSTLY, Cells, folded, places_of, turned

LONGEST = 10_000  # characters of a name or of one category
MOST = 100_000  # categories of a column, classes of a target
_KEPT = 64  # categories of a column that have a number of their own
_MANY = 20  # rows, fewer of which do not show that every value occurs once
_FAR = 20  # standard deviations of training, beyond which a number without % was meant as one with it
_DIGITS = 1e5  # numbers from here on that count rows one after the other are ids
NO_VALUE, UNKNOWN = "(no value)", "(unknown)"
_FLAGS = (("yes", "no"), ("true", "false"), ("y", "n"), ("t", "f"), ("on", "off"))
_SAYS = {yes: 1 for yes, _ in _FLAGS} | {no: 0 for _, no in _FLAGS}
_ID = re.compile(  # names of columns that number the rows
    r"(?:^|[\s_.-])(?:id|ids|uid|uuid|guid|index|idx|rowid|account|serial|no|nr|number)\.?$|^unnamed: \d+$|^row$|(?-i:[a-z]I[Dd]$)",
    re.I,
)
# a number or a date to a person
_FIGURES = re.compile(r"[^A-Za-z]*\d[^A-Za-z]*[A-Za-z]{0,4}|.{0,5}(?:19|20)\d\d.{0,4}")


@dataclass(frozen=True, kw_only=True)
class Scale(Value):
    """The mean and standard deviation for standardization."""

    mean: Finite = 0.0
    std: Positive = 1.0

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return the mean and standard deviation of some numbers; equal ones are not scaled."""
        mean, std = float(values.mean()), float(values.std())
        if std <= 1e-9 * abs(mean):  # which the rounding of such a mean comes near to
            apart = values - values[0]
            mean, std = float(values[0] + apart.mean()), float(apart.std())
        return cls(mean=mean, std=std if std > 1e-15 * abs(mean) else 1.0)

    def undo(self, values: Any) -> Any:
        """Return scaled values in their own units."""
        return values * self.std + self.mean


@dataclass(frozen=True, kw_only=True)
class Column(Value, ABC):
    """A column of a table."""

    name: str  # in the header
    missing: bool = False  # whether training had missing values, which are then marked by a further input, the last
    unread: int = 0  # training cells of another kind than the column, which count as missing
    reason, beside = "", False  # why it is left out, and whether it is shown next to predictions
    read_as: ClassVar[str]  # its kind, in a word or two

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.codes + self.missing

    @property
    @abstractmethod
    def codes(self) -> int:
        """Number of inputs without the one that marks missing values."""

    @property
    @abstractmethod
    def detail(self) -> str:
        """Further description, as text."""

    @property
    def usual(self) -> tuple[float, float]:
        """A typical number of a cell and the spread of these numbers."""
        return 0.0, 1.0

    def read(self, cells: Cells, path: str) -> np.ndarray:
        """Return one number for each cell (row,), float64: NaN without a value."""
        return np.full(len(cells), np.nan)

    def encode(self, numbers: Tensor) -> Tensor:
        """Return the inputs (row, width), float32, of what `read` returns (row,)."""
        absent = numbers.isnan()
        parts = [self._coded(numbers, absent), absent[:, None]][: 1 + self.missing]
        return torch.cat([part.float() for part in parts], 1)

    def _coded(self, numbers: Tensor, absent: Tensor) -> Tensor:
        """Return the codes (row, codes) of numbers, some of which are absent."""
        return numbers.new_zeros(len(numbers), 0)

    def said(self, code: np.ndarray) -> str:
        """Return the cell with these inputs (width,), as text."""
        return NO_VALUE if self.missing and code[-1] > 0.5 else self._said(code)

    def places(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the positions of cells (row, width) on a line (row,), NaN for missing ones; None if values have no order."""
        return None

    def _said(self, code: np.ndarray) -> str:
        return NO_VALUE


def _say_odd(cells: Cells, odd: np.ndarray, what: str, path: str, done: str = "count as cells without a value") -> None:
    if odd.any():
        others = " and others" * (cells.series[odd].astype(str).nunique() > 1)
        where = f"{path}: column '{short(cells.name)}' holds {short(cells.first(odd))!r}{others} in {cells.lines(odd)}"
        warn(f"{where}, which {what}; {odd.sum():,} such cell(s) {done}.")


def _doubles(*values: float) -> Iterable[Tensor]:
    """Return numbers as float64 tensors: torch.onnx rounds Python's to float32, which is too coarse for large numbers and dates."""
    return torch.tensor(values, dtype=torch.float64).unbind()


@dataclass(frozen=True, kw_only=True)
class _Scaled(Column):
    """A column of numbers or dates, standardized by the scale of the training cells."""

    scale: Scale

    @abstractmethod
    def _values(self, cells: Cells, path: str) -> np.ndarray:
        """Return the place of each cell (row,), NaN for none."""

    _what: ClassVar[Any]  # a cell that the column reads, in words

    @property
    def usual(self) -> tuple[float, float]:
        return self.scale.mean, self.scale.std

    def _standardized(self, numbers: Tensor) -> Tensor:
        mean, std = _doubles(self.scale.mean, self.scale.std)
        return (numbers - mean) / std

    def read(self, cells: Cells, path: str) -> np.ndarray:
        """Return the place of each cell; name those that hold something else, unless training had such and they are few."""
        values = self._values(cells, path)
        odd = np.isnan(values) & ~cells.absent
        if not self.unread or odd.mean() > 1 - MOSTLY:
            _say_odd(cells, odd, f"is not {self._what}", path)
        return values

    def learned(self, cells: Cells, path: str) -> Self:
        """Return the column with the scale of some training cells, and their odd cells counted."""
        values = self.read(cells, path)
        absent = np.isnan(values)
        odd = int((absent & ~cells.absent).sum())
        return replace(self, missing=bool(absent.any()), unread=odd, scale=Scale.of(values[~absent]))

    def places(self, codes: np.ndarray) -> np.ndarray:
        return np.where(self.missing & (codes[:, -1] > 0.5), np.nan, self.scale.undo(codes[:, 0]))


@dataclass(frozen=True, kw_only=True)
class NumberColumn(_Scaled):
    """A column of numbers, standardized; missing values are filled with the median of training."""

    fill: float = 0.0  # the median
    unit: str = ""  # after the numbers, or their currency; numbers with another unit count as missing
    codes, read_as = 1, "number"

    @classmethod
    def learn(cls, cells: Cells, path: str) -> Self:
        """Return the column of some training cells."""
        fill, unit = float(np.nanmedian(cells.own_numbers)), cells.commonest_unit
        return cls(name=cells.name, scale=Scale(), unit=unit, fill=fill).learned(cells, path)

    @property
    def detail(self) -> str:
        gaps = f"; cells without a number count as the median, {self.fill:.4g}, and are marked" * self.missing
        odd = f"; {self.unread:,} cell(s) are not numbers" * bool(self.unread)
        unit = "; 12% is 0.12" if self.unit == "%" else f" {short(self.unit, 20)}" * bool(self.unit)
        return f"mean {self.scale.mean:.4g}, standard deviation {self.scale.std:.4g}{unit}{odd}{gaps}"

    @property
    def _what(self) -> str:
        return "a number" + f" in {short(self.unit, 20)}" * bool(self.unit)

    def _values(self, cells: Cells, path: str) -> np.ndarray:
        values = cells.numbers(self.unit)
        cells.say_doubt(path)
        wild = np.abs(values) > LARGEST
        if wild.any():
            raise InputError(
                f"{path}: column '{short(cells.name)}' holds {values[wild][0]:g} in {cells.lines(wild)}; numbers must be finite and at most "
                f"{LARGEST:g} in size: correct or drop them."
            )
        if self.unit == "%" and not cells.commonest_unit:
            far = np.abs(values - self.scale.mean) > _FAR * self.scale.std
            if far.any():
                raise InputError(
                    f"{path}: column '{short(cells.name)}' holds {values[far][0]:g} without % in {cells.lines(far)}, but training had percents of "
                    f"{self.scale.mean:.3g} on average (12% is 0.12); write them with % or as fractions."
                )
        return values

    def _coded(self, numbers: Tensor, absent: Tensor) -> Tensor:
        (fill,) = _doubles(self.fill)
        return self._standardized(torch.where(absent, fill, numbers))[:, None]

    def _said(self, code: np.ndarray) -> str:
        return f"{self.scale.undo(float(code[0])):.6g}"


@dataclass(frozen=True, kw_only=True)
class DateColumn(_Scaled):
    """A column of dates: days since 1970, and their position in the year, in the week and, if training had times, in the day."""

    formats: tuple[str, ...] = ()  # of the training dates, as in `pandas.to_datetime`; none for a datetime dtype
    times: bool = False  # whether training had times of the day
    read_as, _what = "date", "a date as the training data has them"

    @classmethod
    def learn(cls, cells: Cells, path: str) -> Self:
        """Return the column of some training cells."""
        formats, doubtful = cells.dated
        if doubtful:
            warn(
                f"{path}: the dates in column '{short(cells.name)}' ({short(doubtful)!r}, ...) may have the day or the month first; they are "
                f"read as {' and '.join(formats)}. Write them as 2024-03-25 if that is wrong."
            )
        times = bool((np.nan_to_num(cells.days(formats)) % 1 > 0).any())
        return cls(name=cells.name, scale=Scale(), formats=formats, times=times).learned(cells, path)

    @property
    def codes(self) -> int:
        return 7 if self.times else 5

    @property
    def detail(self) -> str:
        how = " and ".join("year first" if form == "ISO8601" else form for form in self.formats)
        gaps = "; cells without a date are marked" * self.missing
        return f"{how}{'; ' * bool(how)}its days, place in the year and the week{', and the day' * self.times}{gaps}"

    def _values(self, cells: Cells, path: str) -> np.ndarray:
        """Return days; InputError where day and month stand the other way round than in training."""
        values, other = cells.days(self.formats), tuple(map(turned, self.formats))
        there = np.isfinite(cells.days(other)) if other != self.formats and not cells.is_date else np.isfinite(values)
        shown = there & np.isnan(values)
        if shown.any() and there.sum() >= np.isfinite(values).sum():
            raise InputError(
                f"{path}: column '{short(self.name)}' holds {short(cells.first(shown))!r}, but training wrote its dates as "
                f"{' and '.join(self.formats)}, so every date would be read as another one; write dates as in training, or fit again on "
                "dates such as 2024-03-25."
            )
        return values

    def _coded(self, numbers: Tensor, absent: Tensor) -> Tensor:
        """Return the standardized days, and sine and cosine of each cycle."""
        (mean,) = _doubles(self.scale.mean)
        days = torch.where(absent, mean, numbers)
        circle, *lengths = _doubles(2 * math.pi, 365.2425, 7.0, 1.0)
        parts = [self._standardized(days)]
        for length in lengths[: 2 + self.times]:
            turn = circle * (days / length % 1)
            parts += [torch.where(absent, 0.0, turn.sin()), torch.where(absent, 0.0, turn.cos())]
        return torch.stack(parts, 1)

    def _said(self, code: np.ndarray) -> str:
        return str(np.datetime64("1970-01-01") + np.timedelta64(round(float(self.scale.undo(float(code[0])))), "D"))


@dataclass(frozen=True, kw_only=True)
class _Worded(Column):
    """A column of words. Words that differ only in case and spaces are one, in the most frequent spelling.

    With `other`, training had more values than these, which share a code with all unknown ones; else unknown values are coded as none.
    """

    values: tuple[str, ...]
    other: bool = False

    def __post_init__(self) -> None:
        check_names(self.values, f"column '{short(self.name)}'")

    @property
    @abstractmethod
    def _rows(self) -> np.ndarray:
        """The numbers of each value (value, codes), and in a last row those of a cell that has none of them."""

    @property
    def codes(self) -> int:
        return self._rows.shape[1]

    @property
    def _place(self) -> Mapping[str, int]:
        return places_of(self.values)

    @property
    def usual(self) -> tuple[float, float]:
        return (len(self.values) - 1) / 2, len(self.values) / 2

    def read(self, cells: Cells, path: str) -> np.ndarray:
        """Return the place of each cell's value, -1 for others; name words that training did not have, unless they share a number."""
        ranks = cells.ranks(self._place)
        odd = (ranks < 0) & ~cells.absent
        if not self.other:
            known = ", ".join(short(v, 20) for v in self.values[:6]) + ", ..." * (len(self.values) > 6)
            what = f"was not in the training data (known: {known})"
            _say_odd(cells, odd, what, path, "are coded as none of them")
        return np.where(cells.absent, np.nan, ranks)

    def _coded(self, numbers: Tensor, absent: Tensor) -> Tensor:
        """Return the row of each value; that of the others, or the last, for places that are none."""
        rows, count = torch.tensor(self._rows), len(self.values)
        known = (numbers >= 0) & (numbers < count)
        none = torch.where(absent, len(rows) - 1, count if self.other else len(rows) - 1)
        return rows[torch.where(known, numbers, none).long()]

    def _said(self, code: np.ndarray) -> str:
        near = int(np.abs(self._rows - code[: self.codes]).sum(1).argmin())
        return (*self.values, *["(others)"] * self.other, UNKNOWN)[near]


@dataclass(frozen=True, kw_only=True)
class FlagColumn(_Worded):
    """A column of two words for no and yes: -1 and 1, and 0 for missing values."""

    read_as, _place = "flag", _SAYS | {"0": 0, "1": 1}  # in whatever words
    _rows = np.array([[-1.0], [1.0], [0.0]])

    @property
    def detail(self) -> str:
        return f"{self.values[1]} or {self.values[0]}" + "; cells without a value are marked" * self.missing


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(_Worded):
    """A column of words: one-hot over the values that are frequent in training, and one for all others."""

    read_as = "category"

    @classmethod
    def learn(cls, cells: Cells) -> Self:
        """Return the column of some training cells: values of one row alone are left to the others, if rows are many."""
        words, counts = spelled(cells, cells.has_value)
        least = 2 if len(cells) >= 50 and (counts > 1).any() else 1
        order = np.argsort(-counts, kind="stable")[:_KEPT]
        kept = sorted(str(words[i]) for i in order if counts[i] >= least)
        return cls(name=cells.name, values=tuple(kept), other=len(kept) < len(words), missing=bool(cells.absent.any()))

    @property
    def detail(self) -> str:
        shown = ", ".join(short(v, 20) for v in self.values[:4]) + ", ..." * (len(self.values) > 4)
        more = "; rare ones count together" * self.other + "; cells without a value are one more" * self.missing
        return f"{len(self.values)} value(s): {shown}{more}"

    @property
    def _rows(self) -> np.ndarray:
        codes = len(self.values) + self.other  # one for each value, and one for the others
        return np.eye(codes + 1, codes, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class OrderedColumn(_Worded):
    """A column of ordered words: for each step 1 if a cell has reached it, and one half for missing and unknown values."""

    read_as = "ordered"

    @property
    def detail(self) -> str:
        return " < ".join(short(v, 20) for v in self.values[:8]) + " < ..." * (len(self.values) > 8)

    @property
    def _rows(self) -> np.ndarray:
        steps = len(self.values) - 1
        return np.vstack([np.tri(steps + 1, steps, -1), np.full(steps, 0.5)])

    def places(self, codes: np.ndarray) -> np.ndarray:
        steps = codes[:, : self.codes]
        return np.where(((steps > 0.25) & (steps < 0.75)).all(1), np.nan, (steps > 0.5).sum(1))


def spelled(cells: Cells, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return some of a column's words in one spelling each, the commonest, sorted; and the rows of each."""
    each: dict[str, dict[str, int]] = {}
    for word, fold, count in zip(cells.words[which], cells.folds[which], cells.counts[which]):
        own = each.setdefault(fold, {})
        own[word] = own.get(word, 0) + int(count)
    found = sorted((min(own, key=lambda w: (-own[w], w)), sum(own.values())) for own in each.values())
    return np.array([word for word, _ in found], object), np.array([count for _, count in found])


@dataclass(frozen=True, kw_only=True)
class LeftOutColumn(Column):
    """A column that is not an input, with the reason; later tables need not have it. Ids are shown next to predictions."""

    reason: str
    beside: bool = False
    codes, read_as = 0, "left out"

    @property
    def detail(self) -> str:
        return self.reason + "; shown next to predictions" * self.beside


def check_names(names: tuple[str, ...], what: str) -> None:
    """Raise InputError unless categories or classes are different, and not too many or too long."""
    if not names or len(set(names)) < len(names) or len(names) > MOST or max(map(len, names)) > LONGEST:
        raise InputError(
            f"{what} has {len(names):,} values, {len(set(names)):,} of them different; 1 to {MOST:,} different ones of "
            f"at most {LONGEST:,} characters are read."
        )


def learn_column(cells: Cells, *, order: tuple[str, ...] = (), typed: bool = False, path: str) -> Column:
    """Return the kind of a column, learned from its training cells, and the order of its values if the user gave one.

    Numeric and category dtypes are taken as they are, also constants and ids, if `typed`.
    """
    name, gaps, rows = cells.name, bool(cells.absent.any()), int((~cells.absent).sum())
    if not rows:
        return LeftOutColumn(name=name, reason="every cell is without a value")
    if cells.is_nested:
        warn(f"{path}: column '{short(name)}' has cells that hold lists, tuples or other structures, and is left out.")
        return LeftOutColumn(name=name, reason="its cells hold lists or structures")
    odd = sorted({*folded(cells.held)} - {*folded(order)}) if order else []
    if odd or len(order) == 1:
        raise InputError(
            f"{path}: column '{short(name)}' holds {short(odd[0]) if odd else 'values'!r}, which the given order "
            f"({' < '.join(order)}) does not name; give every value from first to last."
        )
    held, constant = cells.different, cells.different == 1 and not gaps
    unique, typed = rows >= _MANY and held >= 0.99 * rows, typed and (cells.is_number or cells.is_category)
    if cells.is_category and cells.series.cat.ordered and not order and (typed or not constant):
        order = tuple(map(str, cells.series.cat.categories))
    if len(order) > 1:
        return OrderedColumn(name=name, values=order, missing=gaps)
    if constant and not typed:
        return LeftOutColumn(name=name, reason=f"every cell is {short(str(cells.held[0]), 20)!r}")
    if cells.is_number:
        return _number_or_id(cells, unique and not typed, path)
    if cells.is_date:
        return DateColumn.learn(cells, path)
    if cells.is_category:
        return CategoryColumn.learn(cells) if typed else _words(cells, rows, unique)
    own = {*folded(cells.held)} if held <= _MANY else set()
    if cells.is_flag or {_SAYS.get(word) for word in own} == {0, 1}:
        yes, no = next((pair for pair in _FLAGS if own & {*pair}), ("true", "false"))
        return FlagColumn(name=name, values=(no, yes), missing=gaps)
    if cells.is_numeric:
        return _number_or_id(cells, unique, path)
    dates = np.isfinite(cells.days(cells.dated[0])) if cells.dated[0] else np.zeros(len(cells), bool)
    if dates.sum() >= MOSTLY * rows:
        return DateColumn.learn(cells, path)
    return _read_as_words(cells, dates, rows, unique, path)


def _read_as_words(cells: Cells, dates: np.ndarray, rows: int, unique: bool, path: str) -> Column:
    """Return the kind of a column of text; warn about its first odd cell if half of the cells look like numbers or dates."""
    found, numbers = _words(cells, rows, unique), np.isfinite(cells.own_numbers)
    some = numbers if numbers.sum() >= dates.sum() else dates
    figures = cells.spread([bool(_FIGURES.fullmatch(word)) for word in cells.words], False) & ~cells.absent
    odd = ~some & ~cells.absent
    if cells.different <= _MANY or not odd.any() or (some | figures).sum() < 0.5 * rows or _ID.search(cells.name):
        return found
    done = "read as words" if found.codes else "left out"
    warn(
        f"{path}: column '{short(cells.name)}' holds {short(cells.first(odd))!r} in {cells.lines(odd)}, which is neither a number nor a date as choral "
        f"reads them, so it is {done}; clean the column (skrub.Cleaner helps, see docs/howto/tables.md), or leave odd cells empty."
    )
    reason = "its cells are neither numbers nor dates as choral reads them"
    return found if found.codes else LeftOutColumn(name=cells.name, reason=reason)


def _words(cells: Cells, rows: int, unique: bool) -> Column:
    """Return what a column of text is: free text, an id or a category."""
    different = len(cells.held)
    long = float(np.mean([word.count(" ") for word in cells.held[:1000]])) >= 3
    if long and different > max(_MANY, 0.5 * rows):
        return LeftOutColumn(name=cells.name, reason=f"free text: {different:,} different values of several words")
    if unique or (rows >= _MANY and _ID.search(cells.name) and different > 0.9 * rows):
        reason = f"an id: {different:,} different values in {rows:,} rows"
        return LeftOutColumn(name=cells.name, reason=reason, beside=True)
    return CategoryColumn.learn(cells)


def _number_or_id(cells: Cells, unique: bool, path: str) -> Column:
    """Return a column of numbers, or one left out: different whole numbers whose name says that they are ids, or that count rows from 100,000 on."""
    values = cells.own_numbers[np.isfinite(cells.own_numbers)]
    if unique and (values % 1 == 0).all():
        counts = values.min() >= _DIGITS and np.ptp(values) < 2 * len(values)
        if _ID.search(cells.name) or counts:
            return LeftOutColumn(name=cells.name, reason="an id: whole numbers, each once", beside=True)
    return NumberColumn.learn(cells, path)
