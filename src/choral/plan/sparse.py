"""Sparse operators: prune a state, drop and grow weights, remove pruned neurons, resize branches of a fork."""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from choral.base.batches import Batch, leaves
from choral.base.errors import InputError, PlanError
from choral.base.types import Params
from choral.base.values import BelowOne, Value
from choral.compaction import compact, neuron_param_mask, slice_params, tied_groups
from choral.layers.convert import layers_of
from choral.layers.features import Skippable
from choral.masks import (
    Scope,
    Unit,
    erk_densities,
    keep_vectors,
    magnitude_masks,
    partition,
    prunable,
    random_masks,
    regrow,
)
from choral.plan.phases import Context, Operator
from choral.plan.state import Role, State, slot

MASK = slot("mask", Role.MASK)


@dataclass(frozen=True, kw_only=True)
class Masks(Value, ABC):
    """How the remaining weights are chosen."""

    @abstractmethod
    def choose(
        self, weights: Params, context: Context, *, unit: Unit, scope: Scope, groups: list[list[str]]
    ) -> dict[str, Tensor]:
        """Return masks, True for remaining weights.

        Args:
            weights: the prunable weights.
            context: generators of this place, and the number of the branch or round.
            unit, scope: as in `Prune`.
            groups: names of weights whose neurons are removed together.
        """


@dataclass(frozen=True, kw_only=True)
class _Sparse(Masks, ABC):
    """Masks that remove a share of the weights.

    Args:
        sparsity: share removed.
    """

    sparsity: BelowOne = 0.5


@dataclass(frozen=True, kw_only=True)
class RandomMasks(_Sparse):
    """Remove weights at random, drawn for this branch."""

    def choose(self, weights: Params, context: Context, **how: Any) -> dict[str, Tensor]:
        return random_masks(_shapes(weights), context.generator("prune"), density=1 - self.sparsity, **how)


@dataclass(frozen=True, kw_only=True)
class ErdosRenyi(_Sparse):
    """Remove weights at random, fewer in small layers: Erdos-Renyi-Kernel densities."""

    def choose(self, weights: Params, context: Context, **how: Any) -> dict[str, Tensor]:
        densities = erk_densities(_shapes(weights), sparsity=self.sparsity)
        return random_masks(_shapes(weights), context.generator("prune"), density=densities, unit=how["unit"])


@dataclass(frozen=True, kw_only=True)
class Magnitude(_Sparse):
    """Remove the smallest weights."""

    def choose(self, weights: Params, context: Context, **how: Any) -> dict[str, Tensor]:
        return magnitude_masks(weights, density=1 - self.sparsity, **how)


@dataclass(frozen=True, kw_only=True)
class AntiRandom(Masks):
    """Branches, or rounds of a repeat, 2k and 2k + 1 keep complementary halves, the most distant pair of masks."""

    def choose(self, weights: Params, context: Context, **how: Any) -> dict[str, Tensor]:
        shared = context.sibling_generator(f"pair {context.turn // 2}")
        return partition(_shapes(weights), shared, members=2, **how)[context.turn % 2]


@dataclass(frozen=True, kw_only=True)
class Partition(Masks):
    """Branches, or rounds of a repeat, keep disjoint parts that cover all weights.

    Args:
        parts: number of parts.
    """

    parts: int = 2

    def choose(self, weights: Params, context: Context, **how: Any) -> dict[str, Tensor]:
        shared = context.sibling_generator("partition")
        return partition(_shapes(weights), shared, members=self.parts, **how)[context.turn % self.parts]


def _shapes(weights: Params) -> dict[str, torch.Size]:
    return {n: w.shape for n, w in weights.items()}


@dataclass(frozen=True, kw_only=True)
class Prune(Operator):
    """Remove weights: they become zero and stay zero in every later training phase.

    Args:
        masks: `RandomMasks`, `AntiRandom`, `Partition`, `Magnitude`, `ErdosRenyi`, or your own `Masks`.
        unit: 'connection', 'neuron' (whole output rows with their bias and normalization), or 'layer' (whole layers that the network can do
            without, as in residual blocks).
        scope: 'layer' removes the share in every layer, 'global' over all of them; layers are always removed globally.
        keep_classifier: keep the output layer whole.
        keep_first: keep the first layer whole; by default if the inputs are rows of numbers and something else can be pruned, since units of
            the first layer would lose whole features.
        include, exclude: name patterns of weights to prune, and of weights not to prune.
    """

    masks: Masks = RandomMasks()
    unit: Unit = "connection"
    scope: Scope = "layer"
    keep_classifier: bool = True
    keep_first: bool | None = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gives: ClassVar[tuple[str, ...]] = (MASK,)
    foreseen: ClassVar[bool] = True

    def apply(self, state: State, context: Context) -> State:
        network, example = context.network(state), context.example()
        rows = all(
            part.dim() == 2 and part.is_floating_point() for part in leaves(example)
        )  # of numbers, as of a table
        may_go = functools.partial(
            prunable,
            network,
            unit=self.unit,
            keep_classifier=self.keep_classifier,
            include=self.include,
            exclude=self.exclude,
            calls=context.calls(state),
        )
        names = may_go(keep_first=rows if self.keep_first is None else self.keep_first)
        names = names or (may_go(keep_first=False) if self.keep_first is None else [])
        if not names:
            kinds = ", linear, attention and recurrent" if self.unit == "connection" else " and linear"
            raise InputError(
                f"Prune has nothing to prune: the network has no convolutions{kinds} layers with weights that train"
                f"{' but the last one' if self.keep_classifier else ''}; take a method that does not prune, such as "
                "deep_ensemble or snapshot."
            )
        groups, scope = tied_groups(network, example) if self.unit == "neuron" else [], self.scope
        if self.unit == "layer":
            groups, scope = spare_layers(network, names, example), "global"
            names = [name for group in groups for name in group]
        weights = {n: state.params[n] for n in names}
        masks = self.masks.choose(weights, context, unit=self.unit, scope=scope, groups=groups)
        if self.unit != "connection":
            masks = neuron_param_mask(network, keep_vectors(masks), example)
        masks = both_masks(state.mask, masks)
        params = {n: p * masks[n] if n in masks else p for n, p in state.params.items()}
        return state.having(params=params, memory={}).with_slots(**{MASK: masks})


def spare_layers(network: nn.Module, names: Sequence[str], example: Batch) -> list[list[str]]:
    """Return the weights of layers that can be removed together while the outputs still depend on the inputs.

    Layers form a group if those after the first read the inputs only through it, as in the body of a residual block. Layers declared first are
    tried first, so that a projection of the shortcut stays.
    """
    layers = {name: network.get_submodule(name.removesuffix(".weight")) for name in names}
    seeing: set[nn.Module] = set()

    def note(module: nn.Module, _: Any, outputs: Any) -> None:
        if not all(torch.allclose(rows, rows[:1].expand_as(rows)) for rows in leaves(outputs)):
            seeing.add(module)

    hooks = [module.register_forward_hook(note) for module in {*layers.values(), network}]
    gone: Params = {}
    groups: list[list[str]] = []
    for name in names:
        if name in gone:
            continue
        seeing.clear()
        trial = gone | _zeros(name, layers[name])
        with torch.no_grad():
            functional_call(network, trial, (example,))
        if network in seeing:
            groups.append([n for n in names if n not in gone and layers[n] not in seeing])
            gone = {n: zero for own in groups for first in own for n, zero in _zeros(first, layers[first]).items()}
    for hook in hooks:
        hook.remove()
    if not groups:
        raise InputError(
            "Prune has no layer to remove: the network has no shortcuts, so without any one layer the outputs would not "
            "depend on the inputs; give unit='neuron' or 'connection'."
        )
    return groups


def _zeros(weight: str, layer: nn.Module) -> Params:
    return {weight.removesuffix("weight") + n: torch.zeros_like(p) for n, p in layer.named_parameters()}


def both_masks(old: Params, new: Params) -> Params:
    """Return the intersection of two sets of masks; names in only one of them are kept."""
    return old | {n: m & old[n] if n in old else m for n, m in new.items()}


@dataclass(frozen=True, kw_only=True)
class Regrow(Operator):
    """Drop the smallest weights and grow as many where the gradient is largest, or at random.

    Grown weights and their optimizer state start at zero.

    Args:
        rate: share of kept weights replaced in each layer.
        grow: 'gradient' or 'random'.
        batches: number of batches of 256 rows for the gradient.

    Reference: Evci et al., "Rigging the Lottery", ICML 2020, arXiv:1911.11134, Algorithm 1.
    """

    rate: float = 0.5
    grow: Literal["gradient", "random"] = "gradient"
    batches: int = 1
    needs: ClassVar[tuple[str, ...]] = (MASK,)

    def apply(self, state: State, context: Context) -> State:
        old = state.slots[MASK]
        gradients = context.gradients(state, self.batches) if self.grow == "gradient" else None
        new = regrow(old, state.params, gradients, rate=self.rate, generator=context.generator("regrow"))
        stayed = {n: old[n] & new[n] for n in new}
        params = {n: p * stayed[n] if n in stayed else p for n, p in state.params.items()}
        memory = {}
        for full, value in state.memory.items():
            name = full.split("/", 1)[1]
            memory[full] = value * stayed[name] if name in stayed and value.shape == params[name].shape else value
        return state.having(params=params, memory=memory).with_slots(**{MASK: new})


@dataclass(frozen=True, kw_only=True)
class Compact(Operator):
    """Remove masked neurons: smaller dense tensors with the same outputs in evaluation mode.

    Neurons that cannot be removed (channels summed with live ones, for example) stay masked.
    """

    needs: ClassVar[tuple[str, ...]] = (MASK,)
    foreseen: ClassVar[bool] = True

    def apply(self, state: State, context: Context) -> State:
        mask = state.slots[MASK]
        network = context.network(state)
        result = compact(network, keep_vectors(mask), context.example())
        small = result.network
        params = {n: p.detach().clone(memory_format=torch.contiguous_format) for n, p in small.named_parameters()}
        buffers = {n: b.detach().clone(memory_format=torch.contiguous_format) for n, b in small.named_buffers()}
        rest = {n: m for n, m in slice_params(mask, result.form).items() if n in params and not bool(m.all())}
        slots = {n: s for n, s in state.slots.items() if n != MASK}
        form = result.form if result.form["axes"] else state.form
        return State(params, buffers, slots | ({MASK: rest} if rest else {}), {}, form)


@dataclass(frozen=True, kw_only=True)
class Hatch(Operator):
    """Restore the full width of a compacted network, with the same outputs in evaluation mode.

    Restored neurons get new incoming weights, drawn for this place, and outgoing weights of zero. Neurons that were masked in place keep zero
    weights, which are trained from then on. Frozen weights are those of the given network, so they read restored neurons.

    Reference: Chen et al., "Net2Net: Accelerating Learning via Knowledge Transfer", 2016, arXiv:1511.05641.
    """

    foreseen: ClassVar[bool] = True

    def apply(self, state: State, context: Context) -> State:
        whole, axes = context.fresh(), (state.form or {"axes": {}})["axes"]
        frozen = {name for name, p in context.network(whole).named_parameters() if not p.requires_grad}
        params, buffers = (
            {n: _widened(t, small[n], axes.get(n, {}), read=n in frozen) for n, t in full.items()}
            for full, small in ((whole.params, state.params), (whole.buffers, state.buffers))
        )
        return State(params, buffers, {n: s for n, s in state.slots.items() if n != MASK})


def _widened(fresh: Tensor, small: Tensor, axes: Mapping[str, list[int]], *, read: bool) -> Tensor:
    """Return a tensor of the full network: kept entries, new ones for restored neurons (axis 0), zeros where kept neurons would read restored
    ones (axis 1), unless they are `read`.
    """
    value, kept = fresh.clone(), {int(axis): torch.tensor(indices) for axis, indices in axes.items()}
    every = [kept.get(axis, torch.arange(size)) for axis, size in enumerate(value.shape)]
    if 1 in kept and not read:
        value[every[0]] = 0
    value[torch.meshgrid(*every, indexing="ij") if every else ...] = small
    return value


@dataclass(frozen=True, kw_only=True)
class Resize(Operator):
    """Reduce a network to the depth and width of its branch's variant; removed parts stay in place, unused, so that branches can be stacked.

    `depth` counts hidden layers: the first is always used, and as many of the others (`Skippable`) as needed. `width` counts units of each
    hidden layer: weights of the others are held at zero. A variant without these settings, or a network without such layers for the
    depth, leaves the network as it is.
    """

    reads: ClassVar[tuple[str, ...]] = ("depth", "width")

    def apply(self, state: State, context: Context) -> State:
        depth, width = context.variant.get("depth"), context.variant.get("width")
        network = context.network(state)
        if depth is not None:
            blocks = layers_of(network, (Skippable,))
            used = {f"{name}.used": torch.tensor(i < depth - 1) for i, (name, _) in enumerate(blocks)}
            state = state.having(buffers=state.buffers | used)
        if width is not None:
            state = state.with_slots(**{MASK: both_masks(state.mask, _masks(network, int(width)))})
        return state


def _masks(network: nn.Module, width: int) -> Params:
    chain: Iterator[tuple[str, Any]] = layers_of(network, (nn.Linear,))
    found: Params = {}
    for (name, one), (after, other) in itertools.pairwise(chain):
        if one.out_features != other.in_features:
            raise PlanError(
                f"Resize: layer {after!r} reads {other.in_features} numbers, but {name!r} gives {one.out_features}; a width is cut in plain chains only."
            )
        units = torch.arange(one.out_features) < width
        found[f"{name}.weight"] = found.get(f"{name}.weight", torch.tensor(True)) & units.unsqueeze(1)
        found[f"{name}.weight"] = found[f"{name}.weight"].expand(one.weight.shape)
        found[f"{after}.weight"] = units.expand(other.weight.shape)
        if one.bias is not None:
            found[f"{name}.bias"] = units
    return found
