"""Batches as trees: a tensor, or nested dicts, tuples and lists of tensors that share one batch axis; arrays become tensors.

Parameters of several networks are stacked along a new first (member) axis.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from choral.base import devices
from choral.base.errors import InputError
from choral.base.types import Params


def tensor_of(value: Any) -> Tensor:
    """Return an array, or whatever numpy makes one of, as a tensor that shares its memory where that can be written into."""
    if isinstance(value, Tensor) and not value.is_complex():
        return value.detach()
    array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
    if array.dtype.kind in "USOc":
        raise InputError(f"values such as {value!r:.40} are given; give numbers.")
    wide = array.dtype.char == "g"  # wider than torch knows
    array = array.astype(np.float64 if wide else array.dtype.newbyteorder("="), copy=False)
    if array.flags.writeable or not isinstance(value, np.memmap):
        return torch.from_numpy(array if array.flags.writeable else array.copy())  # a view of a frame, say
    with warnings.catch_warnings():  # a file that may be too large to copy; nothing here writes into it
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


Batch: TypeAlias = Tensor | dict[str, "Batch"] | tuple["Batch", ...] | list["Batch"]


def mapped(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Return the batch with the function applied to every leaf.

    >>> mapped(lambda t: t + 1, {"a": torch.zeros(2), "b": (torch.ones(1),)})
    {'a': tensor([1., 1.]), 'b': (tensor([2.]),)}
    """
    match batch:
        case Tensor():
            return function(batch)
        case dict():
            return {name: mapped(function, part) for name, part in batch.items()}
    return type(batch)(mapped(function, part) for part in batch)


def in_order(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor, also if `contiguous` would do nothing: torch takes images of one channel for channels last."""
    return tensor.reshape(-1).view(tensor.shape)


def named_leaves(batch: Batch, name: str = "x") -> Iterator[tuple[str, Tensor]]:
    """Yield every leaf with its name in messages, such as x['a'] and x['b'][0]."""
    if isinstance(batch, Tensor):
        yield name, batch
    else:
        for key, part in batch.items() if isinstance(batch, dict) else enumerate(batch):
            yield from named_leaves(part, f"{name}[{key!r}]")


def leaves(batch: Batch) -> list[Tensor]:
    """Return the leaves in order."""
    return [leaf for _, leaf in named_leaves(batch)]


def rows(batch: Batch) -> int:
    """Return the length of the batch axis."""
    return next(named_leaves(batch))[1].shape[0]


def part(batch: Batch, index: Any) -> Batch:
    """Return every leaf indexed along the batch axis: by a slice, a number, or numbers."""
    return mapped(lambda t: t[index], batch)


def chunks(batch: Batch, size: int) -> Sequence[Batch]:
    """Return the batch cut into pieces of at most `size` rows."""
    return [part(batch, slice(start, start + size)) for start in range(0, max(rows(batch), 1), size)]


def filled(batch: Batch, parts: Iterable[Tensor]) -> Batch:
    """Return a batch of the same structure with these leaves."""
    given = iter(parts)
    return mapped(lambda _: next(given), batch)


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on a device."""
    return mapped(lambda t: devices.moved(t, device), batch)


def equal(one: Batch, other: Batch) -> bool:
    """Return whether two batches of equal structure hold the same values."""
    return all(map(torch.equal, leaves(one), leaves(other)))


def signature(batch: Any) -> Any:
    """Return names, shapes and types, sorted, as something that can be compared and hashed."""
    return tuple(sorted((name, tuple(leaf.shape), str(leaf.dtype)) for name, leaf in named_leaves(batch)))


def in_words(batch: Batch) -> str:
    """Return structure, shapes and dtypes as text.

    >>> in_words({"image": torch.zeros(8, 3, 4, 4), "age": torch.zeros(8, dtype=torch.long)})
    "{'image': (8, 3, 4, 4) float32, 'age': (8,) int64}"
    """
    match batch:
        case Tensor():
            return f"{tuple(batch.shape)} {_type_name(batch.dtype)}"
        case dict():
            return "{" + ", ".join(f"{name!r}: {in_words(inner)}" for name, inner in batch.items()) + "}"
        case list():
            return f"[{', '.join(map(in_words, batch))}]"
    return f"({', '.join(map(in_words, batch))})"


def described(batch: Batch) -> Any:
    """Return structure, shapes of one row and types as plain values, from which `made_up` makes such a batch.

    >>> described((torch.zeros(8, 3),))
    {'tuple': [{'shape': [3], 'type': 'float32'}]}
    """
    match batch:
        case Tensor():
            return {"shape": list(batch.shape[1:]), "type": _type_name(batch.dtype)}
        case dict():
            return {"dict": {name: described(inner) for name, inner in batch.items()}}
    return {type(batch).__name__: [described(inner) for inner in batch]}


_MOST = 1 << 24  # numbers of one row that a description may ask for


def made_up(description: Any, count: int) -> Batch:
    """Return a batch of zeros for a description of `described`; InputError for anything else.

    >>> made_up({"dict": {"a": {"shape": [2], "type": "int64"}}}, 1)
    {'a': tensor([[0, 0]])}
    """
    match description:
        case {"shape": [*shape], "type": str(kind)}:
            dtype = getattr(torch, kind, None)
            whole = all(isinstance(n, int) and n >= 0 for n in shape)
            if whole and isinstance(dtype, torch.dtype) and math.prod(shape) <= _MOST:
                return torch.zeros(count, *shape, dtype=dtype)
        case {"dict": dict(parts)}:
            return {str(name): made_up(inner, count) for name, inner in parts.items()}
        case {"tuple": [*parts]}:
            return tuple(made_up(inner, count) for inner in parts)
        case {"list": [*parts]}:
            return [made_up(inner, count) for inner in parts]
    raise InputError(f"{str(description)[:80]} does not describe a batch of inputs.")


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def stack(trees: Sequence[Params]) -> Params:
    """Return one dict of tensors with a first axis over the given dicts, which hold equal names and shapes."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def unstack(tree: Params, count: int) -> list[Params]:
    """Return one dict for each entry of the first axis (own memory, not views)."""
    return [{name: value[i].clone() for name, value in tree.items()} for i in range(count)]
