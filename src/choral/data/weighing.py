"""Weights that the items of a dataset bring along: (x, y, weight), or a key of dicts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from choral.base.errors import InputError, did_you_mean
from choral.data.datasets import Keyed, is_dataset

_LAST = 2  # place of the weight in an item (x, y, weight)


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
