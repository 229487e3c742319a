"""Columns: how each column of a table becomes numbers, one frozen value for each kind of column.

A column is learned from training rows, kept with the ensemble, and encodes any later rows the same way. What it knows
beyond the numbers (the values of a category, say) stays in the value, for networks that read more than one tensor.

A cell without a value, or with one that training did not have, never refuses a row: it has a code of its own, and where
training had no such cell, a warning says so.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from choral.base.errors import InputError
from choral.base.text import short
from choral.base.values import Value
from choral.data.cells import LARGEST, Cells
from choral.data.numerals import STAND_INS, factors_in, groups_thousands, stand_in

LONGEST = 10_000  # characters of a name or of one category
_FAR = 20  # deviations from the mean of training; most cells beyond them are in other units
MOST = 100_000  # categories of a column, classes of a target
NO_VALUE = "(no value)"


@dataclass(frozen=True, kw_only=True)
class Scale(Value):
    """A shift and a scale: what a number loses and is divided by to be near 0 and of size 1.

    >>> Scale.of(np.array([1.0, 3.0]))
    Scale(mean=2.0, std=1.0)
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean) or not 0 < self.std < math.inf:
            raise InputError(
                f"a scale has mean {self.mean} and deviation {self.std}; they must be finite, and std above 0."
            )

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return the mean and standard deviation of some numbers; equal ones are not scaled.

        >>> Scale.of(2e15 + np.array([0.0, 200.0]))
        Scale(mean=2000000000000100.0, std=100.0)
        """
        mean, std = float(values.mean()), float(values.std())
        if std <= 1e-9 * abs(mean):  # which the rounding of such a mean comes near to
            apart = values - values[0]
            mean, std = float(values[0] + apart.mean()), float(apart.std())
        return cls(mean=mean, std=std if std > 1e-15 * abs(mean) else 1.0)

    def apply(self, values: Any) -> Any:
        """Return values in units of the scale."""
        return (values - self.mean) / self.std

    def undo(self, values: Any) -> Any:
        """Return scaled values in their own units."""
        return values * self.std + self.mean


@dataclass(frozen=True, kw_only=True)
class Column(Value, ABC):
    """One column of a table.

    Attributes:
        name: its name in the header.
        missing: whether training had cells without a value, which then have a number of their own.
    """

    name: str
    missing: bool = False

    def __post_init__(self) -> None:
        if len(self.name) > LONGEST:
            raise InputError(f"a column's name has {len(self.name):,} characters; at most {LONGEST:,} are read.")

    @property
    def width(self) -> int:
        """Numbers it becomes."""
        return self.codes + self.missing

    @property
    @abstractmethod
    def codes(self) -> int:
        """Numbers it becomes, besides the one that says a cell has no value."""

    @property
    @abstractmethod
    def read_as(self) -> str:
        """What it is, in a word or two."""

    @property
    @abstractmethod
    def detail(self) -> str:
        """What else is known about it, in words."""

    @abstractmethod
    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        """Return numbers (row, codes); any for absent cells, which are marked besides."""

    def encode(self, cells: Cells, *, path: str) -> np.ndarray:
        """Return cells as numbers (row, width); InputError for cells it cannot take."""
        absent = self._absent(cells, path)
        if absent.any() and not self.missing and self.codes:
            say(
                f"{path}: column '{short(self.name)}' has {absent.sum():,} cell(s) without a value ({cells.lines(absent)}), which "
                f"training did not have; {self._filled}."
            )
        coded = self._coded(cells, absent, path=path)
        return np.column_stack([coded, absent.astype(np.float64)]) if self.missing else coded

    def _absent(self, cells: Cells, path: str) -> np.ndarray:
        return cells.absent

    _filled = "they are coded as none of its values"

    def said(self, code: np.ndarray) -> str:
        """Return the cell that became these numbers (width,), in words."""
        return NO_VALUE if self.missing and code[-1] > 0.5 else self._said(code)

    @abstractmethod
    def _said(self, code: np.ndarray) -> str:
        """Return the same for a cell that has a value."""

    def places(self, codes: np.ndarray) -> np.ndarray | None:
        """Return where cells (row, width) lie on a line (row,), NaN without a value; None where values have no order."""
        return None

    def _with_gaps(self, places: np.ndarray, codes: np.ndarray) -> np.ndarray:
        return np.where(codes[:, -1] > 0.5, np.nan, places) if self.missing else places


def say(text: str) -> None:
    """Warn whoever asked for inputs of a table."""
    warnings.warn(text, stacklevel=5)


def _numbers(cells: Cells, comma: bool, unit: str, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers, and which cells hold something that is none and no bound either; numbers that are too large are refused."""
    values = cells.numbers_or_bounds(comma=comma, unit=unit)
    wild = np.isinf(values) | (np.abs(values) > LARGEST)
    if wild.any():
        raise InputError(
            f"{path}: column '{short(cells.name)}' holds {values[wild][0]:g} in {cells.lines(wild)}; numbers must be finite and at most "
            f"{LARGEST:g} in size: correct or drop them."
        )
    return values, np.isnan(values) & ~cells.absent


def _say_unread(cells: Cells, unread: np.ndarray, unit: str, path: str) -> None:
    if unread.any():
        say(
            f"{path}: column '{short(cells.name)}' holds {short(cells.words[unread][0])!r} in {cells.lines(unread)}, which is not a number{f' in {short(unit, 20)}' if unit else ''}; "
            f"{unread.sum():,} such cell(s) count as cells without a value."
        )


def say_stand_in(
    what: str,
    values: np.ndarray,
    path: str,
    *,
    known: Iterable[float] = STAND_INS,
    shown: Callable[[float], str] = "{:g}".format,
) -> None:
    """Warn of a number that may stand for no value, such as -999.

    Args:
        what: whose numbers they are.
        values: all of them.
        path: what to call the table.
        known: numbers that may.
        shown: how a number is written.
    """
    code = stand_in(values, known)
    if code is not None:
        rest = values[np.isfinite(values) & (values != code)]
        say(
            f"{path}: {what} holds {shown(code)} in {(values == code).sum():,} cell(s), far from all others ({shown(rest.min())} to {shown(rest.max())}); "
            "leave these cells empty if they stand for no value."
        )


def _say_bounds(cells: Cells, path: str) -> None:
    if cells.bounds.any():
        say(
            f"{path}: column '{short(cells.name)}' holds {short(cells.words[cells.bounds][0])!r} in {cells.lines(cells.bounds)}, a bound and no number; "
            f"{cells.bounds.sum():,} such cell(s) count as the number they name."
        )


@dataclass(frozen=True, kw_only=True)
class NumberColumn(Column):
    """A column of numbers, standardized; cells without one count as the median of training.

    Attributes:
        scale: mean and deviation of the training cells.
        fill: their median.
        comma: whether decimals follow a comma.
        unread: training cells that hold something else.
        bounds: training cells that hold a bound (<0.5, 3+), which counts as the number it names.
        unit: what stands behind the numbers, or their currency; a number with another one is none.
        factors: the letters that stood for thousands and more, in words.
        grouped: whether training marked thousands and had decimals, never three of them.
    """

    scale: Scale
    fill: float = 0.0
    comma: bool = False
    unread: int = 0
    bounds: int = 0
    unit: str = ""
    factors: str = ""
    grouped: bool = False
    _filled = "they are read as the median"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.fill):
            raise InputError(f"column '{short(self.name)}' is filled with {self.fill}; it must be a finite number.")

    @classmethod
    def learn(cls, cells: Cells, *, path: str) -> Self:
        """Return the column of some training cells."""
        values, unread = _numbers(cells, cells.comma, cells.unit, path)
        _say_unread(cells, unread, cells.unit, path)
        _say_bounds(cells, path)
        say_stand_in(f"column '{short(cells.name)}'", values, path)
        held = values[~np.isnan(values)]
        return cls(
            name=cells.name,
            missing=len(held) < len(values),
            scale=Scale.of(held),
            fill=float(np.median(held)),
            comma=cells.comma,
            unread=int(unread.sum()),
            bounds=int(cells.bounds.sum()),
            unit=cells.unit,
            factors=factors_in(cells.held),
            grouped=not cells.is_number and groups_thousands(cells.held, comma=cells.comma),
        )

    @property
    def codes(self) -> int:
        """One."""
        return 1

    @property
    def read_as(self) -> str:
        """A number."""
        return "number"

    @property
    def detail(self) -> str:
        """Its mean, and what became of other cells."""
        gaps = f"; cells without a number count as the median, {self.fill:.4g}, and are marked" * self.missing
        odd = f"; {self.unread:,} cell(s) are not numbers" * bool(self.unread)
        odd += f"; {self.bounds:,} bound(s) count as their number" * bool(self.bounds)
        unit = "; 12% is 0.12" if self.unit == "%" else f" {short(self.unit, 20)}" * bool(self.unit)
        unit += f"; {self.factors}" * bool(self.factors)
        return f"mean {self.scale.mean:.4g}, deviation {self.scale.std:.4g}{unit}{odd}{gaps}"

    def _absent(self, cells: Cells, path: str) -> np.ndarray:
        values, unread = _numbers(cells, self.comma, self.unit, path)
        if not self.unread or unread.mean() > 0.1:
            _say_unread(cells, unread, self.unit, path)
        if not self.bounds:
            _say_bounds(cells, path)
        if self.grouped and ("," if self.comma else ".") in cells.doubtful:
            held = values[cells.words == cells.doubtful][0]
            say(
                f"{path}: column '{short(self.name)}' holds {cells.doubtful!r}, which is read as {held:g}, with decimals as in training; all such "
                "cells have exactly three, so if they are thousands, write them as training did."
            )
        return np.isnan(values)

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        values = np.where(absent, self.fill, cells.numbers_or_bounds(comma=self.comma, unit=self.unit))
        coded = np.asarray(self.scale.apply(values))
        far = (np.abs(coded) > _FAR) & ~absent
        if far.sum() > 0.5 * (~absent).sum():
            say(
                f"{path}: {far.sum():,} of {len(far):,} cells of '{short(self.name)}' lie far outside what training had (mean "
                f"{self.scale.mean:.4g}, deviation {self.scale.std:.4g}; here {values[far][0]:.4g}); are they in the same units?"
            )
        return coded[:, None]

    def _said(self, code: np.ndarray) -> str:
        return f"{self.scale.undo(float(code[0])):.6g}"

    def places(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the numbers."""
        return self._with_gaps(np.asarray(self.scale.undo(codes[:, 0])), codes)


@dataclass(frozen=True, kw_only=True)
class LeftOutColumn(Column):
    """A column that is not an input; later tables need not have it.

    Attributes:
        reason: why.
        beside: whether it is shown beside predictions.
    """

    reason: str
    beside: bool = False

    @property
    def codes(self) -> int:
        """None."""
        return 0

    @property
    def read_as(self) -> str:
        """Left out."""
        return "left out"

    @property
    def detail(self) -> str:
        """Why."""
        return self.reason + ("; kept beside predictions" if self.beside else "")

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        return np.zeros((len(cells), 0))

    def _said(self, code: np.ndarray) -> str:
        return NO_VALUE


def check_names(names: tuple[str, ...], what: str) -> None:
    """Raise InputError unless categories or classes are different, and not too many or too long."""
    if not names or len(set(names)) < len(names) or len(names) > MOST or max(map(len, names)) > LONGEST:
        raise InputError(
            f"{what} has {len(names):,} values, {len(set(names)):,} of them different; 1 to {MOST:,} different ones of "
            f"at most {LONGEST:,} characters are read."
        )
