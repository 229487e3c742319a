"""The contract of training data, points picked by index, batch by batch; and arrays in memory that fulfill it.

Inputs are batches as `choral.base.batches` has them: a tensor, or dicts, tuples and lists of tensors.
"""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from choral.base import batches, devices
from choral.base.batches import Batch
from choral.base.errors import InputError
from choral.data.frames import columns_in
from choral.data.given import MISSING, as_inputs, as_targets, as_weights, cast_targets, check_resolution
from choral.plan.cost import batches_in


@dataclass(frozen=True, eq=False)
class Sampling:
    """A rule by which epochs draw points.

    Args:
        weights: of every point, from 0, in float64; they need not sum to 1.
        count: points in an epoch.
        replacement: whether a point can come more than once.
    """

    weights: Tensor
    count: int
    replacement: bool

    def __post_init__(self) -> None:
        usable = int((self.weights > 0).sum())
        if self.count < 1 or not usable or (not self.replacement and self.count > usable):
            raise InputError(
                f"the sampler draws {self.count} points an epoch {'with' if self.replacement else 'without'} replacement, but "
                f"{usable} of its {len(self.weights)} weights are above 0; give weights for the points, or another num_samples."
            )

    def order(self, generator: torch.Generator, subset: Tensor | None = None) -> Tensor:
        """Return the points of one epoch, as positions in the subset if there is one."""
        weights = self.weights if subset is None else self.weights[subset]
        return torch.multinomial(weights, self.count, self.replacement, generator=generator)

    def of_rows(self, rows: Tensor) -> "Sampling":
        """Return the rule for some of the points, which draw their share of the epoch."""
        kept = self.weights[rows]
        share = len(rows) / len(self.weights)
        return Sampling(kept, max(1, min(round(self.count * share), self.count)), self.replacement)

    @property
    def digest(self) -> str:
        """A short text that changes with the rule."""
        state = hashlib.sha256(f"{self.count} {self.replacement}".encode())
        state.update(self.weights.contiguous().numpy().data)
        return state.hexdigest()[:24]


class Source(ABC):
    """Training points by index.

    `points` says how many there are, `sampling` how an epoch draws from them; None takes each once, in a random order.
    """

    points: int
    weights: Tensor | None = None  # of the points (point,), float64; None counts all alike
    groups: Tensor | None = None  # number of the group of each point (point,), whose points are held out together
    folds: Tensor | None = None  # the part of cross-validation that each point belongs to (point,), from 0 on
    sampling: Sampling | None = None
    loader: DataLoader[Any] | None = None  # what the user gave, if it was one
    columns: dict[str, tuple[str, ...]] | None = None  # names of the columns of data frames, by x and y

    def drawn(self, subset: Tensor | None = None) -> int:
        """Return how many points one epoch of a network sees that is trained on all of them, or on some."""
        if self.sampling is not None:
            return self.sampling.count
        return self.points if subset is None else len(subset)

    def mass(self, subset: Tensor | None = None) -> float:
        """Return how many points all of them, or some, count as: the sum of their weights."""
        if self.weights is None:
            return self.points if subset is None else len(subset)
        return float((self.weights if subset is None else self.weights[subset]).sum())

    def weighing(self, weights: Any) -> "Source":
        """Return the same points with weights: 2 counts as the point twice, 0 as if it were not there."""
        checked = as_weights(weights, self.points)
        if bool((checked == 0).any()):
            kept = checked.nonzero().flatten()
            return self.piece(kept).weighing(checked[kept])
        twin = copy.copy(self)
        twin.weights = checked
        return twin

    def grouped(self, groups: Any) -> "Source":
        """Return the same points, those with equal values of `groups` belonging together."""
        values = np.asarray(groups)
        if values.shape != (self.points,):
            raise InputError(
                f"groups has shape {values.shape} for {self.points} points; give one value for each point."
            )
        missing = [i for i, v in enumerate(values) if type(v).__name__ in MISSING or v != v]
        if missing:
            raise InputError(
                f"groups has no value for {len(missing)} point(s), the first at {missing[:5]}; give each one."
            )
        twin = copy.copy(self)
        twin.groups = torch.from_numpy(np.unique(values.astype(str), return_inverse=True)[1].reshape(-1))
        return twin

    def folded(self, folds: Tensor) -> "Source":
        """Return the same points, each with the part of cross-validation it belongs to."""
        twin = copy.copy(self)
        twin.folds = folds
        return twin

    def piece(self, rows: Tensor) -> "Source":
        """Return a source of some of the points with their weights and groups, drawn from as all of them are."""
        twin = self.part(rows)
        twin.sampling = None if self.sampling is None else self.sampling.of_rows(rows)
        twin.weights = None if self.weights is None else self.weights[rows]
        twin.groups = None if self.groups is None else self.groups[rows]
        return twin

    @abstractmethod
    def part(self, rows: Tensor) -> "Source":
        """Return a source of some of the points, without what `piece` adds."""

    @property
    @abstractmethod
    def is_ragged(self) -> bool:
        """Whether batches are made by code of the user's, so that equally many points may make batches of different shapes."""

    @abstractmethod
    def settle(self, floats: torch.dtype) -> None:
        """Give real numbers in the type of the network from now on; raises InputError for numbers it cannot hold.

        Targets stay as they were given until a likelihood reads them (`reading`), so that scaling them loses nothing.
        """

    @abstractmethod
    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first points as one batch."""

    @abstractmethod
    def epoch(
        self,
        order: Tensor,
        batch_size: int,
        *,
        keys: Sequence[int] | None = None,
        among: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield the batches of one epoch in an order given as indices.

        Args:
            order: which points, in which order.
            batch_size: points in a batch.
            keys: of what the items draw while they are read, one for each branch; None reads all under one key.
            among: number of this process and of all that share each batch: only its part is read.

        Shapes: order (point,) gives x (batch, ...); order (branch, point) gives x (branch, batch, ...).
        """

    def placed(self, device: torch.device) -> Self:
        """Return the same points where a device reads them fastest."""
        return self

    @abstractmethod
    def digest(self) -> str:
        """Return a short text that changes when the data changes."""

    @abstractmethod
    def targets(self) -> Tensor | None:
        """Return all targets when they are in memory."""

    def row_hashes(self) -> tuple[Tensor, Tensor] | None:
        """Return a 64-bit hash of each point's input and of its target when they are in memory."""
        return None

    @abstractmethod
    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same points with targets as a likelihood reads them, in the type of training; the digest stays that of the data.

        Real ones are then float64 for a network of double precision and float32 for all others.
        """


def bounds(points: int, batch_size: int, among: tuple[int, int] = (0, 1)) -> list[tuple[int, int]]:
    """Return where the batches of an epoch begin and end, or the parts of them that one of several processes takes.

    >>> bounds(10, 6), bounds(10, 6, (1, 2))
    ([(0, 6), (6, 10)], [(3, 6), (8, 10)])
    """
    whole = [(i * batch_size, min((i + 1) * batch_size, points)) for i in range(batches_in(points, batch_size))]
    rank, size = among
    return [(a + (b - a) * rank // size, a + (b - a) * (rank + 1) // size) for a, b in whole]


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return values[index], several times faster for small rows.

    >>> _rows(torch.tensor([5, 6, 7]), torch.tensor([[2, 0], [1, 1]])).tolist()
    [[7, 5], [6, 6]]
    """
    return values.index_select(0, index.reshape(-1)).view(*index.shape, *values.shape[1:])


class TensorSource(Source):
    """Arrays in memory, indexed per batch; images are kept with their channels last, as convolutions like them."""

    def __init__(self, x: Any, y: Any):
        self.x, self.y = as_inputs(x), as_targets(y)
        self.columns = columns_in(x) | columns_in(y, "y") or None
        if not self.y.dim() or not all(t.dim() for t in batches.leaves(self.x)):
            raise InputError("x or y is a single number; give a first axis over rows.")
        self.points = batches.rows(self.x)
        if self.points != len(self.y):
            hint = "; a list of arrays is read as that many inputs" if isinstance(x, list) else ""
            raise InputError(f"x has {self.points} rows and y has {len(self.y)}; they must be equally long{hint}.")
        if not self.points:
            raise InputError("x and y have no rows; give at least one.")
        self._given: Tensor | None = None  # targets before a likelihood read them
        self._floats = torch.float32
        self.x = batches.mapped(lambda t: t.permute(0, 2, 3, 1).contiguous() if t.dim() == 4 else t, self.x)

    @property
    def is_ragged(self) -> bool:
        """No: rows are cut from arrays."""
        return False

    def settle(self, floats: torch.dtype) -> None:
        """Cast the inputs once."""
        self.x, self._floats = as_inputs(self.x, floats), floats

    def placed(self, device: torch.device) -> Self:
        """Return the same arrays on the device if it can keep them, else where it copies from fastest."""
        if devices.is_processor(device):
            return self
        size = sum(t.numel() * t.element_size() for t in (*batches.leaves(self.x), self.y))
        resident = devices.holds(device, size)
        twin = copy.copy(self)
        twin.x = batches.mapped(lambda t: devices.placed(t, device, resident=resident), self.x)
        twin.y = devices.placed(self.y, device, resident=resident)
        return twin

    def _pick(self, index: Tensor) -> Batch:
        return batches.mapped(lambda t: _rows(t, index).movedim(-1, -3) if t.dim() == 4 else _rows(t, index), self.x)

    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first points."""
        index = torch.arange(min(count, self.points))
        return self._pick(index), self.y[index]

    def epoch(
        self,
        order: Tensor,
        batch_size: int,
        *,
        keys: Sequence[int] | None = None,
        among: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches by indexing; arrays draw nothing."""
        for start, end in bounds(order.shape[-1], batch_size, among):
            index = devices.moved(order[..., start:end], self.y.device)
            yield self._pick(index), _rows(self.y, index)

    def targets(self) -> Tensor | None:
        """Return y."""
        return self.y

    def row_hashes(self) -> tuple[Tensor, Tensor] | None:
        """Return hashes of the bytes of each row."""
        arrays = arrays_of(self.x, self.y)[: len(batches.leaves(self.x)) + 1]
        *x, y = [_hashes(array, number) for number, array in enumerate(arrays)]
        return torch.stack(x).sum(0), y

    def part(self, rows: Tensor) -> "Source":
        """Return some of the rows."""
        twin = copy.copy(self)
        twin.x, twin.y, twin.points = batches.mapped(lambda t: t[rows], self.x), self.y[rows], len(rows)
        return twin

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same inputs with targets that were read once."""
        twin = copy.copy(self)
        exact = read(self.y)
        twin._given, twin.y = self.y, cast_targets(exact, self._floats)
        check_resolution(exact, twin.y)
        return twin

    def digest(self) -> str:
        """Return a hash over shapes, types and values."""
        return hashed(arrays_of(self.x, self.y if self._given is None else self._given), self.weights)


def arrays_of(x: Batch, y: Tensor) -> list[np.ndarray]:
    """Return all values as arrays, and the names of several inputs as one more."""
    tensors = [t.view(torch.int16) if t.dtype == torch.bfloat16 else t for t in (*batches.leaves(x), y)]
    arrays = [t.cpu().numpy() for t in tensors]
    return arrays if isinstance(x, Tensor) else [*arrays, np.array([n for n, _ in batches.named_leaves(x)])]


def _hashes(array: np.ndarray, number: int) -> Tensor:
    """Return the sum of each row's 4-byte words times random odd factors, modulo 2^64."""
    found = []
    for start in range(0, len(array), 4096):
        rows = np.ascontiguousarray(array[start : start + 4096]).reshape(len(array[start : start + 4096]), -1)
        words = rows.view(np.uint8) if rows.itemsize % 4 else rows.view(np.int32)
        factors = np.random.default_rng(number).integers(-(2**62), 2**62, words.shape[1]) * 2 + 1
        found.append(words.astype(np.int64) @ factors)
    return torch.from_numpy(np.concatenate(found))


def hashed(arrays: Sequence[np.ndarray], weights: Tensor | None = None) -> str:
    """Return a hash over every byte, with shapes and types, and over weights of points; 0.7 s for a gigabyte."""
    state = hashlib.sha256()
    for array in arrays if weights is None else [*arrays, weights.numpy()]:
        state.update(f"{array.shape}{array.dtype}".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()[:24]
