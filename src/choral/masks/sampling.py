"""The weights that masks are for, and masks drawn at random, partitioned among members, by magnitude, and by the drop-and-grow step of sparse
training.

A cell is what a mask keeps or removes as a whole: with unit `connection` one weight, with unit `neuron` one output row, shared by all layers
of a tied group, with unit `layer` all weights of a layer or tied group. All functions choose among cells.

Reference: Whitaker & Whitley, "Prune and Tune Ensembles: Low-Cost Ensemble Learning With Sparse Independent
Subnetworks", AAAI 2022, arXiv:2202.11782, section "Prune and Tune Ensembles".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from choral.base.errors import InputError, did_you_mean
from choral.base.interface import Called
from choral.base.text import fitting
from choral.base.types import Params
from choral.base.values import Share

Masks = dict[str, Tensor]
Shapes = Mapping[str, Sequence[int]]
Unit = Literal["connection", "neuron", "layer"]
Scope = Literal["layer", "global"]
Groups = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cells:
    """The cells of each layer or tied group, and their weights.

    Args:
        sizes: number of cells, by the name of the layer's weight (for a group, of its first weight).
        followers: all weights with the same choice, by name.
        shapes: the shapes of all weights.
        unit: what a cell is.
    """

    sizes: dict[str, int]
    followers: dict[str, tuple[str, ...]]
    shapes: dict[str, tuple[int, ...]]
    unit: Unit

    @property
    def floor(self) -> int:
        """The minimum number of kept cells of a layer: without a neuron it would cut the network."""
        return 1 if self.unit == "neuron" else 0

    def expand(self, chosen: Mapping[str, Tensor]) -> Masks:
        """Return weight-shaped masks from one flat choice for each layer or group."""
        leaders = {name: leader for leader, names in self.followers.items() for name in names}
        if self.unit == "connection":
            return {name: chosen[name].view(shape).clone() for name, shape in self.shapes.items()}
        return {name: _over_rows(chosen[leaders[name]], shape) for name, shape in self.shapes.items()}


def _over_rows(chosen: Tensor, shape: Sequence[int]) -> Tensor:
    return chosen.view(-1, *[1] * (len(shape) - 1)).expand(tuple(shape)).clone()


def cells_of(shapes: Shapes, unit: Unit, groups: Groups = ()) -> Cells:
    """Return the cells of the weights; groups hold layer names (or weight names) and only concern neurons and layers."""
    plain = {name: tuple(int(s) for s in shape) for name, shape in shapes.items()}
    if unit == "connection":
        return Cells({n: math.prod(s) for n, s in plain.items()}, {n: (n,) for n in plain}, plain, "connection")
    cells = {name: shape[0] if unit == "neuron" else 1 for name, shape in plain.items()}
    followers: dict[str, tuple[str, ...]] = {}
    tied: set[str] = set()
    for group in groups:
        present = tuple(name for name in plain if name in group or name.removesuffix(".weight") in group)
        if any(name in tied for name in present):
            raise InputError(f"groups: a layer may stand in one group only, received {[list(g) for g in groups]}.")
        tied.update(present)
        if present:
            followers[present[0]] = present
    followers |= {name: (name,) for name in plain if name not in tied}
    order = [name for name in plain if name in followers]
    return Cells({n: cells[n] for n in order}, {n: followers[n] for n in order}, plain, unit)


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


def _largest(scores: Tensor, count: int) -> Tensor:
    """Return the mask of the `count` largest scores; the first of ties, so that the result is deterministic."""
    chosen = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    chosen[torch.sort(scores, descending=True, stable=True).indices[:count]] = True
    return chosen


def _best(cells: Cells, scores: dict[str, Tensor], density: Any, scope: Scope) -> Masks:
    """Return masks of the cells with the largest scores, by layer or over all; each layer keeps at least its best neuron."""
    if scope == "layer":
        share = density if isinstance(density, Mapping) else dict.fromkeys(scores, density)
        counts = {n: kept_count(share[n], s.numel(), cells.floor) for n, s in scores.items()}
        return cells.expand({n: _largest(s, counts[n]) for n, s in scores.items()})
    if not scores:
        return {}
    flat = torch.cat(list(scores.values()))
    if cells.floor:
        flat = flat.masked_fill(torch.cat([_largest(s, 1) for s in scores.values()]), math.inf)
    count = kept_count(density, flat.numel(), cells.floor * len(scores))
    return cells.expand(split(_largest(flat, count), cells.sizes))


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

    With unit `neuron` every layer keeps at least one neuron.

    Args:
        shapes: shapes of the weights to mask, by name.
        generator: draws the masks.
        density: share of kept cells, 0 to 1; or one for each weight name (scope `layer` only).
        unit: `connection`, `neuron` or `layer`.
        scope: `layer` counts in each layer, `global` over all layers together; unit `layer` needs `global`.
        groups: layers that keep the same neurons, or that are removed together (not for unit `connection`).

    >>> masks = random_masks({"a.weight": (3, 4), "b.weight": (5, 2)}, torch.Generator().manual_seed(0), density=0.25)
    >>> [int(mask.sum()) for mask in masks.values()]
    [3, 2]
    """
    cells = cells_of(shapes, unit, groups)
    if scope == "global":
        flat = torch.randperm(sum(cells.sizes.values()), generator=generator).float()
        return _best(cells, split(flat, cells.sizes) if cells.sizes else {}, density, scope)
    # the first of a permutation are kept
    order = {n: -torch.randperm(size, generator=generator).argsort() for n, size in cells.sizes.items()}
    return _best(cells, order, density, scope)


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
        shapes, generator, unit, scope, groups: as in `random_masks`.
        members: number of masks, at least 1.

    >>> masks = partition({"a.weight": (3, 4)}, torch.Generator().manual_seed(0), members=3)
    >>> [int(m["a.weight"].sum()) for m in masks], sum(m["a.weight"].int() for m in masks).unique().tolist()
    ([4, 4, 4], [1])
    """
    cells = cells_of(shapes, unit, groups)
    small = {name: n for name, n in cells.sizes.items() if n < members and unit == "neuron"}
    if small:
        raise InputError(
            f"members={members} cannot share out the neurons of {', '.join(f'{k} ({v})' for k, v in small.items())}: "
            "each member needs one; use fewer members, unit='connection', or exclude these layers."
        )
    owners: dict[str, Tensor] = {}
    if scope == "global":
        size = sum(cells.sizes.values())
        flat = torch.full((size,), -1)
        for part in flat.split(list(cells.sizes.values())) if cells.floor else ():
            part[torch.randperm(len(part), generator=generator)[:members]] = torch.arange(members)
        rest = torch.randperm(size, generator=generator)
        rest = rest[flat[rest] < 0]
        flat[rest] = torch.arange(rest.numel()) % members
        owners = split(flat, cells.sizes) if size else {}
    else:
        dealt = 0  # dealing continues from layer to layer, so that totals differ by at most one too
        for name, n in cells.sizes.items():
            owner = torch.empty(n, dtype=torch.long)
            owner[torch.randperm(n, generator=generator)] = (torch.arange(n) + dealt) % members
            owners[name] = owner
            dealt = (dealt + n) % members
    return [cells.expand({name: owner == member for name, owner in owners.items()}) for member in range(members)]


def magnitude_masks(
    params: Params,
    *,
    density: float = 0.5,
    unit: Unit = "connection",
    scope: Scope = "layer",
    groups: Groups = (),
) -> Masks:
    """Return masks that keep the largest weights, or the neurons or layers whose weights have the largest mean square.

    A tied group is ranked by the mean square over the rows of all its layers. With unit `neuron` every layer keeps at least its best neuron.

    Args:
        params: the weights to mask, by name.
        density: share of kept cells, 0 to 1.
        unit, scope, groups: as in `random_masks`; `global` ranks over all layers together.

    >>> magnitude_masks({"a": torch.tensor([[1.0, -3.0], [2.0, 0.5]])})["a"].tolist()
    [[False, True], [True, False]]
    """
    cells = cells_of({name: value.shape for name, value in params.items()}, unit, groups)
    values = {name: value.detach().to("cpu", torch.float32) for name, value in params.items()}
    if unit == "connection":
        scores = {name: values[name].abs().flatten() for name in cells.sizes}
    else:
        rows = {
            n: torch.cat([values[f].reshape(count, -1) for f in cells.followers[n]], dim=1)
            for n, count in cells.sizes.items()
        }
        scores = {name: row.square().mean(1) for name, row in rows.items()}
    return _best(cells, scores, density, scope)


def erk_densities(shapes: Shapes, *, sparsity: float) -> dict[str, float]:
    """Return Erdos-Renyi-Kernel densities: layer l gets a density proportional to sum(shape_l) / prod(shape_l).

    Layers whose share would pass 1 stay dense and the others share the rest. Densities are whole numbers of weights, so
    `random_masks` with them keeps exactly round((1 - sparsity) * n) of all n weights.

    Args:
        shapes: shapes of the weights, by name.
        sparsity: share of weights removed in total, 0 to 1.

    Reference: Evci et al., "Rigging the Lottery", ICML 2020, arXiv:1911.11134, section 3; for linear layers Mocanu et
    al., 2018, arXiv:1707.04780.

    >>> erk_densities({"a": (2, 4), "b": (8, 8)}, sparsity=0.5)
    {'a': 1.0, 'b': 0.4375}
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = kept_count(1.0 - sparsity, sum(sizes.values()))
    weights = {name: float(sum(shape)) for name, shape in shapes.items()}
    exact: dict[str, float] = {}
    open_names = set(sizes)
    while open_names:
        budget = total - sum(sizes[name] for name in sizes if name not in open_names)
        scale = budget / sum(weights[name] for name in open_names)
        full = {name for name in open_names if scale * weights[name] > sizes[name]}
        if not full:
            exact |= {name: scale * weights[name] for name in open_names}
            break
        open_names -= full
    counts = {name: math.floor(exact.get(name, sizes[name])) for name in sizes}
    remainders = sorted(sizes, key=lambda name: counts[name] - exact.get(name, sizes[name]))
    for name in remainders[: total - sum(counts.values())]:
        counts[name] += 1
    return {name: counts[name] / sizes[name] for name in sizes}


def regrow(
    masks: Mapping[str, Tensor],
    weights: Params,
    gradients: Params | None = None,
    *,
    rate: Share,
    generator: torch.Generator | None = None,
) -> Masks:
    """Return masks after one drop-and-grow step; every layer keeps its number of weights.

    In each layer the `rate` share of kept weights with the smallest magnitude is dropped, and as many are grown among those removed before:
    where the gradient is largest, or at random. No more weights are dropped than can be grown.

    Args:
        masks: the masks before the step.
        weights: the weights, at least for the masked names.
        gradients: dense gradients of the same weights; None grows at random.
        rate: share of kept weights replaced in each layer (zeta), 0 to 1.
        generator: draws random growth; needed if gradients is None.

    Reference: Evci et al., "Rigging the Lottery", ICML 2020, arXiv:1911.11134, Algorithm 1 (by gradient); Mocanu et
    al., 2018, arXiv:1707.04780 (at random).

    Differs from the papers: weights just dropped cannot be grown.

    >>> masks, weights = {"a": torch.tensor([True, True, False, False])}, {"a": torch.tensor([0.1, 2.0, 0.0, 0.0])}
    >>> regrow(masks, weights, {"a": torch.tensor([9.0, 0.0, 0.5, -1.0])}, rate=0.5)["a"].tolist()
    [False, True, False, True]
    """
    if gradients is None and generator is None:
        raise InputError("regrow needs gradients to grow by their size, or a generator to grow at random; got neither.")
    grown: Masks = {}
    for name, mask in masks.items():
        flat = mask.flatten()
        kept = int(flat.sum())
        count = min(int(rate * kept), flat.numel() - kept)
        magnitude = weights[name].detach().abs().flatten().masked_fill(~flat, math.inf)
        dropped = _largest(-magnitude, count)
        if gradients is None:
            appeal = torch.rand(flat.numel(), generator=generator).to(flat.device)
        else:
            appeal = gradients[name].detach().abs().flatten()
        added = _largest(appeal.masked_fill(flat, -1.0), count)
        grown[name] = ((flat & ~dropped) | added).view(mask.shape)
    return grown


def total_distance(masks: Sequence[Mapping[str, Tensor]]) -> float:
    """Return TD: the sum over ordered pairs of members of the square root of their masks' Hamming distance.

    Reference: Whitaker & Whitley, 2022, arXiv:2202.11782, the equations for CD and TD.

    >>> total_distance([{"a": torch.tensor([True] * 4)}, {"a": torch.tensor([False] * 4)}])
    4.0
    """
    rows = [torch.cat([mask.flatten() for mask in one.values()]) for one in masks]
    return sum(float((one != other).sum()) ** 0.5 for one in rows for other in rows)


_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def prunable(
    network: nn.Module,
    *,
    unit: Unit = "connection",
    keep_classifier: bool = True,
    keep_first: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    calls: Sequence[Called] = (),
) -> list[str]:
    """Return the names of the weights to mask: those of convolutions and linear layers, without the classifier.

    Biases and normalization layers are not masked. The weights inside `nn.MultiheadAttention` and of recurrent layers are masked by connections
    only, as are transposed convolutions. Weights under a parametrization (weight_norm), `nn.Bilinear` and bare parameters are not masked
    unless `include` names them.

    Args:
        network: any network; it is not changed.
        unit: `connection`, `neuron` or `layer`.
        keep_classifier: leave out the last layer.
        keep_first: leave out the first layer.
        include: name patterns of further parameters to mask (a bias, a norm, the classifier).
        exclude: name patterns of parameters to leave out, with precedence. Frozen parameters are always left out.
        calls: the network's modules in order of execution (`choral.engine.inspect.executed`), to find the first and last; by default the
            order of declaration.

    >>> prunable(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    ['0.weight', '2.weight']
    """
    layers = _layers(network)
    called = [call for call in calls if call.layer in layers]
    order = [call.layer for call in called if call.needed] or list(layers)
    aside = {call.layer for call in called} - set(order)  # their outputs are not used
    suited = [name for name in layers if name not in aside and _fits(network, name, unit)]
    chosen = {weight for name in suited for weight in layers[name]}
    if keep_classifier and order:
        chosen -= set(layers[order[-1]])
    if keep_first and order:
        chosen -= set(layers[order[0]])
    parameters = [name for name, _ in network.named_parameters()]
    asked, left = set(fitting(parameters, include, "include")), set(fitting(parameters, exclude, "exclude"))
    rows = {weight for name, weights in layers.items() for weight in weights if _fits(network, name, "neuron")}
    if unit != "connection" and asked - rows:
        raise InputError(
            f"include: {sorted(asked - rows)[0]!r} has no neurons; unit='{unit}' takes convolutions and linear layers."
        )
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    return [name for name in parameters if name in (chosen | asked) - frozen - left]


def _layers(network: nn.Module) -> dict[str, list[str]]:
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    layers: dict[str, list[str]] = {}
    for name, module in network.named_modules():
        match module:
            case nn.MultiheadAttention():
                parts: tuple[str, ...] = _ATTENTION_WEIGHTS
            case nn.Linear() | _ConvNd():
                parts = ("weight",)
            case nn.RNNBase() | nn.RNNCellBase():
                parts = tuple(n for n, p in module.named_parameters(recurse=False) if p.dim() > 1)
            case _:
                continue
        own = dict(module.named_parameters(recurse=False))
        weights = [names[id(own[part])] for part in parts if part in own]
        if weights:
            layers[name] = weights
    return layers


def _fits(network: nn.Module, layer: str, unit: Unit) -> bool:
    if unit == "connection":
        return True
    module = network.get_submodule(layer)
    inside_attention = layer.endswith("out_proj") and isinstance(
        network.get_submodule(layer.rpartition(".")[0]), nn.MultiheadAttention
    )
    apart = (nn.MultiheadAttention, _ConvTransposeNd, nn.RNNBase, nn.RNNCellBase)
    return not isinstance(module, apart) and not inside_attention
