"""Map-style datasets, read item by item through torch's own loader workers, in the engine's order and under its keys.

What an item draws while it is read (an augmentation) is decided by the epoch and the item: torch's, numpy's and Python's
generators are set by a key before each item and given back afterwards, in worker processes too. Datasets that draw nothing are
found out by their generators standing still, and pay for that look alone.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from choral.base import batches, rng
from choral.base.batches import Batch
from choral.base.draws import under
from choral.base.errors import InputError, did_you_mean, warn
from choral.data.tensors import (
    Batches,
    Keys,
    Share,
    Source,
    arrays_of,
    as_inputs,
    as_targets,
    bounds,
    cast_targets,
    hashed,
)  # fmt: skip

_LOOKED_AT = 4096  # items that identify a dataset without a name, at most; and of their bytes:
_BYTES = 64 << 20
_READ = 64  # items read at once to identify a dataset
_LAST = 2  # place of the weight in an item (x, y, weight)
_TWICE = 16  # items read twice, to see whether keys decide what they draw

Numbered = tuple[int, int, int]  # the key of an epoch, the position in it, and the item's number


class Keyed(Dataset[Any]):
    """The items of a dataset by key, position and number; what they draw follows from these alone."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        self.drawn: frozenset[str] = frozenset()  # generators that items draw from; found out while reading
        self._many = getattr(dataset, "__getitems__", None)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, wanted: Sequence[Numbered]) -> list[Any]:
        """Return some items, as torch's loader asks for them."""
        with under(stream=None), _disable_current_modes(), rng.LOCK:  # workers inherit what runs around them
            before = rng.global_states()
            try:
                while True:
                    items = self._read(wanted)
                    more = rng.moved(before, rng.GLOBAL.keys() - self.drawn)
                    if not more:
                        return items
                    self.drawn |= more
            finally:
                for name in self.drawn:
                    rng.GLOBAL[name].put(before[name])

    def _read(self, wanted: Sequence[Numbered]) -> list[Any]:
        if self._many and not self.drawn:
            return list(self._many([number for _, _, number in wanted]))
        return [self._item(*each) for each in wanted]

    def _item(self, key: int, position: int, number: int) -> Any:
        if self.drawn:
            own = rng.key(key, position, number)
            for name in self.drawn:
                rng.GLOBAL[name].seed(own)
        return self.dataset[number]


class DatasetSource(Source):
    """A map-style dataset, read item by item through torch's loader in the engine's order.

    Loader workers last as long as the source: starting them anew took 1.2 s of 1.6 s of an epoch.

    Args:
        dataset: the dataset; an attribute `name`, a text, stands for what it holds.
        workers: loader processes.
        collate: makes a batch of items; torch's own if None.
        target: the key of the target where items are dicts.
        weight: which part of an item is its weight, if one is: a key of dicts, or 2 for items (x, y, weight).
        options: further arguments of torch's loader.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        workers: int = 0,
        collate: Any = None,
        target: str | int | None = None,
        weight: str | int | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        self.workers, self.collate, self.target, self.weight = workers, collate, target, weight
        self.is_ragged = collate not in (None, default_collate)
        self._options, self._floats = dict(options or {}), torch.float32
        self._read: Callable[[Tensor], Tensor] | None = None
        self._take(dataset)

    def _take(self, dataset: Any) -> Self:
        """Read this dataset from now on."""
        self.dataset, self._items, self.points = dataset, Keyed(dataset), len(dataset)
        if not self.points:
            raise InputError("the dataset is empty; give at least one item.")
        self._next: list[list[Numbered]] = []  # the batches that the lasting workers read next
        self._lasting: DataLoader[Any] | None = None
        self._reading = threading.Lock()  # only one epoch at a time can be read by the lasting workers
        return self

    def settle(self, floats: torch.dtype) -> None:
        self._floats = floats

    def _load(self, numbers: list[list[Numbered]]) -> Batches:
        lasting = self.workers > 0 and self._reading.acquire(blocking=False)
        try:
            for batch in self._lasting_loader(numbers) if lasting else self._loader(numbers):
                x, y = parted(batch, self.target, self.weight)
                given = as_targets(y)
                read = given if self._read is None else cast_targets(self._read(given), self._floats)
                yield as_inputs(x, self._floats), read
        finally:
            if lasting:
                self._reading.release()

    def _loader(self, numbers: list[list[Numbered]], *, lasting: bool = False) -> DataLoader[Any]:
        return DataLoader(
            self._items,
            batch_sampler=numbers,
            num_workers=self.workers,
            collate_fn=self.collate or collated,
            persistent_workers=lasting,
            generator=torch.Generator().manual_seed(0),  # seeds of workers; the global generator stays as it is
            **self._options,
        )

    def _lasting_loader(self, numbers: list[list[Numbered]]) -> DataLoader[Any]:
        self._next[:] = numbers
        if self._lasting is None:
            self._lasting = self._loader(self._next, lasting=True)
        return self._lasting

    def item_weights(self) -> Tensor:
        """Return the weights that items bring; every item is read once for that."""
        found = [weight_in(self._items.__getitems__([(0, i, i)])[0], self.weight) for i in range(self.points)]
        return torch.tensor([float(w) for w in found], dtype=torch.float64)

    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        return next(self._load([[(0, i, i) for i in range(min(count, self.points))]]))

    def epoch(self, order: Tensor, batch_size: int, *, keys: Keys = None, among: Share = (0, 1)) -> Batches:
        rows = order if order.dim() == 2 else order.unsqueeze(0)
        keyed = zip(keys or [0] * len(rows), rows.tolist())
        each = [[(key, i, number) for i, number in enumerate(row)] for key, row in keyed]
        places = bounds(order.shape[-1], batch_size, among)
        made = self._load([own[a:b] for a, b in places for own in each])
        if order.dim() == 1:
            yield from made
            return
        for _ in places:
            x, y = zip(*(next(made) for _ in each))
            yield batches.merged(torch.stack, x), torch.stack(y)

    def part(self, rows: Tensor) -> "Source":
        return self._with()._take(Subset(self.dataset, rows.tolist()))

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        return self._with(_read=read)

    def digest(self) -> str:
        """Return the length and class with what tells two datasets apart: a name given by the user, or the items.

        Items are read under one key, so that those that draw are the same in the next call: all of them, or as many as 64 MB hold, 4,096
        at most, at even distances. Those that differ from read to read all the same tell nothing.
        """
        head = f"{type(self.dataset).__qualname__}-{self.points}"
        name = getattr(self.dataset, "name", None)
        if isinstance(name, str):
            return f"{head}-named {name}"
        once, again = (self._hashed(range(min(_TWICE, self.points))) for _ in range(2))
        if once != again:
            warn(
                f"two reads of the same items of the {type(self.dataset).__name__} differ although the generators of torch, numpy and Python "
                "were set alike, so members of another run will differ too; draw from these generators in __getitem__.",
            )
            return head
        x, y = self.example(1)
        bytes_ = sum(t.numel() * t.element_size() for t in (*batches.leaves(x), y))
        count = min(self.points, _LOOKED_AT, max(_BYTES // max(bytes_, 1), _TWICE))
        return f"{head}-{self._hashed(sorted({round(i) for i in np.linspace(0, self.points - 1, count)}))}"

    def _hashed(self, numbers: Sequence[int]) -> str:
        wanted = [[(0, n, n) for n in numbers[a : a + _READ]] for a in range(0, len(numbers), _READ)]
        raw = self._with(_read=None)._load(wanted)
        return hashed([array for x, y in raw for array in arrays_of(x, y)], self.weights)


def is_dataset(data: Any) -> bool:
    """Return whether something is read item by item: it has a length and items by number, and is no array, data frame, dict or list."""
    if isinstance(data, Mapping | list | tuple | str | bytes | IterableDataset) or hasattr(data, "__array__"):
        return False
    return hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")


def collated(items: list[Any]) -> Any:
    """Return a batch as torch's own `default_collate` makes it, but with lists of numbers in dicts as arrays (`datasets` gives them so)."""

    def array(value: Any) -> Any:
        with suppress(TypeError, ValueError, RuntimeError):  # words, or lists of different lengths
            return torch.as_tensor(value) if type(value) is list else value
        return value

    dicts = all(type(item) is dict for item in items)
    return default_collate([{n: array(v) for n, v in item.items()} for item in items] if dicts else items)


def parted(item: Any, target: str | int | None = None, weight: str | int | None = None) -> tuple[Any, Any]:
    """Return the inputs and the targets in what a dataset or loader gives: a pair, or with a target's name, a dict.

    >>> parted({"image": 1, "age": 2, "label": 3}, "label")
    ({'image': 1, 'age': 2}, 3)
    """
    match item:
        case Mapping() if target is not None and target in item:
            return {name: value for name, value in item.items() if name not in (target, weight)}, item[target]
        case Mapping():
            names = [str(name) for name in item] or ["y"]
            given = "" if target is None else f"target={target!r} is not one of them; "
            raise InputError(
                f"the data are dicts with {', '.join(map(repr, names))}; {given}say which is the target: fit(..., target="
                f"{names[-1]!r}), and all others become inputs by keyword.{did_you_mean(str(target), names)}"
            )
        case _ if target is not None:
            raise InputError(
                f"target={target!r}, but the data are no dicts; leave it out: the second of a pair is the target."
            )
        case [x, y]:
            return x, y
        case [x, y, _] if weight is not None:
            return x, y
    raise InputError(
        f"an item of the dataset is {_kind(item)}; it must be a pair (x, y), with several inputs as ((x1, x2), y) or a dict of them, "
        "a dict together with fit(..., target='its key'), or (x, y, weight) together with fit(..., sample_weight=2)."
    )


def inputs_in(item: Any) -> Any:
    """Return the inputs in what a dataset or loader gives to predict: inputs alone, (x,), or a pair with targets."""
    match item:
        case [x] | [x, _]:
            return x
    return item


def is_key(weights: Any) -> bool:
    """Return whether weights say where they are in an item, instead of what they are.

    >>> is_key("weight"), is_key(2), is_key([1.0, 2.0]), is_key(None)
    (True, True, False, False)
    """
    return type(weights) in (str, int)


def weight_in(item: Any, key: Any) -> Any:
    """Return the weight in an item, or of a dict of arrays; InputError if there is none."""
    if key in (item if isinstance(item, Mapping) else range(_LAST, len(item))):
        return item[key]
    raise InputError(
        f"sample_weight={key!r} is not a part of an item, which is {_kind(item)}; 2 takes items (x, y, weight), a text items that are dicts."
    )


def _kind(item: Any) -> str:
    match item:
        case Mapping():
            return f"a dict with {', '.join(map(repr, item))}"
        case [*parts]:
            return f"a {type(item).__name__} of {len(parts)} parts"
    return f"a {type(item).__name__}"
