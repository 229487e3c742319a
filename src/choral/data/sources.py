"""Training data as the engine reads it, whatever the user gave: arrays, a map-style Dataset, or a DataLoader over one.

Arrays and tensors stay in memory and are indexed per batch, also those of a TensorDataset. Other datasets are read through torch's
loader workers. A DataLoader is obeyed or refused: its sampler decides what an epoch draws, its workers and collate function make the
batches, its batch size must be the recipe's.
"""

from collections.abc import Mapping
from typing import Any

import torch
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

from choral.base.errors import InputError
from choral.data.datasets import DatasetSource, collated, inputs_in, is_dataset, is_key, parted, weight_in
from choral.data.tensors import Sampling, Source, TensorSource, as_inputs, as_targets, as_weights
from choral.plan.phases import Phase
from choral.plan.walk import trainings

__all__ = [
    "DatasetSource", "Source", "TensorSource", "as_inputs", "as_targets", "as_weights", "check_batches", "inputs_of", "parted", "source_of",
]  # fmt: skip

_PASSED_ON = ("timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "pin_memory")


def source_of(data: Any, target: str | int | None = None, weights: Any = None) -> Source:
    """Return training data as a source.

    Args:
        data: see below.
        target: the key of the target where items are dicts.
        weights: of the points, one number each; or which part of an item is its weight: a key of dicts, or 2 for items (x, y, weight).

    Accepts a pair (x, y) of arrays or tensors, or (x, y, weights), a map-style Dataset or list of (x, y) items, or a DataLoader over one. Several inputs are a
    dict, tuple or list in the place of x; with `target`, data or items are dicts that hold the target too.
    """
    key = weights if is_key(weights) else None
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
    """Return whether a list is a dataset, item by item: a list of two tuples could as well be inputs and targets."""
    if not isinstance(data, list) or not data:
        return False
    kind = Mapping if target is not None else tuple
    return (target is not None or len(data) > 2) and all(isinstance(item, kind) for item in data)


def _in_memory(dataset: Any, target: str | int | None, key: str | int | None) -> Source | None:
    """Return the arrays of a dataset that is nothing but a pair of them, or some of their rows; None for any other."""
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
    """Return the dataset and the rule by which the loader's sampler draws from it; a sampler that cannot be keyed is refused."""
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
        f"the DataLoader's sampler is {type(sampler).__name__}, which choral cannot make exact; give torch's own samplers, shuffle=True, or the dataset."
    )


def check_batches(source: Source, plan: Phase) -> None:
    """Raise InputError if a DataLoader asks for other batches than the recipe."""
    loader = source.loader
    if loader is None:
        return
    for phase in trainings(plan):
        if phase.epochs and phase.batch_size != loader.batch_size:
            raise InputError(
                f"the DataLoader has batch_size={loader.batch_size}, but the recipe trains with batches of {phase.batch_size}; give "
                f"training=Training(batch_size={loader.batch_size}) to the recipe, or the DataLoader batch_size={phase.batch_size}."
            )


def inputs_of(x: Any) -> list[Any]:
    """Return inputs to predict for, in parts: the batches of a Dataset or DataLoader in its order, anything else as it is.

    Items and batches are inputs alone, (x,), or pairs (x, y), whose targets are not looked at. Batches may differ in shape.
    """
    if isinstance(x, Dataset) or is_dataset(x):
        stream = isinstance(x, IterableDataset)
        x = DataLoader(x, batch_size=256, collate_fn=None if stream else collated)
    if not isinstance(x, DataLoader):
        return [x]
    _check_order(x)
    parts = [inputs_in(batch) for batch in x]
    if not parts:
        raise InputError("x is a DataLoader that gives no batches; give at least one row.")
    return parts


def _check_order(loader: DataLoader[Any]) -> None:
    """Raise InputError for a DataLoader whose batches are not all rows of its dataset in their order: predictions are by row."""
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
