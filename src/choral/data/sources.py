"""Training data as the engine reads it: arrays, a map-style Dataset, or a DataLoader over one.

Arrays and tensors, also in a TensorDataset, stay in memory and are indexed per batch. Other datasets are read item by item through
torch's loader workers. Random draws of an item (augmentation) are keyed by the epoch and the item: torch's, numpy's and Python's
generators are seeded before each item and restored afterwards, in worker processes too. Datasets without draws are detected and pay for
the detection only. A DataLoader's sampler, workers and collate function are used; its batch size must be the recipe's.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from choral.base import batches, rng
from choral.base.batches import Batch
from choral.base.draws import under
from choral.base.errors import InputError, did_you_mean, warn
from choral.data.tensors import (
    Batches,
    Keys,
    Sampling,
    Share,
    Source,
    TensorSource,
    arrays_of,
    as_inputs,
    as_targets,
    as_weights,
    bounds,
    cast_targets,
    hashed,
)
from choral.plan.phases import Phase
from choral.plan.walk import trainings

__all__ = [
    "DatasetSource", "Source", "TensorSource", "as_inputs", "as_targets", "as_weights", "check_batches", "inputs_of", "labeled", "parted", "source_of",
]  # fmt: skip

_PASSED_ON = ("timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "pin_memory")
_LOOKED_AT = 4096  # items that identify a dataset without a name, at most; and of their bytes:
_BYTES = 64 << 20
_READ = 64  # items read at once to identify a dataset
_LAST = 2  # place of the weight in an item (x, y, weight)
_TWICE = 16  # items read twice, to see whether keys decide what they draw

Numbered = tuple[int, int, int]  # the key of an epoch, the position in it, and the item's number


class Keyed(Dataset[Any]):
    """The items of a dataset by key, position and number, which determine their random draws."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        self.drawn: frozenset[str] = frozenset()  # generators that items draw from; found out while reading
        self._many = getattr(dataset, "__getitems__", None)

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

    Loader workers persist: starting them in every epoch took 1.2 s of 1.6 s.

    Args:
        dataset: the dataset; a text attribute `name` identifies its content.
        workers: loader processes.
        collate: makes a batch of items; torch's own if None.
        target: the key of the target if items are dicts.
        weight: the place of the weight in an item: a key of dicts, or 2 for items (x, y, weight).
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
        """Return the weights of all items, each of which is read once."""
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
            yield batches.filled(x[0], map(torch.stack, zip(*map(batches.leaves, x)))), torch.stack(y)

    def part(self, rows: Tensor) -> "Source":
        return self.having()._take(Subset(self.dataset, rows.tolist()))

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        return self.having(_read=read)

    def digest(self) -> str:
        """Return a digest that distinguishes datasets: length and class with a name given by the user, or with the items.

        Items are read under one key, so that random ones are the same in the next call: all of them, or as many as 64 MB hold, at most 4,096, at
        even distances. Items that differ from read to read nevertheless are not used.
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
        raw = self.having(_read=None)._load(wanted)
        return hashed([array for x, y in raw for array in arrays_of(x, y)], self.weights)


def is_dataset(data: Any) -> bool:
    """Return whether an object is read item by item: it has a length and items by number, and is no array, data frame, dict or list."""
    if isinstance(data, Mapping | list | tuple | str | bytes | IterableDataset) or hasattr(data, "__array__"):
        return False
    return hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")


def collated(items: list[Any]) -> Any:
    """Return a batch as torch's `default_collate`, but with lists of numbers in dicts as arrays (as `datasets` returns them)."""

    def array(value: Any) -> Any:
        with suppress(TypeError, ValueError, RuntimeError):  # words, or lists of different lengths
            return torch.as_tensor(value) if type(value) is list else value
        return value

    dicts = all(type(item) is dict for item in items)
    return default_collate([{n: array(v) for n, v in item.items()} for item in items] if dicts else items)


def parted(item: Any, target: str | int | None = None, weight: str | int | None = None) -> tuple[Any, Any]:
    """Return the inputs and the targets of an item or batch: a pair or, with a target's name, a dict.

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
    """Return the inputs of an item or batch for prediction: inputs alone, (x,), or a pair with targets."""
    match item:
        case [x] | [x, _]:
            return x
    return item


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


def source_of(data: Any, target: str | int | None = None, weights: Any = None) -> Source:
    """Return training data as a source.

    Args:
        data: a pair (x, y) of arrays or tensors, or (x, y, weights); a map-style Dataset or list of (x, y) items; or a DataLoader over
            one. Several inputs are a dict, tuple or list in the place of x. With `target`, data or items are dicts that contain the target.
        target: the key of the target if items are dicts.
        weights: a weight for each row; or its place in items: a key of dicts, or 2 for items (x, y, weight).
    """
    key = weights if type(weights) in (str, int) else None
    source = _source(data, target, key)
    if key is not None and source.weights is None:
        if not isinstance(source, DatasetSource):
            raise InputError(
                f"sample_weight={key!r} names a part of an item, but data is a {type(data).__name__}; give one number for each point."
            )
        return source.weighing(source.item_weights())
    if key is None and weights is not None:
        if source.weights is not None:
            raise InputError("data brings weights as its third part, and weights is given too; give one of them.")
        return source.weighing(weights)
    return source


def _source(data: Any, target: str | int | None, key: str | int | None) -> Source:
    if _is_list_of_items(data, target):
        return DatasetSource(data, target=target, weight=key)
    match data:
        case Source():
            return data
        case tuple() | list() if target is not None:
            raise InputError(f"target={target!r}, but data is a pair (x, y), whose second is the target; leave it out.")
        case DataLoader():
            return _of_loader(data, target, key)
        case Mapping():
            source = TensorSource(*parted(data, target, key))
            return source if key is None else source.weighing(weight_in(data, key))
        case tuple() | list() if len(data) == 2:
            return TensorSource(*data)
        case tuple() if len(data) == 3:
            return TensorSource(*data[:2]).weighing(data[2])
    if is_dataset(data):
        return _in_memory(data, target, key) or DatasetSource(data, target=target, weight=key)
    raise InputError(
        f"data is of type {type(data).__name__}; give a pair (x, y) of arrays or tensors, a dataset with __len__ and __getitem__, "
        "or a DataLoader over one" + ("; choral.fit_table reads a table." if hasattr(data, "columns") else ".")
    )


def _is_list_of_items(data: Any, target: str | int | None) -> bool:
    """Return whether a list contains items; a list of two tuples is read as inputs and targets."""
    if not isinstance(data, list) or not data:
        return False
    kind = Mapping if target is not None else tuple
    return (target is not None or len(data) > 2) and all(isinstance(item, kind) for item in data)


def _in_memory(dataset: Any, target: str | int | None, key: str | int | None) -> Source | None:
    """Return the arrays of a TensorDataset, or the selected rows of a subset of one; None for other datasets."""
    rows = torch.as_tensor(dataset.indices, dtype=torch.long) if type(dataset) is Subset else slice(None)
    whole = dataset.dataset if type(dataset) is Subset else dataset
    if type(whole) is not TensorDataset or target is not None or len(whole.tensors) != (2 if key is None else 3):
        return None
    x, y, *weights = (t[rows] for t in whole.tensors)
    source = TensorSource(x, y)
    return source.weighing(weights[0]) if weights else source


def _of_loader(loader: DataLoader[Any], target: str | int | None, key: str | int | None) -> Source:
    if isinstance(loader.dataset, IterableDataset):
        raise InputError(
            "data is a DataLoader over an IterableDataset, which cannot be read again by index; give a map-style Dataset or arrays."
        )
    dataset, sampling = _sampled(loader)
    source = _in_memory(dataset, target, key) if loader.collate_fn is default_collate else None
    if source is None:
        options = {name: getattr(loader, name) for name in _PASSED_ON if loader.num_workers or name == "pin_memory"}
        workers, collate = loader.num_workers, loader.collate_fn
        source = DatasetSource(dataset, workers=workers, collate=collate, target=target, weight=key, options=options)
    source.sampling, source.loader = sampling, loader
    return source


def _sampled(loader: DataLoader[Any]) -> tuple[Any, Sampling | None]:
    """Return the dataset of a loader and its sampling rule; InputError for a sampler that cannot be reproduced."""
    sampler, dataset = loader.sampler, loader.dataset
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        own = type(loader.batch_sampler).__name__
        kind = "no batches" if loader.batch_sampler is None else f"the batch_sampler {own}"
        raise InputError(
            f"data is a DataLoader with {kind}, which choral would replace by batches of its own; give one with a batch_size, or the dataset."
        )
    points = len(dataset)  # type: ignore[arg-type]  # map-style
    match sampler:
        case WeightedRandomSampler():
            return dataset, Sampling(as_weights(sampler.weights, points), sampler.num_samples, sampler.replacement)
        case SubsetRandomSampler():
            return Subset(dataset, list(sampler.indices)), None
        case RandomSampler() if sampler.replacement or sampler.num_samples != points:
            return dataset, Sampling(torch.ones(points).double(), sampler.num_samples, sampler.replacement)
        case RandomSampler() | SequentialSampler():  # the latter unless it is told otherwise; every epoch is shuffled
            return dataset, None
    raise InputError(
        f"the DataLoader's sampler is {type(sampler).__name__}, which choral cannot reproduce; give torch's own samplers, shuffle=True, or the dataset."
    )


def check_batches(source: Source, plan: Phase) -> None:
    """Raise InputError if the batch size of a DataLoader is not that of the recipe."""
    loader = source.loader
    if loader is None:
        return
    for phase in trainings(plan):
        if phase.epochs and phase.batch_size != loader.batch_size:
            raise InputError(
                f"the DataLoader has batch_size={loader.batch_size}, but the recipe trains with batches of {phase.batch_size}; give "
                f"training=Training(batch_size={loader.batch_size}) to the recipe, or the DataLoader batch_size={phase.batch_size}."
            )


def _in_batches(data: Any) -> Any:
    """Return a Dataset as a DataLoader that reads it in order; anything else as it is."""
    if isinstance(data, Dataset) or is_dataset(data):
        return DataLoader(data, batch_size=256, collate_fn=None if isinstance(data, IterableDataset) else collated)
    return data


def labeled(data: Any) -> list[tuple[Any, Any]] | None:
    """Return the inputs and targets of a pair (x, y), or of each batch of a Dataset or DataLoader; None if data has no targets."""
    data = _in_batches(data)
    pairs = list(data) if isinstance(data, DataLoader) else [data] if isinstance(data, tuple) else []
    held = [p for p in pairs if isinstance(p, tuple | list) and len(p) == 2]
    return [(x, y) for x, y in held] if pairs and len(held) == len(pairs) else None


def inputs_of(x: Any) -> list[Any]:
    """Yield inputs to predict in parts: the batches of a Dataset or DataLoader in order, anything else as it is.

    Items and batches are inputs alone, (x,), or pairs (x, y), whose targets are ignored. Batches may differ in shape.
    """
    x = _in_batches(x)
    if not isinstance(x, DataLoader):
        return [x]
    _check_order(x)
    parts = [inputs_in(batch) for batch in x]
    if not parts:
        raise InputError("x is a DataLoader that gives no batches; give at least one row.")
    return parts


def _check_order(loader: DataLoader[Any]) -> None:
    stream, own = isinstance(loader.dataset, IterableDataset), loader.batch_sampler
    sampler = getattr(own, "sampler", own) if own is not None else loader.sampler
    if not stream and (type(sampler) is not SequentialSampler or type(own) not in (BatchSampler, type(None))):
        raise InputError(
            f"x is a DataLoader whose rows come in the order of a {type(sampler).__name__}; give it shuffle=False and no sampler, or the dataset."
        )
    if getattr(own, "drop_last", loader.drop_last) and (
        stream or len(loader.dataset) % (getattr(own, "batch_size", None) or 1)  # type: ignore[arg-type]  # map-style
    ):
        raise InputError(
            "x is a DataLoader with drop_last=True, so the last rows would get no prediction; give drop_last=False."
        )
