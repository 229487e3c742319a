"""Which rows are held out, and remembering which were not."""

import base64
import binascii
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from choral.base.errors import InputError
from choral.base.values import Value

_BITS = 24  # for each row, of which each sets these many: one strange row in 70,000 is taken for a known one
_PLACES = 12
_MOST = 1 << 28  # bits


def split(rows: int, holdout: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shuffled row numbers for training and test."""
    order = np.random.default_rng(seed).permutation(rows)
    return _parts(order, _count(rows, holdout))


def _count(rows: int, holdout: float) -> int:
    if rows < 3:
        raise InputError(f"the data has {rows} row(s), too few to train on some and hold out others; give at least 3.")
    return min(max(round(rows * holdout), 1), rows - 2)


def _parts(order: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(order[count:]), np.sort(order[:count])


def split_by_group(groups: np.ndarray, holdout: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and test such that rows of one group stay together.

    Args:
        groups: the name of the group of each row.
        holdout: part of the rows to hold out, about.
        seed: decides which groups.
    """
    names, group = np.unique(groups.astype(str), return_inverse=True)
    if len(names) < 2:
        raise InputError("every row is of a single group; splitting by group needs at least two.")
    wanted = _count(len(groups), holdout)
    order = np.random.default_rng(seed).permutation(len(names))
    sizes = np.cumsum(np.bincount(group)[order])
    held = order[: min(max(int(np.searchsorted(sizes, wanted)) + 1, 1), len(names) - 1)]
    test = np.isin(group, held)
    return np.flatnonzero(~test), np.flatnonzero(test)


def split_by_time(when: np.ndarray, holdout: float) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and test such that the last rows in time are held out.

    Args:
        when: a number for each row that grows with time.
        holdout: part of the rows to hold out.
    """
    order = np.argsort(when, kind="stable")
    count = _count(len(when), holdout)
    edge = when[order[-count]]
    test = when >= edge if (when < edge).sum() >= 2 else np.isin(np.arange(len(when)), order[-count:])
    return np.flatnonzero(~test), np.flatnonzero(test)


@dataclass(frozen=True, kw_only=True)
class Seen(Value):
    """Which rows were trained on: a Bloom filter over hashes of inputs and targets.

    A row that was there is always found; one in 70,000 others is found as well.

    >>> x, y = np.eye(3, dtype=np.float32), np.arange(3)
    >>> Seen.of(x[:2], y[:2]).find(x, y).tolist()
    [True, True, False]
    """

    rows: int
    bits: str

    def __post_init__(self) -> None:
        if not 0 < 6 * len(self.bits) <= _MOST + 64 or not 0 < self.rows <= _MOST:
            raise InputError(
                f"{self.rows:,} rows are remembered in {len(self.bits):,} letters, which is out of bounds."
            )
        if len(self._filter) & (len(self._filter) - 1):
            raise InputError(f"rows are remembered in {len(self._filter):,} bits; it must be a power of two.")

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray) -> Self:
        """Return the memory of some rows."""
        size = 1 << min(int(np.ceil(np.log2(max(_BITS * len(x), 64)))), 27)
        held = np.zeros(size, bool)
        held[_places(x, y) % np.uint64(size)] = True
        return cls(rows=len(x), bits=base64.b85encode(np.packbits(held).tobytes()).decode())

    @cached_property
    def _filter(self) -> np.ndarray:
        try:
            data = base64.b85decode(self.bits)
        except (ValueError, binascii.Error) as error:
            raise InputError("remembered rows are not written as they should be.") from error
        return np.unpackbits(np.frombuffer(data, np.uint8))

    def find(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return which rows are among those remembered."""
        return np.asarray(self._filter[_places(x, y) % np.uint64(len(self._filter))].all(1)).astype(bool)


def hashes(values: np.ndarray) -> np.ndarray:
    """Return a number for each row (uint64) that depends on all its bits; equal rows have equal ones."""
    key = np.zeros(len(values), np.uint64)
    for column in np.asarray(values, np.float64).reshape(len(values), -1).T + 0.0:  # -0.0 is 0.0
        bits = column.copy().view(np.uint64)
        key = (key ^ bits ^ (bits >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(32)
    return key


def row_hashes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the same of inputs and targets together, as float32 holds them."""
    return hashes(np.column_stack([np.asarray(part, np.float32).reshape(len(x), -1) for part in (x, y)]))


def _places(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return some numbers for each row that depend on all its bytes (row, place)."""
    key = row_hashes(x, y)[:, None] + np.arange(1, _PLACES + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
