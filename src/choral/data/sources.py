"""Training data as the engine reads it: points picked by index, batch by batch.

Arrays and tensors stay in memory and are indexed per batch. Map-style datasets and DataLoaders are read through torch's own
loader workers, in the engine's order, so that runs stay exact. Images of bytes stay bytes until a batch is made.
"""

import hashlib
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from choral.base.errors import InputError
from choral.plan.cost import batches_in

_WHOLE_BYTES = 64 << 20  # larger arrays are hashed by rows taken at even distances


def as_inputs(x: Any) -> Tensor:
    """Return inputs as a tensor: bytes and integers stay, other numbers become float32; refuses NaN and infinities."""
    x = _tensor(x, "x")
    if x.dtype in (torch.uint8, torch.int64, torch.bool):
        return x
    if not x.dtype.is_floating_point:
        return x.long()
    if math.isfinite(x.sum().item()):  # cheap; a sum can overflow, so the rows are looked at before anything is refused
        return x.float()
    bad = ~torch.isfinite(x).flatten(1).all(1) if x.dim() > 1 else ~torch.isfinite(x)
    if bad.any():
        rows = bad.nonzero().flatten()[:5].tolist()
        raise InputError(
            f"x holds NaN or infinite values in {int(bad.sum())} row(s), the first at {rows}; "
            "fill or drop these rows before fitting."
        )
    return x.float()


def as_targets(y: Any) -> Tensor:
    """Return targets as a tensor: integers are class labels (int64), reals are regression targets (float32)."""
    y = _tensor(y, "y")
    if y.dtype.is_floating_point:
        if not torch.isfinite(y).all():
            rows = (~torch.isfinite(y)).flatten().nonzero().flatten()[:5].tolist()
            raise InputError(
                f"y holds NaN or infinite values, the first at {rows}; fill or drop these rows before fitting."
            )
        return y.float()
    y = y.long()
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.numel() and int(y.min()) < 0:
        raise InputError(f"y holds the negative label {int(y.min())}; class labels must be 0, 1, 2, ...")
    return y


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
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

    @abstractmethod
    def example(self, count: int = 2) -> tuple[Tensor, Tensor]:
        """Return the first points as one batch."""

    @abstractmethod
    def epoch(self, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch in an order given as indices.

        Shapes: order (point,) gives x (batch, ...); order (member, point) gives x (member, batch, ...).
        """

    @abstractmethod
    def digest(self) -> str:
        """Return a short text that changes when the data changes."""

    @abstractmethod
    def targets(self) -> Tensor | None:
        """Return all targets when they are in memory."""


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
        if len(self.x) != len(self.y):
            raise InputError(f"x has {len(self.x)} rows and y has {len(self.y)}; they must be equally long.")
        if not len(self.x):
            raise InputError("the training data is empty; give at least one row.")
        self.points = len(self.x)
        self._image = self.x.dim() == 4
        if self._image:
            self.x = self.x.permute(0, 2, 3, 1).contiguous()

    def _pick(self, index: Tensor) -> Tensor:
        picked = _rows(self.x, index)
        return picked.movedim(-1, -3) if self._image else picked

    def example(self, count: int = 2) -> tuple[Tensor, Tensor]:
        """Return the first points."""
        index = torch.arange(min(count, self.points))
        return self._pick(index), self.y[index]

    def epoch(self, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches by indexing."""
        for start, end in _bounds(order.shape[-1], batch_size):
            index = order[..., start:end]
            yield self._pick(index), _rows(self.y, index)

    def targets(self) -> Tensor | None:
        """Return y."""
        return self.y

    def digest(self) -> str:
        """Return a hash over shapes, types and values."""
        return _hash([self.x.numpy(), self.y.numpy()])


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

    def __init__(self, dataset: Dataset[Any], *, workers: int = 0, collate: Any = None):
        self.dataset, self.workers, self.collate = dataset, workers, collate
        self._next = _Batches([])
        self._lasting: DataLoader[Any] | None = None
        self._reading = threading.Lock()  # only one epoch at a time can be read by the lasting workers
        self.points = len(dataset)  # type: ignore[arg-type]  # checked to be map-style by source_of
        if not self.points:
            raise InputError("the dataset is empty; give at least one item.")

    def _load(self, batches: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        lasting = self.workers > 0 and self._reading.acquire(blocking=False)
        try:
            for x, y in self._lasting_loader(batches) if lasting else self._loader(_Batches(batches)):
                yield as_inputs(x), as_targets(y)
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

    def _lasting_loader(self, batches: list[list[int]]) -> DataLoader[Any]:
        self._next.batches = batches
        if self._lasting is None:
            self._lasting = self._loader(self._next, lasting=True)
        return self._lasting

    def example(self, count: int = 2) -> tuple[Tensor, Tensor]:
        """Return the first items as a batch."""
        return next(self._load([list(range(min(count, self.points)))]))

    def epoch(self, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches made by the loader."""
        orders = order if order.dim() == 2 else order.unsqueeze(0)
        batches = [orders[:, a:b].flatten().tolist() for a, b in _bounds(orders.shape[1], batch_size)]
        for x, y in self._load(batches):
            if order.dim() == 2:
                x, y = x.unflatten(0, (len(orders), -1)), y.unflatten(0, (len(orders), -1))
            yield x, y

    def targets(self) -> Tensor | None:
        """Return None: they are not in memory."""
        return None

    def digest(self) -> str:
        """Return a hash over the length and a few items."""
        rows = sorted({round(i * (self.points - 1) / 15) for i in range(16)})
        x, y = next(self._load([rows]))
        return f"{self.points}-{_hash([x.numpy(), y.numpy()])}"


def source_of(data: Any) -> Source:
    """Return training data as a source.

    Accepts a pair (x, y) of arrays or tensors, a map-style Dataset of (x, y) items, or a DataLoader over one (its batch
    order is replaced by the engine's; its workers and collate function are used).
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise InputError(
                "data is a DataLoader over an IterableDataset, which cannot be read again by index, so no run could be "
                "exact or resumed; give a map-style Dataset or arrays."
            )
        return DatasetSource(data.dataset, workers=data.num_workers, collate=data.collate_fn)
    if isinstance(data, tuple | list) and len(data) == 2:
        return TensorSource(*data)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DatasetSource(data)
    raise InputError(
        f"data is of type {type(data).__name__}; give a pair (x, y) of arrays or tensors, a map-style Dataset, "
        "or a DataLoader over one."
    )
