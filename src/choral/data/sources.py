"""Training data as the engine reads it: points picked by index, batch by batch.

Arrays and tensors stay in memory and are indexed per batch. Map-style datasets and DataLoaders are read through torch's own
loader workers, in the engine's order, so that runs stay exact. Images of bytes stay bytes until a batch is made. Inputs are
batches as `choral.base.batches` has them: a tensor, or dicts, tuples and lists of tensors.
"""

import copy
import hashlib
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from choral.base import batches
from choral.base.batches import Batch
from choral.base.errors import InputError, did_you_mean
from choral.plan.cost import batches_in

_WHOLE_BYTES = 64 << 20  # larger arrays are hashed by rows taken at even distances


def as_inputs(x: Any, floats: torch.dtype | None = None) -> Batch:
    """Return inputs as a batch: bytes, booleans and integers stay, real numbers take a type; refuses NaN and infinities.

    Args:
        x: an array, or a dict, tuple or list of arrays with equally many rows.
        floats: the type real numbers take, that of the network's parameters; each keeps its own if None.
    """
    if isinstance(x, Tensor):
        return _input(x, "x", floats)
    made = batches.gathered(x, lambda value, name: _input(value, name, floats))
    batches.check_rows(made)
    return made


def _input(value: Any, name: str, floats: torch.dtype | None) -> Tensor:
    given = _tensor(value, name)
    if given.dtype in (torch.uint8, torch.int64, torch.bool):
        return given
    if not given.dtype.is_floating_point:
        return given.long()
    cast = given if floats is None else given.to(floats)
    if math.isfinite(cast.sum().item()):  # cheap; a sum can overflow, so rows are looked at before anything is refused
        return cast
    bad = _unfinite_rows(given)
    if bad.any():
        raise InputError(
            f"{name} holds NaN or infinite values in {int(bad.sum())} row(s), the first at {_first(bad)}; "
            "fill or drop these rows before fitting."
        )
    bad = _unfinite_rows(cast)
    if bad.any():
        raise InputError(
            f"{name} holds numbers beyond the reach of the network's {str(cast.dtype).removeprefix('torch.')} "
            f"({torch.finfo(cast.dtype).max:.2g}) in {int(bad.sum())} row(s), the first at {_first(bad)}; scale them, or build the "
            "network in double precision."
        )
    return cast


def _unfinite_rows(x: Tensor) -> Tensor:
    return ~torch.isfinite(x).flatten(1).all(1) if x.dim() > 1 else ~torch.isfinite(x)


def _first(rows: Tensor) -> list[int]:
    return rows.nonzero().flatten()[:5].tolist()


def as_targets(y: Any) -> Tensor:
    """Return targets as a tensor: whole numbers as int64, reals as float32 or float64; what they mean the likelihood says."""
    y = _tensor(y, "y")
    if y.dtype.is_floating_point:
        if not torch.isfinite(y).all():
            rows = (~torch.isfinite(y)).flatten().nonzero().flatten()[:5].tolist()
            raise InputError(
                f"y holds NaN or infinite values, the first at {rows}; fill or drop these rows before fitting."
            )
        return y if y.dtype == torch.float64 else y.float()
    y = y.long()
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    return y


def as_weights(weights: Any, points: int) -> Tensor:
    """Return weights of so many points (point,) as float64; InputError for others than finite numbers of 0 or more."""
    found = _tensor(weights, "weights").double()
    found = found[:, 0] if found.dim() == 2 and found.shape[1] == 1 else found
    if tuple(found.shape) != (points,):
        raise InputError(f"weights has shape {tuple(found.shape)} for {points} points; give one number for each point.")
    if not bool((torch.isfinite(found) & (found >= 0)).all()) or not bool((found > 0).any()):
        raise InputError("weights must be finite numbers of 0 or more, at least one of them above 0.")
    return found


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InputError(f"{name} holds complex numbers; give their real and imaginary parts as two numbers.")
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{name} holds values of type {array.dtype}, not numbers; "
            + ("encode labels as integers 0, 1, 2, ..." if name == "y" else "encode every column as numbers.")
        )
    return torch.from_numpy(np.ascontiguousarray(array))


class Source(ABC):
    """Training points by index."""

    points: int
    weights: Tensor | None = None  # of the points (point,), float64; None counts all alike

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
            return self.part(kept).weighing(checked[kept])
        twin = copy.copy(self)
        twin.weights = checked
        return twin

    @abstractmethod
    def part(self, rows: Tensor) -> "Source":
        """Return a source of some of the points."""

    @property
    @abstractmethod
    def is_ragged(self) -> bool:
        """Whether batches are made by code of the user's, so that equally many points may make batches of different shapes."""

    @abstractmethod
    def settle(self, floats: torch.dtype) -> None:
        """Give real numbers in the type of the network from now on; raises InputError for numbers it cannot hold.

        Real targets are float64 for a network of double precision and float32 for all others.
        """

    @abstractmethod
    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first points as one batch."""

    @abstractmethod
    def epoch(self, order: Tensor, batch_size: int) -> Iterator[tuple[Batch, Tensor]]:
        """Yield the batches of one epoch in an order given as indices.

        Shapes: order (point,) gives x (batch, ...); order (member, point) gives x (member, batch, ...).
        """

    @abstractmethod
    def digest(self) -> str:
        """Return a short text that changes when the data changes."""

    @abstractmethod
    def targets(self) -> Tensor | None:
        """Return all targets when they are in memory."""

    @abstractmethod
    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same points with targets as a likelihood reads them; the digest stays that of the data."""


def _bounds(points: int, batch_size: int) -> list[tuple[int, int]]:
    return [(i * batch_size, min((i + 1) * batch_size, points)) for i in range(batches_in(points, batch_size))]


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
        self.points = batches.rows(self.x)
        if self.points != len(self.y):
            hint = "; a list of arrays is read as that many inputs" if isinstance(x, list) else ""
            raise InputError(f"x has {self.points} rows and y has {len(self.y)}; they must be equally long{hint}.")
        if not self.points:
            raise InputError("the training data is empty; give at least one row.")
        self._given: Tensor | None = None  # targets before a likelihood read them
        self.x = batches.mapped(lambda t: t.permute(0, 2, 3, 1).contiguous() if t.dim() == 4 else t, self.x)

    @property
    def is_ragged(self) -> bool:
        """No: rows are cut from arrays."""
        return False

    def settle(self, floats: torch.dtype) -> None:
        """Cast the arrays once."""
        self.x, self.y = as_inputs(self.x, floats), _cast_targets(self.y, floats)

    def _pick(self, index: Tensor) -> Batch:
        return batches.mapped(lambda t: _rows(t, index).movedim(-1, -3) if t.dim() == 4 else _rows(t, index), self.x)

    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first points."""
        index = torch.arange(min(count, self.points))
        return self._pick(index), self.y[index]

    def epoch(self, order: Tensor, batch_size: int) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches by indexing."""
        for start, end in _bounds(order.shape[-1], batch_size):
            index = order[..., start:end]
            yield self._pick(index), _rows(self.y, index)

    def targets(self) -> Tensor | None:
        """Return y."""
        return self.y

    def part(self, rows: Tensor) -> "Source":
        """Return some of the rows."""
        twin = copy.copy(self)
        twin.x, twin.y, twin.points = batches.mapped(lambda t: t[rows], self.x), self.y[rows], len(rows)
        return twin

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same inputs with targets that were read once."""
        twin = copy.copy(self)
        twin._given, twin.y = self.y, read(self.y)
        return twin

    def digest(self) -> str:
        """Return a hash over shapes, types and values."""
        arrays = _arrays(self.x, self.y if self._given is None else self._given)
        return _hash(arrays if self.weights is None else [*arrays, self.weights.numpy()])


def _cast_targets(y: Tensor, floats: torch.dtype) -> Tensor:
    return y.to(torch.float64 if floats == torch.float64 else torch.float32) if y.is_floating_point() else y


def _arrays(x: Batch, y: Tensor) -> list[np.ndarray]:
    """Return all values as arrays, and the names of several inputs as one more."""
    tensors = [t.view(torch.int16) if t.dtype == torch.bfloat16 else t for t in (*batches.leaves(x), y)]
    arrays = [t.numpy() for t in tensors]
    return arrays if isinstance(x, Tensor) else [*arrays, np.array([n for n, _ in batches.named_leaves(x)])]


def _hash(arrays: Sequence[np.ndarray]) -> str:
    state = hashlib.blake2b(digest_size=12)
    for array in arrays:
        state.update(f"{array.shape}{array.dtype}".encode())
        if array.nbytes > _WHOLE_BYTES:
            array = array[:: -(-array.nbytes // _WHOLE_BYTES)]
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


class _Batches:
    """The batches of the next epoch, as a sampler that a loader with lasting workers asks anew each time."""

    def __init__(self, batches: list[list[int]]):
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class DatasetSource(Source):
    """A map-style dataset, read item by item through torch's loader in the engine's order.

    Loader workers last as long as the source: starting them anew took 1.2 s of 1.6 s of an epoch.
    """

    def __init__(
        self, dataset: Dataset[Any], *, workers: int = 0, collate: Any = None, target: str | int | None = None
    ):
        self.dataset, self.workers, self.collate, self.target = dataset, workers, collate, target
        self._floats = torch.float32
        self._next = _Batches([])
        self._lasting: DataLoader[Any] | None = None
        self._read: Callable[[Tensor], Tensor] = lambda y: y
        self._reading = threading.Lock()  # only one epoch at a time can be read by the lasting workers
        self.points = len(dataset)  # type: ignore[arg-type]  # checked to be map-style by source_of
        if not self.points:
            raise InputError("the dataset is empty; give at least one item.")

    @property
    def is_ragged(self) -> bool:
        """Whether it has a collate function of its own."""
        return self.collate not in (None, default_collate)

    def settle(self, floats: torch.dtype) -> None:
        """Cast every batch."""
        self._floats = floats

    def _load(self, numbers: list[list[int]]) -> Iterator[tuple[Batch, Tensor]]:
        lasting = self.workers > 0 and self._reading.acquire(blocking=False)
        try:
            for batch in self._lasting_loader(numbers) if lasting else self._loader(_Batches(numbers)):
                x, y = parted(batch, self.target)
                yield as_inputs(x, self._floats), self._read(_cast_targets(as_targets(y), self._floats))
        finally:
            if lasting:
                self._reading.release()

    def _loader(self, batches: _Batches, *, lasting: bool = False) -> DataLoader[Any]:
        return DataLoader(
            self.dataset,
            batch_sampler=batches,
            num_workers=self.workers,
            collate_fn=self.collate,
            persistent_workers=lasting,
        )

    def _lasting_loader(self, numbers: list[list[int]]) -> DataLoader[Any]:
        self._next.batches = numbers
        if self._lasting is None:
            self._lasting = self._loader(self._next, lasting=True)
        return self._lasting

    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first items as a batch."""
        return next(self._load([list(range(min(count, self.points)))]))

    def epoch(self, order: Tensor, batch_size: int) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches made by the loader."""
        bounds = _bounds(order.shape[-1], batch_size)
        if order.dim() == 1:
            yield from self._load([order[a:b].tolist() for a, b in bounds])
        elif self.is_ragged:
            each = self._load([one[a:b].tolist() for a, b in bounds for one in order])
            for _ in bounds:
                yield _stacked([next(each) for _ in order])
        else:
            for x, y in self._load([order[:, a:b].flatten().tolist() for a, b in bounds]):
                yield batches.mapped(lambda t: t.unflatten(0, (len(order), -1)), x), y.unflatten(0, (len(order), -1))

    def targets(self) -> Tensor | None:
        """Return None: they are not in memory."""
        return None

    def part(self, rows: Tensor) -> "Source":
        """Return some of the items, read by workers of their own."""
        twin = DatasetSource(
            Subset(self.dataset, rows.tolist()), workers=self.workers, collate=self.collate, target=self.target
        )
        twin._floats, twin._read = self._floats, self._read
        return twin

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same items, their targets read as they come."""
        twin = copy.copy(self)
        twin._read = read
        return twin

    def digest(self) -> str:
        """Return a hash over the length and a few items."""
        rows = sorted({round(i * (self.points - 1) / 15) for i in range(16)})
        arrays = _arrays(*next(self._load([rows])))
        return f"{self.points}-{_hash(arrays if self.weights is None else [*arrays, self.weights.numpy()])}"


def _stacked(each: Sequence[tuple[Batch, Tensor]]) -> tuple[Batch, Tensor]:
    """Return the batches of several branches, each made by itself, as one with a first axis over branches."""
    shapes = {repr(batches.signature(x)): batches.in_words(x) for x, _ in each}
    if len(shapes) > 1:
        raise InputError(
            f"the collate function made batches of different shapes for branches that are trained together, {' and '.join(list(shapes.values())[:2])}; "
            "use executor='sequential', or pad every item to the same length."
        )
    return batches.merged(torch.stack, [x for x, _ in each]), torch.stack([y for _, y in each])


def parted(item: Any, target: str | int | None = None) -> tuple[Any, Any]:
    """Return the inputs and the targets in what a dataset or loader gives: a pair, or with a target's name, a dict.

    >>> parted({"image": 1, "age": 2, "label": 3}, "label")
    ({'image': 1, 'age': 2}, 3)
    """
    if isinstance(item, Mapping):
        names = [str(name) for name in item]
        if target is None or target not in item:
            given = "" if target is None else f"target={target!r} is not one of them; "
            raise InputError(
                f"the data are dicts with {', '.join(map(repr, names))}; {given}say which is the target: fit(..., target="
                f"{names[-1]!r}), and all others become inputs by keyword.{did_you_mean(str(target), names)}"
            )
        return {name: value for name, value in item.items() if name != target}, item[target]
    if target is not None:
        raise InputError(
            f"target={target!r}, but the data are no dicts; leave it out: the second of a pair is the target."
        )
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    parts = f"{len(item)} parts" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise InputError(
        f"an item of the dataset is {parts}; it must be a pair (x, y), with several inputs as ((x1, x2), y) or a dict of them, or "
        "a dict together with fit(..., target='its key')."
    )


def source_of(data: Any, target: str | int | None = None) -> Source:
    """Return training data as a source.

    Args:
        data: see below.
        target: the key of the target where items are dicts.

    Accepts a pair (x, y) of arrays or tensors, or (x, y, weights), a map-style Dataset of (x, y) items, or a DataLoader over one (its batch
    order is replaced by the engine's; its workers and collate function are used). Several inputs are a dict, tuple or list in the
    place of x; with `target`, data or items are dicts that hold the target too.
    """
    if isinstance(data, Source):
        return data
    if target is not None and isinstance(data, tuple | list):
        raise InputError(f"target={target!r}, but data is a pair (x, y), whose second is the target; leave it out.")
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise InputError(
                "data is a DataLoader over an IterableDataset, which cannot be read again by index, so no run could be "
                "exact or resumed; give a map-style Dataset or arrays."
            )
        return DatasetSource(data.dataset, workers=data.num_workers, collate=data.collate_fn, target=target)
    if isinstance(data, Mapping):
        return TensorSource(*parted(data, target))
    if isinstance(data, tuple | list) and len(data) == 2:
        return TensorSource(*data)
    if isinstance(data, tuple) and len(data) == 3:
        return TensorSource(*data[:2]).weighing(data[2])
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DatasetSource(data, target=target)
    raise InputError(
        f"data is of type {type(data).__name__}; give a pair (x, y) of arrays or tensors, a map-style Dataset, "
        "or a DataLoader over one."
    )
