"""Columns: how each column of a table becomes numbers, one frozen value for each kind of column.

A column is learned from training rows, kept with the ensemble, and encodes any later rows the same way. What it knows
beyond the numbers (the values of a category, say) stays in the value, for networks that read more than one tensor.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from choral.base.errors import InputError
from choral.base.lettering import short
from choral.base.values import Value

LONGEST = 10_000  # characters of a name or of one category
MOST = 100_000  # categories of a column, classes of a target


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
        """Return the mean and standard deviation of some numbers; equal ones are not scaled."""
        std = float(values.std())
        return cls(mean=float(values.mean()), std=std if std > 0 else 1.0)

    def apply(self, values: Any) -> Any:
        """Return values in units of the scale."""
        return (values - self.mean) / self.std

    def undo(self, values: Any) -> Any:
        """Return scaled values in their own units."""
        return values * self.std + self.mean


@dataclass(frozen=True, kw_only=True)
class Column(Value, ABC):
    """One input column of a table.

    Attributes:
        name: its name in the header.
    """

    name: str

    def __post_init__(self) -> None:
        if len(self.name) > LONGEST:
            raise InputError(f"a column's name has {len(self.name):,} characters; at most {LONGEST:,} are read.")

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers it becomes."""

    @abstractmethod
    def encode(self, cells: Any, *, path: str) -> np.ndarray:
        """Return its cells, a pandas series, as numbers (row, width); InputError for cells it cannot read."""


def is_number(cells: Any) -> bool:
    """Return whether a pandas series holds numbers."""
    return cells.dtype.kind in "fiu"


@dataclass(frozen=True, kw_only=True)
class NumberColumn(Column):
    """A column of numbers, standardised."""

    scale: Scale

    @property
    def width(self) -> int:
        """One."""
        return 1

    @classmethod
    def learn(cls, cells: Any, *, path: str) -> Self:
        """Return the column of some training cells."""
        values = cells.to_numpy(np.float64)
        if not np.isfinite(values).all():
            raise InputError(f"{path}: column '{cells.name}' holds infinite values; replace them first.")
        return cls(name=str(cells.name), scale=Scale.of(values))

    def encode(self, cells: Any, *, path: str) -> np.ndarray:
        """Return standardised numbers."""
        if not is_number(cells):
            raise InputError(f"{path}: column '{self.name}' holds text where training had numbers.")
        return np.asarray(self.scale.apply(cells.to_numpy(np.float64)))[:, None]


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(Column):
    """A column of words, one-hot in the order of `values`."""

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.values, f"column '{short(self.name)}'")

    @property
    def width(self) -> int:
        """One for each value."""
        return len(self.values)

    @classmethod
    def learn(cls, cells: Any) -> Self:
        """Return the column of some cells."""
        return cls(name=str(cells.name), values=tuple(sorted({str(v) for v in cells})))

    def encode(self, cells: Any, *, path: str) -> np.ndarray:
        """Return ones and zeros."""
        text = cells.astype(str).to_numpy()
        odd = sorted(set(text) - set(self.values))
        if odd:
            raise InputError(
                f"{path}: column '{self.name}' holds {odd[0]!r}, which was not in the training data; "
                f"known values: {', '.join(self.values[:10])}."
            )
        return (text[:, None] == np.array(self.values)[None, :]).astype(np.float64)


def check_names(names: tuple[str, ...], what: str) -> None:
    """Raise InputError unless categories or classes are different, and not too many or too long."""
    if not names or len(set(names)) < len(names) or len(names) > MOST or max(map(len, names)) > LONGEST:
        raise InputError(
            f"{what} has {len(names):,} values, {len(set(names)):,} of them different; 1 to {MOST:,} different ones of "
            f"at most {LONGEST:,} characters are read."
        )
