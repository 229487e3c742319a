"""Splits into training, validation and test rows and folds, and a memory of the training rows."""

import base64
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from choral.base import rng
from choral.base.errors import InputError
from choral.base.values import Value
from choral.data.tensors import Source, hashes

_FEW = 20  # distinct rows, fewer of which are no sample of anything


def split(
    rows: int, holdout: float | None, seed: int, *, groups: np.ndarray | None = None, times: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and test: by groups, by time, or at random; no test rows if `holdout` is None."""
    if holdout is None:
        return np.arange(rows), np.arange(0)
    if groups is not None:
        return split_by_group(groups, holdout, seed)
    if times is not None:
        return split_by_time(times, holdout)
    order, count = np.random.default_rng(seed).permutation(rows), _count(rows, holdout)
    return np.sort(order[count:]), np.sort(order[:count])


def _count(rows: int, holdout: float) -> int:
    if rows < 3:
        raise InputError(f"the data has {rows} row(s), too few to train on some and hold out others; give at least 3.")
    return min(max(round(rows * holdout), 1), rows - 2)


def split_by_group(groups: np.ndarray, holdout: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and test with whole groups; about a share of `holdout` is held out."""
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
    """Return row numbers for training and test, with the last rows in time held out; `when` grows with time."""
    order = np.argsort(when, kind="stable")
    count = _count(len(when), holdout)
    edge = when[order[-count]]
    test = when >= edge if (when < edge).sum() >= 2 else np.isin(np.arange(len(when)), order[-count:])
    return np.flatnonzero(~test), np.flatnonzero(test)


@dataclass(frozen=True, kw_only=True)
class Seen(Value):
    """A memory of training rows, as 32-bit hashes of inputs and targets.

    A training row is always found; among n remembered rows another row is found by mistake with probability n / 2^32.

    >>> x, y = np.eye(3, dtype=np.float32), np.arange(3)
    >>> Seen.of(x[:2], y[:2]).find(x, y).tolist()
    [True, True, False]
    """

    rows: int
    hashes: str

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray) -> Self:
        """Return the memory of some rows."""
        return cls(rows=len(x), hashes=base64.b85encode(np.unique(_short_hashes(x, y)).tobytes()).decode())

    def find(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return which rows are among those remembered."""
        return np.isin(_short_hashes(x, y), np.frombuffer(base64.b85decode(self.hashes), "<u4"))


def _short_hashes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (row_hashes(x, y) >> np.uint64(32)).astype("<u4")


def row_hashes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return hashes of inputs and targets together, as float32 holds them."""
    with np.errstate(over="ignore"):
        return hashes(np.column_stack([np.asarray(part, np.float32).reshape(len(x), -1) for part in (x, y)]))


def held_out(source: Source, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation rows, drawn by the seed.

    Targets in memory are stratified: classes in equal shares, up to one row (a class of one row is trained on); numbers by taking one of
    every few neighbors in size. Copies of a row stay together (`_distinct`).
    """
    count = round(share * source.points) if 0 < share < 1 else 0
    if not 0 < count < source.points:
        raise InputError(
            f"validation is {share}, which would hold out {count} of {source.points} points; give a share above 0 and below 1, or (x, y)."
        )
    first, unit = _distinct(source, 2)
    count = max(1, round(share * len(first)))
    order = torch.randperm(len(first), generator=rng.generator(seed, "validation"))
    targets = source.targets()
    if targets is not None and targets[0].numel() == 1:
        given = targets.flatten()[first]
        order = _by_size(order, given, count) if given.is_floating_point() else _by_class(order, given)
    is_held = torch.zeros(len(first), dtype=torch.bool)
    is_held[order[:count]] = True
    return (~is_held[unit]).nonzero().flatten(), is_held[unit].nonzero().flatten()


def _distinct(source: Source, parts: int) -> tuple[Tensor, Tensor]:
    """Return the first index of each distinct row, and the number of the distinct row for each row.

    Otherwise a network could be scored on copies of its training rows. Rows are copies if inputs and targets are equal. If equal inputs have
    several targets, or if there are too few distinct rows to split, every row counts as distinct.
    """
    every = torch.arange(source.points)
    found = source.row_hashes()
    if found is None:
        return every, every
    x, y = found
    _, first, unit = np.unique(x * np.uint64(31) + y, return_index=True, return_inverse=True)
    if len(first) == source.points or len(first) < max(_FEW, 2 * parts) or len(first) > 1.05 * len(np.unique(x)):
        return every, every
    order = first.argsort()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return torch.from_numpy(first[order]), torch.from_numpy(rank[unit])


def _by_class(order: Tensor, labels: Tensor) -> Tensor:
    """Return the order rearranged so that any first part of it is stratified by class.

    Row k of the n of a class gets the quantile (k + 1/2) / n; one of each class comes last.
    """
    quantile = torch.empty(len(order), dtype=torch.float64)
    for label in labels.unique():
        own = order[labels[order] == label]
        quantile[own] = (torch.arange(len(own), dtype=torch.float64) + 0.5) / len(own)
        quantile[own[-1]] += 1.0
    return order[quantile[order].argsort(stable=True)]


def _by_size(order: Tensor, values: Tensor, count: int) -> Tensor:
    """Return the order rearranged so that its first `count` rows are one of each of as many runs of neighboring values."""
    ranks = values[order].argsort(stable=True)  # places in the order, by value; equal values stay in the order drawn
    runs = torch.empty(len(order), dtype=torch.long)
    runs[ranks] = torch.arange(len(order)) * count // len(order)
    places = torch.full((count,), len(order)).scatter_reduce(0, runs, torch.arange(len(order)), "amin")
    is_first = torch.zeros(len(order), dtype=torch.bool)
    is_first[places] = True
    return torch.cat([order[is_first], order[~is_first]])


def partition(source: Source, parts: int, seed: int) -> Tensor:
    """Return the fold of each row (row,), from 0 on, drawn by the seed.

    Folds differ by at most one distinct row and are stratified by targets in memory; copies of a row stay together (`_distinct`). Rows of one
    group (`source.groups`) stay together; folds are then about equally large.
    """
    if not 2 <= parts <= source.points:
        raise InputError(f"folds is {parts} for {source.points} points; give 2 or more, at most one for each point.")
    generator = rng.generator(seed, "folds")
    if source.groups is not None:
        return _by_group(source.groups, parts, generator)
    first, unit = _distinct(source, parts)
    order = torch.randperm(len(first), generator=generator)
    targets = source.targets()
    if targets is not None and targets[0].numel() == 1:
        order = order[targets.flatten()[first][order].argsort(stable=True)]  # neighbors have equal or similar targets
    rounds = -(-len(first) // parts)
    dealt = torch.stack([torch.randperm(parts, generator=generator) for _ in range(rounds)]).flatten()
    found = torch.empty(len(first), dtype=torch.long)
    found[order] = dealt[: len(first)]
    return found[unit]


def _by_group(groups: Tensor, parts: int, generator: torch.Generator) -> Tensor:
    sizes = groups.bincount()
    if len(sizes) < parts:
        raise InputError(f"folds is {parts} for {len(sizes)} groups; give at most one fold for each group.")
    order = torch.randperm(len(sizes), generator=generator)
    order = order[sizes[order].argsort(descending=True, stable=True)]
    filled, place = torch.zeros(parts, dtype=torch.long), torch.empty(len(sizes), dtype=torch.long)
    for group in order.tolist():
        place[group] = int(filled.argmin())
        filled[place[group]] += sizes[group]
    return place[groups]
