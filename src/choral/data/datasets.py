"""Map-style datasets, read item by item through torch's own loader workers, in the engine's order and under its keys.

What an item draws while it is read (an augmentation) is decided by the epoch and the item: torch's, numpy's and Python's
generators are set by a key before each item and given back afterwards, in worker processes too. Datasets that draw nothing are
found out by their generators standing still, and pay for that look alone.
"""

import copy
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from choral.base import batches, rng
from choral.base.batches import Batch
from choral.base.errors import ChoralError, InputError, did_you_mean, warn
from choral.data.given import as_inputs, as_targets, cast_targets
from choral.data.tensors import Source, arrays_of, bounds, hashed

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
        with _without_modes(), _held:
            were = global_states()
            try:
                while True:
                    items = self._read(wanted)
                    more = moved(were, _GENERATORS.keys() - self.drawn)
                    if not more:
                        return items
                    self.drawn |= more
            finally:
                for name in self.drawn:
                    _GENERATORS[name].put(were[name])

    def _read(self, wanted: Sequence[Numbered]) -> list[Any]:
        if self._many and not self.drawn:
            return list(self._many([number for _, _, number in wanted]))
        return [self._item(*each) for each in wanted]

    def _item(self, key: int, position: int, number: int) -> Any:
        if self.drawn:
            own = rng.key(key, position, number)
            for name in self.drawn:
                _GENERATORS[name].seed(own)
        return self.dataset[number]


@dataclass(frozen=True)
class _Generator:
    """How a global generator is read, set, seeded and compared."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    seed: Callable[[int], Any]
    equal: Callable[[Any, Any], bool] = lambda one, other: bool(one == other)


_GENERATORS = {
    "torch": _Generator(torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed, torch.equal),
    "numpy": _Generator(
        np.random.get_state,
        np.random.set_state,
        lambda key: np.random.seed(key % (1 << 32)),
        lambda one, other: one[2:] == other[2:] and np.array_equal(one[1], other[1]),
    ),
    "random": _Generator(random.getstate, random.setstate, random.seed),
}


def global_states() -> dict[str, Any]:
    """Return where the generators of torch, numpy and Python stand."""
    return {name: generator.get() for name, generator in _GENERATORS.items()}


def moved(before: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Return those of some generators that were drawn from since."""
    return {n for n in names if not _GENERATORS[n].equal(before[n], _GENERATORS[n].get())}


_held = threading.RLock()  # the global generators are lent to one thread at a time


@contextmanager
def _without_modes() -> Iterator[None]:
    """Let code of the user's draw from torch's own generator: workers inherit the modes of the thread that started them."""
    with _disable_current_modes():
        modes = [_pop_mode() for _ in _get_current_function_mode_stack()]
        try:
            yield
        finally:
            for mode in reversed(modes):
                _push_mode(mode)


class _Batches:
    """The batches of the next epoch, as a sampler that a loader with lasting workers asks anew each time."""

    def __init__(self, batches: list[list[Numbered]]):
        self.batches = batches

    def __iter__(self) -> Iterator[list[Numbered]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class DatasetSource(Source):
    """A map-style dataset, read item by item through torch's loader in the engine's order.

    Loader workers last as long as the source: starting them anew took 1.2 s of 1.6 s of an epoch.

    Args:
        dataset: the dataset; an attribute `name`, a text, stands for what it holds.
        workers: loader processes.
        collate: makes a batch of items; torch's own if None.
        target: the key of the target where items are dicts.
        options: further arguments of torch's loader.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        workers: int = 0,
        collate: Any = None,
        target: str | int | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        self.dataset, self.workers, self.collate, self.target = dataset, workers, collate, target
        self._items, self._options = Keyed(dataset), dict(options or {})
        self._floats = torch.float32
        self._next = _Batches([])
        self._lasting: DataLoader[Any] | None = None
        self._read: Callable[[Tensor], Tensor] | None = None
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

    def _load(self, numbers: list[list[Numbered]]) -> Iterator[tuple[Batch, Tensor]]:
        lasting = self.workers > 0 and self._reading.acquire(blocking=False)
        try:
            loader = self._lasting_loader(numbers) if lasting else self._loader(_Batches(numbers))
            for batch in _loaded(loader, type(self.dataset).__name__):
                x, y = parted(batch, self.target)
                given = as_targets(y)
                read = given if self._read is None else cast_targets(self._read(given), self._floats)
                yield as_inputs(x, self._floats), read
        finally:
            if lasting:
                self._reading.release()

    def _loader(self, batches: _Batches, *, lasting: bool = False) -> DataLoader[Any]:
        return DataLoader(
            self._items,
            batch_sampler=batches,
            num_workers=self.workers,
            collate_fn=self.collate or collated,
            persistent_workers=lasting,
            generator=torch.Generator().manual_seed(0),  # seeds of workers; the global generator stays as it is
            **self._options,
        )

    def _lasting_loader(self, numbers: list[list[Numbered]]) -> DataLoader[Any]:
        self._next.batches = numbers
        if self._lasting is None:
            self._lasting = self._loader(self._next, lasting=True)
        return self._lasting

    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first items as a batch."""
        return next(self._load([[(0, i, i) for i in range(min(count, self.points))]]))

    def epoch(
        self,
        order: Tensor,
        batch_size: int,
        *,
        keys: Sequence[int] | None = None,
        among: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches made by the loader."""
        rows = order if order.dim() == 2 else order.unsqueeze(0)
        keyed = zip(keys or [0] * len(rows), rows.tolist())
        each = [[(key, i, number) for i, number in enumerate(row)] for key, row in keyed]
        places = bounds(order.shape[-1], batch_size, among)
        if order.dim() == 1:
            yield from self._load([each[0][a:b] for a, b in places])
        elif self.is_ragged:
            made = self._load([own[a:b] for a, b in places for own in each])
            for _ in places:
                yield _stacked([next(made) for _ in each])
        else:
            for x, y in self._load([[item for own in each for item in own[a:b]] for a, b in places]):
                yield batches.mapped(lambda t: t.unflatten(0, (len(each), -1)), x), y.unflatten(0, (len(each), -1))

    def targets(self) -> Tensor | None:
        """Return None: they are not in memory."""
        return None

    def part(self, rows: Tensor) -> "Source":
        """Return some of the items, read by workers of their own."""
        twin = DatasetSource(
            Subset(self.dataset, rows.tolist()),
            workers=self.workers,
            collate=self.collate,
            target=self.target,
            options=self._options,
        )
        twin._floats, twin._read, twin.loader = self._floats, self._read, self.loader
        return twin

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same items, their targets read as they come."""
        twin = copy.copy(self)
        twin._read = read
        return twin

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
        raw = copy.copy(self)
        raw._read = None
        return hashed([array for x, y in raw._load(wanted) for array in arrays_of(x, y)], self.weights)


def _loaded(loader: DataLoader[Any], name: str) -> Iterator[Any]:
    """Yield batches; InputError where the user's code cannot give an item, or torch cannot make a batch of them."""
    batches_of = iter(loader)
    while True:
        try:
            batch = next(batches_of)
        except StopIteration:
            return
        except (ChoralError, MemoryError):
            raise
        except Exception as error:  # code of the user's may fail in any way
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"items of the {name} cannot be read, or not be made a batch ({type(error).__name__}: {said}); every number from 0 to its "
                "length must give an item, all of one kind."
            ) from error
        yield batch


def _stacked(each: Sequence[tuple[Batch, Tensor]]) -> tuple[Batch, Tensor]:
    """Return the batches of several branches, each made by itself, as one with a first axis over branches."""
    shapes = {repr(batches.signature(x)): batches.in_words(x) for x, _ in each}
    if len(shapes) > 1:
        raise InputError(
            f"the collate function made batches of different shapes for branches that are trained together, {' and '.join(list(shapes.values())[:2])}; "
            "use executor='sequential', or pad every item to the same length."
        )
    return batches.merged(torch.stack, [x for x, _ in each]), torch.stack([y for _, y in each])


def is_dataset(data: Any) -> bool:
    """Return whether something is read item by item: it has a length and items by number, and is no array, data frame, dict or list."""
    if isinstance(data, Mapping | list | tuple | str | bytes | IterableDataset) or hasattr(data, "__array__"):
        return False
    return hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")


def collated(items: list[Any]) -> Any:
    """Return a batch as torch's own `default_collate` makes it, but with lists of numbers in dicts as arrays (`datasets` gives them so)."""

    def array(value: Any) -> Any:
        if isinstance(value, list):
            with suppress(TypeError, ValueError, RuntimeError):  # words, or lists of different lengths
                return torch.as_tensor(value)
        return value

    whole = [{name: array(value) for name, value in item.items()} if isinstance(item, dict) else item for item in items]
    return default_collate(whole)


def parted(item: Any, target: str | int | None = None) -> tuple[Any, Any]:
    """Return the inputs and the targets in what a dataset or loader gives: a pair, or with a target's name, a dict.

    >>> parted({"image": 1, "age": 2, "label": 3}, "label")
    ({'image': 1, 'age': 2}, 3)
    """
    if isinstance(item, Mapping):
        names = [str(name) for name in item] or ["y"]
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
        f"an item of the dataset is {parts}; it must be a pair (x, y), with several inputs as ((x1, x2), y) or a dict of them, "
        "a dict together with fit(..., target='its key'), or (x, y, weight) together with fit(..., sample_weight=2)."
    )


def is_key(weights: Any) -> bool:
    """Return whether weights say where they are in an item, instead of what they are.

    >>> is_key("weight"), is_key(2), is_key([1.0, 2.0]), is_key(None)
    (True, True, False, False)
    """
    return isinstance(weights, str) or (isinstance(weights, int) and not isinstance(weights, bool))


def without_weights(data: Any, key: str | int) -> tuple[Any, Tensor]:
    """Return data without the weights of its items, and those; every item is read once for that.

    Args:
        data: a dict of arrays, or a map-style Dataset or a DataLoader over one with torch's own collate function.
        key: where the weight is: a key of dicts, or 2 for items (x, y, weight).
    """
    if isinstance(data, Mapping):
        return {n: part for n, part in data.items() if n != key}, torch.as_tensor(np.asarray(_weight(data, key)))
    if isinstance(data, DataLoader):
        if data.collate_fn is not default_collate:
            raise InputError(
                f"sample_weight={key!r} takes a part out of every item, which the DataLoader's collate function would miss; give the weights as an "
                "array, one number for each item."
            )
        kept, weights = without_weights(data.dataset, key)
        return _loader_like(data, kept), weights
    if not is_dataset(data):
        raise InputError(
            f"sample_weight={key!r} says which part of an item is its weight, but data is {_kind(data)}; give the weights themselves, one number for "
            "each point."
        )
    if type(data) is TensorDataset and key == _LAST and len(data.tensors) == 3:
        return TensorDataset(*data.tensors[:2]), data.tensors[2]
    items = Keyed(data)
    found = [_weight(items.__getitems__([(0, i, i)])[0], key) for i in range(len(items))]
    return _Unweighted(data, key), torch.tensor([float(w) for w in found], dtype=torch.float64)


class _Unweighted(Dataset[Any]):
    """The items of a dataset without their weights."""

    def __init__(self, dataset: Any, key: str | int):
        self.dataset, self.key = dataset, key
        name = getattr(dataset, "name", None)
        if isinstance(name, str):
            self.name = name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        item = self.dataset[index]
        if isinstance(item, Mapping):
            return {name: part for name, part in item.items() if name != self.key}
        return item[0], item[1]


def _weight(item: Any, key: str | int) -> Any:
    """Return the weight in an item, or of a dict of arrays; InputError if there is none."""
    if isinstance(item, Mapping):
        if key not in item:
            names = [str(n) for n in item]
            raise InputError(
                f"sample_weight={key!r} is not among the keys {', '.join(map(repr, names))} of the data.{did_you_mean(str(key), names)}"
            )
        return item[key]
    if key != _LAST or not isinstance(item, tuple | list) or len(item) != 3:
        raise InputError(
            f"sample_weight={key!r}, but an item of the dataset is {_kind(item)}; sample_weight=2 takes items (x, y, weight), and a text the key of items that "
            "are dicts."
        )
    return item[_LAST]


def _kind(item: Any) -> str:
    return (
        f"a {type(item).__name__} of {len(item)} parts"
        if isinstance(item, tuple | list)
        else f"a {type(item).__name__}"
    )


def _loader_like(loader: DataLoader[Any], dataset: Any) -> DataLoader[Any]:
    """Return a loader with the same sampler and workers over another dataset of equally many items."""
    return DataLoader(
        dataset,
        batch_size=loader.batch_size,
        sampler=loader.sampler,
        num_workers=loader.num_workers,
        drop_last=loader.drop_last,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
    )
