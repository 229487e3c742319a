"""From a traced network to the compacted one: what goes, the constants to fold, the form, and the check of the result.

A form says which entries of every parameter and buffer a compacted network has, as plain JSON types:
{"axes": {"fc1.weight": {"0": [0, 2, 5]}, ...}, "attributes": {"fc1": {"out_features": 3}, ...}}. `axes` lists the kept indices along the
shortened axes; other tensors stay whole. `attributes` are sizes that layers have as attributes. A form contains no values: a small network
is rebuilt from a newly built one.
"""

import copy
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from choral.base.batches import Batch
from choral.base.errors import InputError, did_you_mean
from choral.base.interface import evaluating
from choral.base.types import Params
from choral.compaction.rules import apply
from choral.compaction.tracer import Tracer, tensors_in
from choral.masks import expand_neurons

Form = dict[str, Any]

SIZES = ("out_features", "out_channels", "num_features", "num_channels", "num_parameters", "channels")
"""Attributes in which layers state the number of their output channels."""
_KNOWN = {*SIZES, "in_features", "in_channels", "groups", "num_groups"}


def slice_params(params: Params, form: Form) -> Params:
    """Return the entries that a form keeps, of parameters, buffers or tensors of their names and shapes (momenta, masks).

    Other tensors are returned as they are.

    >>> slice_params({"fc.weight": torch.arange(6).view(3, 2)}, {"axes": {"fc.weight": {"0": [0, 2]}}})
    {'fc.weight': tensor([[0, 1],
            [4, 5]])}
    """
    axes = _axes(form)
    return {name: _slice(name, value, axes.get(name, {})) for name, value in params.items()}


def _axes(form: Form) -> Mapping[str, Mapping[str, list[int]]]:
    if not isinstance(form, Mapping) or not isinstance(form.get("axes"), Mapping):
        raise InputError(f"a form is a dict with 'axes' and 'attributes', as compact gives it; received {form!r}.")
    return form["axes"]


def _slice(name: str, value: Tensor, axes: Mapping[str, list[int]]) -> Tensor:
    for key, indices in axes.items():
        if not key.isdecimal():
            raise InputError(f"the form names the axis {key!r} of {name!r}; an axis is a number.")
        axis = int(key)
        if axis >= value.dim() or (indices and not 0 <= min(indices) <= max(indices) < value.shape[axis]):
            raise InputError(
                f"the form keeps index {max(indices, default=0)} of axis {axis} of {name!r}, which has shape {tuple(value.shape)}; it is another network's."
            )
        value = value.index_select(axis, torch.tensor(indices, dtype=torch.long, device=value.device))
    return value


def shrink(network: nn.Module, form: Form) -> nn.Module:
    """Return a new network with the smaller layers of a form; needs no data, and does not change the given one.

    Kept values are those of the given network; load others with `load_state_dict`. Sizes of a converted layer are set in its `settings`.

    >>> form = {"axes": {"weight": {"0": [1]}, "bias": {"0": [1]}}, "attributes": {"": {"out_features": 1}}}
    >>> shrink(nn.Linear(3, 2), form)
    Linear(in_features=3, out_features=1, bias=True)
    """
    axes = _axes(form)
    small = copy.deepcopy(network)
    modules = dict(small.named_modules(remove_duplicate=False))
    tensors: Params = dict(small.named_parameters(remove_duplicate=False))
    tensors |= dict(small.named_buffers(remove_duplicate=False))
    done: dict[int, Tensor] = {}  # shared parameters stay shared
    for name, cut in axes.items():
        if name not in tensors:
            raise InputError(f"the form names {name!r}, which the network does not have.{did_you_mean(name, tensors)}")
        tensor = tensors[name]
        if id(tensor) not in done:
            smaller = _slice(name, tensor.detach(), cut)
            is_parameter = isinstance(tensor, nn.Parameter)
            done[id(tensor)] = nn.Parameter(smaller, tensor.requires_grad) if is_parameter else smaller
        owner, _, part = name.rpartition(".")
        setattr(modules[owner], part, done[id(tensor)])
    for owner, attributes in form.get("attributes", {}).items():
        for attribute, size in attributes.items():
            if owner not in modules or attribute not in _KNOWN or not isinstance(size, int):
                raise InputError(
                    f"the form sets {attribute}={size!r} of {owner!r}; only sizes of layers that the network has can be set."
                )
            setattr(getattr(modules[owner], "settings", modules[owner]), attribute, size)
    return small


Example: TypeAlias = Batch | tuple[Any, ...]


@dataclass(frozen=True)
class Fold:
    """Constants of removed input channels that a layer takes over.

    Args:
        weight: name of the layer's weight.
        bias: name of its bias; None if the column of a carrier takes the constants over.
        channels: the removed input channels.
        constants: their constants, relative to the carrier if there is one.
        carrier: an input channel that stays and emits a constant.
    """

    weight: str
    bias: str | None
    channels: Tensor
    constants: Tensor
    carrier: int | None = None

    @property
    def target(self) -> str:
        """Name of the parameter that changes."""
        return self.bias or self.weight

    @property
    def where(self) -> Any:
        """Index of the entries of the target that change."""
        return ... if self.bias else (slice(None), self.carrier)

    def added(self, weight: Tensor, *, power: int = 1) -> Tensor:
        """Return the addend of the target, given the weight; `power` 2 adds variances of independent weights."""
        columns = weight[:, self.channels.to(weight.device)]
        return torch.einsum("oi...,i->o" if self.bias else "oi...,i->o...", columns, self.constants.to(weight) ** power)


@dataclass(frozen=True)
class Solution:
    """The form, the folds before it, the requested channels that stay, and how many are removed, by layer."""

    form: Form
    folds: tuple[Fold, ...]
    kept: dict[str, tuple[int, ...]]
    removed: dict[str, int]


def run(network: nn.Module, example: Example) -> Any:
    """Return the network's outputs on an example, without gradients."""
    with torch.no_grad():
        return network(*(example if isinstance(example, tuple) else (example,)))


class Untraceable(Exception):
    """A network that fails under the tracer; it stays whole."""


def checked(network: nn.Module, keep: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the keep-vectors as bool; InputError for a vector of another length than its layer has outputs."""
    for layer, vector in keep.items():
        wanted = network.get_submodule(layer).get_parameter("weight").shape[:1]
        if vector.shape != wanted:
            raise InputError(f"keep[{layer!r}] has shape {tuple(vector.shape)}; its layer takes {tuple(wanted)}.")
    return {layer: vector.detach().bool().cpu() for layer, vector in keep.items()}


def masked(network: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy in which the removed neurons' weights and biases are zero."""
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for layer, vector in keep.items():
            own = copied.get_submodule(layer)._parameters
            for parameter in (own.get("weight"), own.get("bias")):
                if parameter is not None:
                    parameter[~vector.to(parameter.device)] = 0
    return copied


def traced(network: nn.Module, keep: Mapping[str, Tensor], example: Example, *, silence: bool = False) -> Tracer:
    """Trace one forward pass in evaluation mode of a network with removed neurons."""
    watched = masked(network, keep).eval()
    canonical = _canonical(watched)
    dead: dict[str, Tensor] = {}
    for layer, vector in keep.items():
        name = canonical[_weight(layer)]
        dead[name] = dead.get(name, torch.zeros_like(vector)) | ~vector
    tracer = Tracer(watched, dead=dead, rules=apply, silence=silence)
    try:
        with tracer:
            outputs = run(watched, example)
    except Exception as error:  # forward code of the user's may fail in any way
        run(watched, example)  # a network that does not run at all is the caller's mistake
        raise Untraceable from error
    tracer.finish(outputs)
    return tracer


def _weight(layer: str) -> str:
    return f"{layer}.weight" if layer else "weight"


def _canonical(network: nn.Module) -> dict[str, str]:
    """Return the first name of the tensor of every parameter or buffer."""
    every = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in every}


def solve(network: nn.Module, keep: Mapping[str, Tensor], tracer: Tracer, refused: Collection[str] = ()) -> Solution:
    """Return what can be removed, except in `refused` layers.

    A unit is removed if the removal of one of its channels was requested, nothing locks it, and wherever a layer mixes it with others it is a
    constant that the layer's bias can take over. If the bias cannot (there is none, or zeros are padded around the input), the largest
    constant stays and the columns of the others are added to its own.
    """
    roots = tracer.units.roots()
    canonical = _canonical(network)
    wanted = torch.zeros(roots.numel(), dtype=torch.bool)
    stays = torch.zeros_like(wanted)
    asked: dict[str, Tensor] = {}
    for layer, vector in keep.items():
        units = tracer.rows.get(canonical[_weight(layer)])
        if units is not None:
            asked[layer] = units[~vector]
            wanted[roots[asked[layer]]] = True
            stays[roots[asked[layer]]] |= layer in refused
    for units in tracer.units.locks:
        stays[roots[units]] = True
    readings = Counter(use.weight for use in tracer.uses)
    for use in tracer.uses:
        varying = use.constants.isnan()
        stays[roots[use.units[varying | use.emitting if readings[use.weight] > 1 else varying]]] = True
    wanted &= ~stays
    for use in tracer.uses:
        if not use.takes_constants and bool((wanted[roots[use.units]] & use.emitting).any()):
            wanted[roots[use.units[use.constants.nan_to_num(0.0).abs().argmax()]]] = False
    for units in tracer.bound.values():  # every parameter needs a channel
        if bool(wanted[roots[units]].all()):
            wanted[roots[units[0]]] = False
    gone = wanted[roots]
    kept = {}
    for layer, vector in keep.items():
        dead = (~vector).nonzero().flatten()
        staying = dead[~gone[asked[layer]]] if layer in asked else dead
        if staying.numel():
            kept[layer] = tuple(staying.tolist())
    removed = {
        name.rpartition(".")[0]: int(gone[units].sum())
        for name, units in tracer.rows.items()
        if bool(gone[units].any())
    }
    return Solution(_form(network, tracer, gone), _folds(tracer, gone), kept, removed)


def _folds(tracer: Tracer, gone: Tensor) -> tuple[Fold, ...]:
    folds = []
    for use in tracer.uses:
        channels = (gone[use.units] & (use.constants != 0)).nonzero().flatten()
        if not channels.numel():
            continue
        if use.takes_constants:
            folds.append(Fold(use.weight, use.bias, channels, use.constants[channels]))
        else:
            carrier = int(use.constants.where(use.emitting & ~gone[use.units], 0.0).abs().argmax())
            folds.append(Fold(use.weight, None, channels, use.constants[channels] / use.constants[carrier], carrier))
    return tuple(folds)


def _form(network: nn.Module, tracer: Tracer, gone: Tensor) -> Form:
    cuts: dict[str, dict[str, list[int]]] = {}
    for (name, axis), units in tracer.bound.items():
        if bool(gone[units].any()):
            cuts.setdefault(name, {})[str(axis)] = (~gone[units]).nonzero().flatten().tolist()
    axes = {name: cuts[first] for name, first in _canonical(network).items() if first in cuts}
    attributes: dict[str, dict[str, int]] = {}
    for owner, module in network.named_modules(remove_duplicate=False):
        sizes = _attributes(owner, module, axes, tracer, gone)
        if sizes:
            attributes[owner] = sizes
    return {"axes": axes, "attributes": attributes}


def _attributes(
    owner: str, module: nn.Module, axes: Mapping[str, Mapping[str, list[int]]], tracer: Tracer, gone: Tensor
) -> dict[str, int]:
    stated = {name: size for name, size in vars(module).items() if isinstance(size, int)}
    weight = module._parameters.get("weight")
    cut = axes.get(_weight(owner), {})
    sizes: dict[str, int] = {}
    before, after = 0, 0
    if weight is not None and "0" in cut:
        before, after = weight.shape[0], len(cut["0"])
    elif owner in tracer.norms and bool(gone[tracer.norms[owner]].any()):
        before, after = tracer.norms[owner].numel(), int((~gone[tracer.norms[owner]]).sum())
    if before:
        sizes |= {name: after for name in SIZES if stated.get(name) == before}
        for name in ("groups", "num_groups"):
            if stated.get(name, 1) > 1:
                sizes[name] = stated[name] * after // before
        if "groups" in sizes and weight is not None:
            sizes["in_channels"] = weight.shape[1] * sizes["groups"]
    if weight is not None and "1" in cut:
        sizes |= {n: len(cut["1"]) for n in ("in_features", "in_channels") if stated.get(n) == weight.shape[1]}
    return sizes


def tied_groups(network: nn.Module, example_input: Example) -> list[list[str]]:
    """Return groups of layers that can only lose the same neurons: their outputs are summed, multiplied, or feed a depthwise convolution.

    Pass them as `groups` to the functions of `choral.masks`. Layers that are tied only in part are not listed, nor those of a network that
    cannot be traced.

    Args:
        network: any network; it is not changed.
        example_input: as in `compact`.
    """
    try:
        tracer = traced(network, {}, example_input)
    except Untraceable:
        return []
    roots = tracer.units.roots()
    groups: dict[tuple[int, ...], list[str]] = {}
    for weight, units in tracer.rows.items():
        groups.setdefault(tuple(roots[units].tolist()), []).append(weight.removesuffix(".weight"))
    return [layers for layers in groups.values() if len(layers) > 1]


def neuron_param_mask(network: nn.Module, keep: Mapping[str, Tensor], example_input: Example) -> dict[str, Tensor]:
    """Return the masks of all parameters of removed neurons: rows, biases, and parameters that act on them only.

    The scale and shift of a BatchNorm after a removed neuron (and any other parameter that only acts on its constant: a PReLU slope, the row of
    a depthwise convolution) are masked with it. Then a removed neuron emits zero up to the next layer, and compaction has nothing to fold. In
    a network that cannot be traced only rows and biases are found.

    Args:
        network: any network; it is not changed.
        keep: True for the output channels to keep, by layer name.
        example_input: as in `compact`.
    """
    wanted = checked(network, keep)
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    masks = expand_neurons(shapes, wanted)
    try:
        acting = traced(network, wanted, example_input, silence=True).silenced
    except Untraceable:
        return masks
    for name, mask in acting.items():
        shape = shapes[name]
        rows = mask.view(shape) if mask.numel() == shape.numel() else mask.view(-1, *[1] * (len(shape) - 1))
        if not bool(mask.all()):
            masks[name] = rows.expand(shape) & masks.get(name, torch.ones(shape, dtype=torch.bool))
    return masks


_TOLERANCE = 1e-4


@dataclass(frozen=True)
class CompactResult(Solution):
    """A compacted network, and how it was made.

    Its values are those of `slice_params` with the form, after the folds were added.
    """

    network: nn.Module


def compact(network: nn.Module, keep: Mapping[str, Tensor], example_input: Example) -> CompactResult:
    """Return a smaller network with the same outputs in evaluation mode, without some neurons.

    A removed neuron has zero weights and bias. Rows are removed with the matching columns of all their readers,
    through normalization, pooling, flattening, sums, products, concatenations and depthwise or grouped convolutions. A
    removed neuron that still emits a constant (the shift of a BatchNorm after it) is folded into the bias of the next
    layer; if the bias cannot represent it (zero-padding, no bias), one such neuron stays, and its outgoing weights
    take over those of the others. Channels that cannot be removed - summed with live ones, under the statistics of a LayerNorm,
    read by attention or by a function without a rule - stay; `kept` names them. The result is compared with the original on the
    example; layers whose removal changes anything stay whole.

    Args:
        network: any network; it is not changed.
        keep: True for the output channels to keep, (output channel,) by layer name; other layers stay whole.
        example_input: one input batch, or a tuple of the arguments of the network's `forward`.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> small = compact(network, {"0": torch.arange(8) < 5}, torch.randn(3, 4)).network
    >>> small[0].weight.shape, small[2].weight.shape
    (torch.Size([5, 4]), torch.Size([2, 5]))
    """
    wanted = checked(network, keep)
    dead = masked(network, wanted)
    expected = run(copy.deepcopy(dead).eval(), example_input)
    try:
        tracer = traced(network, wanted, example_input)
    except Untraceable:
        return _untouched(wanted, dead)
    solution = solve(network, wanted, tracer)
    small = _attempt(dead, solution, example_input, expected)
    if small is None:
        # some step was not what it seemed (a size written into forward): take layers one by one, as far as they go
        refused = set(wanted)
        for layer in wanted:
            trial = solve(network, wanted, tracer, refused - {layer})
            if _attempt(dead, trial, example_input, expected) is not None:
                refused.remove(layer)
        solution = solve(network, wanted, tracer, refused)
        small = _attempt(dead, solution, example_input, expected)
    return _untouched(wanted, dead) if small is None else CompactResult(**vars(solution), network=small)


def _untouched(keep: Mapping[str, Tensor], dead: nn.Module) -> CompactResult:
    kept = {layer: tuple((~v).nonzero().flatten().tolist()) for layer, v in keep.items() if not v.all()}
    form: Form = {"axes": {}, "attributes": {}}
    return CompactResult(form, (), kept, {}, copy.deepcopy(dead))


def _attempt(dead: nn.Module, solution: Solution, example: Example, expected: object) -> nn.Module | None:
    try:
        whole = copy.deepcopy(dead)
        parameters = dict(whole.named_parameters())
        with torch.no_grad():
            for fold in solution.folds:
                parameters[fold.target][fold.where] += fold.added(parameters[fold.weight])
        small = shrink(whole, solution.form)
        with evaluating(small):
            outputs = run(small, example)
    except Exception:  # forward code of the user's may fail in any way
        return None
    pairs = list(zip(tensors_in(outputs), tensors_in(expected)))
    if any(one.shape != other.shape for one, other in pairs):
        return None
    distance = max((float((a - b).detach().abs().max()) for a, b in pairs if a.numel()), default=0.0)
    scale = max((float(b.detach().abs().max()) for _, b in pairs if b.numel()), default=0.0)
    return small if distance <= _TOLERANCE * max(1.0, scale) else None
