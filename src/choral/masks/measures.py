"""What masks have in common: density, pairwise overlap, total distance."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from choral.base.errors import InputError


def _flat(masks: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([mask.flatten() for mask in masks.values()]) if masks else torch.zeros(0, dtype=torch.bool)


def density(mask: Tensor | Mapping[str, Tensor]) -> float:
    """Return the share of weights kept by a mask, or by all masks of a network together.

    >>> density({"a": torch.tensor([True, False]), "b": torch.tensor([False, False])})
    0.25
    """
    flat = mask.flatten() if isinstance(mask, Tensor) else _flat(mask)
    return float(flat.sum()) / max(flat.numel(), 1)


def _rows(masks: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    names = [sorted(m) for m in masks]
    if any(n != names[0] for n in names):
        raise InputError(f"masks of different weights cannot be compared: {names}.")
    return [_flat({name: m[name] for name in names[0]}) for m in masks]


def overlap(masks: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return, for each pair of members, the share of weights kept by both among those kept by either.

    Shapes: members' masks -> (member, member); 1 for equal masks, 0 for disjoint ones.

    >>> overlap([{"a": torch.tensor([True, True, False])}, {"a": torch.tensor([False, True, True])}])[0, 1].item()
    0.3333333432674408
    """
    rows = _rows(masks)
    result = torch.ones(len(rows), len(rows))
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            either = int((one | other).sum())
            result[i, j] = int((one & other).sum()) / either if either else 1.0
    return result


def total_distance(masks: Sequence[Mapping[str, Tensor]]) -> float:
    """Return TD: the sum over ordered pairs of members of the square root of their masks' Hamming distance.

    Reference: Whitaker & Whitley, 2022, arXiv:2202.11782, the equations for CD and TD.

    >>> total_distance([{"a": torch.tensor([True] * 4)}, {"a": torch.tensor([False] * 4)}])
    4.0
    """
    rows = _rows(masks)
    return sum(float((one ^ other).sum()) ** 0.5 for one in rows for other in rows)
