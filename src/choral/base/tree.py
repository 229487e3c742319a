"""Stack and split dicts of tensors along a new first (member) axis, and map functions over it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _functorch

from choral.base.types import Params


def vmap(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the function mapped over the first axis of its arguments, as torch.func.vmap does."""
    _functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]  # torch's stub lacks it
    return torch.func.vmap(function, **options)


def stack(trees: Sequence[Params]) -> Params:
    """Return one dict of tensors with a first axis over the given dicts, which hold equal names and shapes.

    >>> import torch
    >>> stack([{"a": torch.zeros(2)}, {"a": torch.ones(2)}])["a"].tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def unstack(tree: Params, count: int) -> list[Params]:
    """Return one dict for each entry of the first axis (own memory, not views)."""
    return [{name: value[i].clone() for name, value in tree.items()} for i in range(count)]


def signature(tree: Params) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Return names, shapes and dtypes, in the order of names: equal signatures can be stacked."""
    return tuple((name, tuple(tree[name].shape), str(tree[name].dtype)) for name in sorted(tree))


def count(params: Params) -> int:
    """Return the number of scalars."""
    return sum(value.numel() for value in params.values())
