"""Columns of words: flags, categories and ordered categories."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from choral.base.text import short
from choral.data.cells import NO, YES, Cells
from choral.data.columns import Column, check_names, say

_KEPT = 64  # categories of a column that have a number of their own
UNKNOWN = "(unknown)"  # a word that training did not have


@dataclass(frozen=True, kw_only=True)
class FlagColumn(Column):
    """A column of two words that say yes and no: 1 and -1, and 0 for a cell that says neither."""

    yes: str = "true"
    no: str = "false"

    @property
    def codes(self) -> int:
        """One."""
        return 1

    @property
    def read_as(self) -> str:
        """A flag."""
        return "flag"

    @property
    def detail(self) -> str:
        """Its words."""
        return f"{self.yes} or {self.no}" + ("; cells without a value are marked" if self.missing else "")

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        said = dict.fromkeys((*NO, self.no), -1.0) | dict.fromkeys((*YES, self.yes), 1.0)
        known = {word: said.get(word.lower(), 0.0) for word in cells.different}
        found = np.array([known[word] for word in cells.words])
        _say_odd(cells, (found == 0) & ~absent, self.name, (self.yes, self.no), path)
        return np.where(absent, 0.0, found)[:, None]

    def _said(self, code: np.ndarray) -> str:
        return self.yes if code[0] > 0.5 else self.no if code[0] < -0.5 else UNKNOWN


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(Column):
    """A column of words: one-hot over the values that are frequent in training, and one for all the others.

    Attributes:
        values: those that have a number of their own.
        other: whether training had more values; they, and all that come later, share one number. Without it a value
            that training did not have is coded as none of them.
    """

    values: tuple[str, ...]
    other: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.values, f"column '{short(self.name)}'")

    @classmethod
    def learn(cls, cells: Cells) -> Self:
        """Return the column of some training cells: values of one row alone are left to the others, if rows are many."""
        words, counts = np.unique(cells.words[~cells.absent].astype(str), return_counts=True)
        least = 2 if len(cells) >= 50 and (counts > 1).any() else 1
        order = np.argsort(-counts, kind="stable")[:_KEPT]
        kept = sorted(str(words[i]) for i in order if counts[i] >= least)
        return cls(name=cells.name, values=tuple(kept), other=len(kept) < len(words), missing=bool(cells.absent.any()))

    @property
    def codes(self) -> int:
        """One for each value, and one for the others."""
        return len(self.values) + self.other

    @property
    def read_as(self) -> str:
        """A category."""
        return "category"

    @property
    def detail(self) -> str:
        """Its values."""
        shown = ", ".join(short(v, 20) for v in self.values[:4]) + (", ..." if len(self.values) > 4 else "")
        more = "; rare ones count together" * self.other + "; cells without a value are one more" * self.missing
        return f"{len(self.values)} value(s): {shown}{more}"

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        place = {value: i for i, value in enumerate(self.values)}
        place = {_other_form(value): i for value, i in place.items()} | place
        codes = np.array([place.get(w, -1) for w in cells.words])
        found = np.zeros((len(cells), self.codes))
        known = np.flatnonzero((codes >= 0) & ~absent)
        found[known, codes[known]] = 1
        odd = (codes < 0) & ~absent
        if self.other:
            found[odd, -1] = 1
        else:
            _say_odd(cells, odd, self.name, self.values, path)
        return found

    def _said(self, code: np.ndarray) -> str:
        place = int(np.argmax(code[: self.codes]))
        if code[place] < 0.5:
            return UNKNOWN
        return self.values[place] if place < len(self.values) else "(others)"


@dataclass(frozen=True, kw_only=True)
class OrderedColumn(Column):
    """A column of words with an order: one number for each step, 1 for the cells that have reached it.

    A cell that has none of the values is one half at every step.
    """

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.values, f"column '{short(self.name)}'")

    @property
    def codes(self) -> int:
        """One for each value after the first."""
        return len(self.values) - 1

    @property
    def read_as(self) -> str:
        """An ordered category."""
        return "ordered"

    @property
    def detail(self) -> str:
        """Its values in order."""
        return " < ".join(short(v, 20) for v in self.values[:8]) + (" < ..." if len(self.values) > 8 else "")

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        place = {value.lower(): i for i, value in enumerate(self.values)}
        known = {word: place.get(word.lower(), -1) for word in cells.different}
        ranks = np.array([known[word] for word in cells.words])
        _say_odd(cells, (ranks < 0) & ~absent, self.name, self.values, path)
        steps = (ranks[:, None] > np.arange(self.codes)).astype(np.float64)
        return np.where((ranks < 0)[:, None], 0.5, steps)

    def _said(self, code: np.ndarray) -> str:
        steps = code[: self.codes]
        return UNKNOWN if ((steps > 0.25) & (steps < 0.75)).all() else self.values[int((steps > 0.5).sum())]

    def places(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the steps that are reached."""
        steps = codes[:, : self.codes]
        unknown = ((steps > 0.25) & (steps < 0.75)).all(1)
        return self._with_gaps(np.where(unknown, np.nan, steps.sum(1)), codes)


def _other_form(value: str) -> str:
    """Return a whole number as it is written beside gaps, 7.0, or beside none, 7; other words as they are."""
    bare = value.removesuffix(".0")
    return value if not bare.removeprefix("-").isdecimal() else bare if bare != value else f"{value}.0"


def _say_odd(cells: Cells, odd: np.ndarray, name: str, values: tuple[str, ...], path: str) -> None:
    if odd.any():
        known = ", ".join(short(v, 20) for v in values[:6]) + (", ..." if len(values) > 6 else "")
        say(
            f"{path}: column '{short(name)}' holds {short(cells.words[odd][0])!r} in {cells.lines(odd)}, which was not in the training data "
            f"(known: {known}); {odd.sum():,} such cell(s) are coded as none of them."
        )
