"""Cells: what a mask keeps or removes as a whole; from a choice of cells to masks, their density and overlap.

With unit `connection` a cell is one weight; with unit `neuron` it is one output row, shared by all layers of a tied
group. The mask makers only ever choose among cells, so they are written once for both units.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from choral.base.errors import InputError, did_you_mean

Masks = dict[str, Tensor]
Shapes = Mapping[str, Sequence[int]]
Unit = Literal["connection", "neuron"]
Scope = Literal["layer", "global"]
Groups = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cells:
    """The cells of each layer or tied group, and the weights they stand for.

    Args:
        sizes: number of cells, by the name of the layer's weight (for a group, of its first weight).
        followers: all weight names that take the choice made for a name, itself included.
        shapes: the shapes of all weights.
        unit: what a cell is.
    """

    sizes: dict[str, int]
    followers: dict[str, tuple[str, ...]]
    shapes: dict[str, tuple[int, ...]]
    unit: Unit

    @property
    def floor(self) -> int:
        """The number of cells a layer may not go below: a layer with no neuron left would cut the network."""
        return 1 if self.unit == "neuron" else 0

    def expand(self, chosen: Mapping[str, Tensor]) -> Masks:
        """Return weight-shaped masks from one flat choice for each layer or group."""
        leaders = {name: leader for leader, names in self.followers.items() for name in names}
        if self.unit == "connection":
            return {name: chosen[name].view(shape).clone() for name, shape in self.shapes.items()}
        return {name: _over_rows(chosen[leaders[name]], shape) for name, shape in self.shapes.items()}


def _over_rows(chosen: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a choice of rows as a mask of a shape."""
    return chosen.view(-1, *[1] * (len(shape) - 1)).expand(tuple(shape)).clone()


def cells_of(shapes: Shapes, unit: str, groups: Groups = ()) -> Cells:
    """Return the cells of the weights; groups hold layer names (or weight names) and only concern neurons."""
    plain = {name: tuple(int(s) for s in shape) for name, shape in shapes.items()}
    if unit == "connection":
        return Cells({n: math.prod(s) for n, s in plain.items()}, {n: (n,) for n in plain}, plain, "connection")
    followers: dict[str, tuple[str, ...]] = {}
    tied: set[str] = set()
    for group in groups:
        present = tuple(name for name in plain if name in group or name.removesuffix(".weight") in group)
        rows = {name: plain[name][0] for name in present}
        if len(set(rows.values())) > 1:
            raise InputError(f"groups: tied layers must have the same number of neurons, received {rows}.")
        if any(name in tied for name in present):
            raise InputError(f"groups: a layer may stand in one group only, received {[list(g) for g in groups]}.")
        tied.update(present)
        if present:
            followers[present[0]] = present
    followers |= {name: (name,) for name in plain if name not in tied}
    order = [name for name in plain if name in followers]
    return Cells({n: plain[n][0] for n in order}, {n: followers[n] for n in order}, plain, "neuron")


def kept_count(density: float, size: int, floor: int = 0) -> int:
    """Return round(density * size), not below the floor.

    >>> kept_count(0.3, 11), kept_count(0.01, 10, floor=1)
    (3, 1)
    """
    if not 0.0 <= density <= 1.0:
        raise InputError(f"density={density} is not a share; give a number from 0 (keep none) to 1 (keep all).")
    return max(round(density * size), min(floor, size))


def split(chosen: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the pieces of one flat choice over all layers, by layer."""
    return dict(zip(sizes, chosen.split(list(sizes.values()))))


def keep_vectors(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the neurons that keep any weight, as bool vectors by layer name.

    >>> import torch
    >>> keep_vectors({"fc.weight": torch.tensor([[True, False], [False, False]])})
    {'fc': tensor([ True, False])}
    """
    return {name.removesuffix(".weight"): mask.flatten(1).any(1) for name, mask in masks.items() if mask.dim() > 1}


def expand_neurons(shapes: Shapes, keep: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the masks of all parameters that belong to neurons: weight rows and biases.

    Args:
        shapes: shapes of all the network's parameters, by name.
        keep: bool vector over output neurons, by layer name.

    >>> masks = expand_neurons({"fc.weight": (2, 3), "fc.bias": (2,)}, {"fc": torch.tensor([True, False])})
    >>> masks["fc.weight"].sum(1).tolist(), masks["fc.bias"].tolist()
    ([3, 0], [True, False])
    """
    masks: dict[str, Tensor] = {}
    for layer, vector in keep.items():
        names = [f"{layer}.{part}" for part in ("weight", "bias") if f"{layer}.{part}" in shapes]
        if not names:
            raise InputError(
                f"layer {layer!r} has no weight or bias among the parameters.{did_you_mean(f'{layer}.weight', shapes)}"
            )
        masks |= {name: _over_rows(vector.bool(), shapes[name]) for name in names}
    return masks


def density(mask: Tensor | Mapping[str, Tensor]) -> float:
    """Return the share of weights kept by a mask, or by all masks of a network together.

    >>> density({"a": torch.tensor([True, False]), "b": torch.tensor([False, False])})
    0.25
    """
    masks = [mask] if isinstance(mask, Tensor) else list(mask.values())
    return float(sum(m.sum() for m in masks)) / max(sum(m.numel() for m in masks), 1)


def _rows(masks: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the masks of members as numbers 0 and 1, (member, weight)."""
    return torch.stack([torch.cat([m[name].flatten() for name in masks[0]]) for m in masks]).double()


def overlap(masks: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return, for each pair of members, the share of weights kept by both among those kept by either.

    Shapes: members' masks -> (member, member); 1 for equal masks, 0 for disjoint ones.

    >>> overlap([{"a": torch.tensor([True, True, False])}, {"a": torch.tensor([False, True, True])}])[0, 1].item()
    0.3333333432674408
    """
    rows = _rows(masks)
    both = rows @ rows.T
    either = rows.sum(1)[:, None] + rows.sum(1) - both
    return torch.where(either > 0, both / either, 1.0).float()


def total_distance(masks: Sequence[Mapping[str, Tensor]]) -> float:
    """Return TD: the sum over ordered pairs of members of the square root of their masks' Hamming distance.

    Reference: Whitaker & Whitley, 2022, arXiv:2202.11782, the equations for CD and TD.

    >>> total_distance([{"a": torch.tensor([True] * 4)}, {"a": torch.tensor([False] * 4)}])
    4.0
    """
    rows = _rows(masks)
    return sum(float((one != other).sum()) ** 0.5 for one in rows for other in rows)
