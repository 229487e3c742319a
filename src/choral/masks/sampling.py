"""Masks drawn at random: random, anti-random pairs, and partitions of all weights among members.

Reference: Whitaker & Whitley, "Prune and Tune Ensembles: Low-Cost Ensemble Learning With Sparse Independent
Subnetworks", AAAI 2022, arXiv:2202.11782, section "Prune and Tune Ensembles".
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.masks.cells import Cells, Groups, Masks, Scope, Shapes, Unit, cells_of, is_global, kept_count, split


def _pick(size: int, count: int, generator: torch.Generator) -> Tensor:
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[torch.randperm(size, generator=generator)[:count]] = True
    return chosen


def _one_of_each(cells: Cells, copies: int, generator: torch.Generator) -> Tensor:
    """Return flat positions (layer or group, copy): `copies` different cells of each layer."""
    starts = torch.tensor([0, *cells.sizes.values()]).cumsum(0)[:-1].tolist()
    picks = [torch.randperm(n, generator=generator)[:copies] + s for s, n in zip(starts, cells.sizes.values())]
    return torch.stack(picks)


def random_masks(
    shapes: Shapes,
    generator: torch.Generator,
    *,
    density: float | Mapping[str, float] = 0.5,
    unit: Unit = "connection",
    scope: Scope = "layer",
    groups: Groups = (),
) -> Masks:
    """Return masks with exactly round(density * n) cells kept, all choices equally likely.

    With unit `neuron` every layer keeps at least one neuron, also where the density asks for none.

    Args:
        shapes: shapes of the weights to mask, by name.
        generator: decides the draw.
        density: share of kept cells, 0 to 1; or one for each weight name (scope `layer` only).
        unit: `connection` or `neuron`.
        scope: `layer` counts in each layer, `global` over all layers together.
        groups: layers that keep the same neurons (unit `neuron` only).

    >>> masks = random_masks({"a.weight": (3, 4), "b.weight": (5, 2)}, torch.Generator().manual_seed(0), density=0.25)
    >>> [int(mask.sum()) for mask in masks.values()]
    [3, 2]
    """
    cells = cells_of(shapes, unit, groups)
    if is_global(scope):
        if isinstance(density, Mapping):
            raise InputError("density by weight name goes with scope='layer'; give one number for scope='global'.")
        size = sum(cells.sizes.values())
        if not size:
            return {}
        floor = cells.floor * len(cells.sizes)
        forced = _one_of_each(cells, cells.floor, generator).flatten()
        chosen = torch.zeros(size, dtype=torch.bool)
        chosen[forced] = True
        rest = torch.randperm(size, generator=generator)
        rest = rest[~chosen[rest]]
        chosen[rest[: kept_count(density, size, floor) - floor]] = True
        return cells.expand(split(chosen, cells.sizes))
    if isinstance(density, Mapping):
        missing = [name for name in cells.sizes if name not in density]
        if missing:
            raise InputError(f"density has no entry for {', '.join(missing)}; it has {', '.join(density) or 'none'}.")
    wanted = {name: density[name] if isinstance(density, Mapping) else density for name in cells.sizes}
    return cells.expand(
        {name: _pick(n, kept_count(wanted[name], n, cells.floor), generator) for name, n in cells.sizes.items()}
    )


def partition(
    shapes: Shapes,
    generator: torch.Generator,
    *,
    members: int,
    unit: Unit = "connection",
    scope: Scope = "layer",
    groups: Groups = (),
) -> list[Masks]:
    """Return disjoint masks, one for each member, which together keep every cell exactly once.

    The members' sizes differ by at most one cell: in each layer and in total with scope `layer`, in total with scope
    `global`. With unit `neuron` every member keeps at least one neuron of each layer.

    Args:
        shapes: as in `random_masks`, like `generator`, `unit`, `scope` and `groups`.
        generator: decides the draw.
        members: number of masks, at least 1.
        unit: `connection` or `neuron`.
        scope: `layer` or `global`.
        groups: tied layers.

    >>> masks = partition({"a.weight": (3, 4)}, torch.Generator().manual_seed(0), members=3)
    >>> [int(m["a.weight"].sum()) for m in masks], sum(m["a.weight"].int() for m in masks).unique().tolist()
    ([4, 4, 4], [1])
    """
    if members < 1:
        raise InputError(f"members={members} is too small; give 1 or more.")
    cells = cells_of(shapes, unit, groups)
    small = {name: n for name, n in cells.sizes.items() if n < members and unit == "neuron"}
    if small:
        raise InputError(
            f"members={members} cannot share out the neurons of {', '.join(f'{k} ({v})' for k, v in small.items())}: "
            "each member needs one; use fewer members, unit='connection', or exclude these layers."
        )
    owners: dict[str, Tensor] = {}
    if is_global(scope):
        size = sum(cells.sizes.values())
        flat = torch.full((size,), -1)
        if cells.floor and size:
            flat[_one_of_each(cells, members, generator)] = torch.arange(members)
        rest = torch.randperm(size, generator=generator)
        rest = rest[flat[rest] < 0]
        flat[rest] = torch.arange(rest.numel()) % members
        owners = split(flat, cells.sizes) if size else {}
    else:
        dealt = 0  # dealing goes on from layer to layer, so that totals differ by at most one too
        for name, n in cells.sizes.items():
            owner = torch.empty(n, dtype=torch.long)
            owner[torch.randperm(n, generator=generator)] = (torch.arange(n) + dealt) % members
            owners[name] = owner
            dealt = (dealt + n) % members
    return [cells.expand({name: owner == member for name, owner in owners.items()}) for member in range(members)]


def anti_random_pair(
    shapes: Shapes,
    generator: torch.Generator,
    *,
    unit: Unit = "connection",
    scope: Scope = "layer",
    groups: Groups = (),
) -> tuple[Masks, Masks]:
    """Return a random half of the cells and its complement M' = 1 - M: the most distant pair of masks there is.

    The halves differ by at most one cell where the number of cells is odd. Arguments as in `partition`.

    >>> one, other = anti_random_pair({"a.weight": (3, 4)}, torch.Generator().manual_seed(0))
    >>> bool((one["a.weight"] ^ other["a.weight"]).all()), int(one["a.weight"].sum())
    (True, 6)
    """
    one, other = partition(shapes, generator, members=2, unit=unit, scope=scope, groups=groups)
    return one, other
