"""Sparse operators: prune a state, drop and grow its weights, make pruned neurons physically disappear."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params
from choral.compaction import compact, neuron_param_mask, tied_groups
from choral.masks import (
    anti_random_pair,
    erk_densities,
    keep_vectors,
    magnitude_masks,
    partition,
    prunable,
    random_masks,
    regrow,
)
from choral.plan.phases import Context, Operator
from choral.plan.state import State

PRUNINGS = ("random", "anti_random", "partition", "magnitude", "erk")


@dataclass(frozen=True, kw_only=True)
class Prune(Operator):
    """Remove weights: they become zero and stay zero in every later training phase.

    Args:
        pruning: 'random' (drawn for this branch), 'anti_random' (branches 2k and 2k + 1 keep complementary halves),
            'partition' (branches keep disjoint parts that cover everything), 'magnitude' (the smallest go), or 'erk' (random,
            with Erdos-Renyi-Kernel densities).
        sparsity: share removed.
        unit: 'connection', or 'neuron' (whole output rows with their bias and normalisation).
        scope: 'layer' removes the share in every layer, 'global' over all of them.
        members: parts of a partition.
        keep_classifier, keep_first: whether the output layer and the first layer stay whole.
        include, exclude: name patterns of weights to prune or to leave, instead of and besides these.
    """

    pruning: Literal["random", "anti_random", "partition", "magnitude", "erk"] = "random"
    sparsity: float = 0.5
    unit: Literal["connection", "neuron"] = "connection"
    scope: Literal["layer", "global"] = "layer"
    members: int = 2
    keep_classifier: bool = True
    keep_first: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pruning not in PRUNINGS:
            raise InputError(f"pruning is {self.pruning!r}; give one of {', '.join(PRUNINGS)}.")
        if not 0 <= self.sparsity < 1:
            raise InputError(f"sparsity is {self.sparsity}; give a share from 0 up to, but not including, 1.")

    @property
    def gives(self) -> tuple[str, ...]:
        """The mask."""
        return ("mask",)

    @property
    def foreseen(self) -> bool:
        """The number of weights is known, whichever they are."""
        return True

    def apply(self, state: State, context: Context) -> State:
        """Return the state with its mask, removed weights at zero."""
        network, example = context.network(state), context.example()
        names = prunable(
            network,
            unit=self.unit,
            keep_classifier=self.keep_classifier,
            keep_first=self.keep_first,
            include=self.include,
            exclude=self.exclude,
            example_input=example,
        )
        groups = tied_groups(network, example) if self.unit == "neuron" else []
        masks = self._masks({n: state.params[n] for n in names}, groups, context)
        if self.unit == "neuron":
            masks = neuron_param_mask(network, keep_vectors(masks), example)
        params = {n: p * masks[n] if n in masks else p for n, p in state.params.items()}
        return state.having(params=params, memory={}).with_slots(mask=masks)

    def _masks(self, weights: Params, groups: list[list[str]], context: Context) -> dict[str, Tensor]:
        shapes = {n: w.shape for n, w in weights.items()}
        density = 1 - self.sparsity
        if self.pruning == "magnitude":
            return magnitude_masks(weights, density=density, unit=self.unit, scope=self.scope, groups=groups)
        if self.pruning == "anti_random":
            shared = context.sibling_generator(f"pair {context.branch // 2}")
            pair = anti_random_pair(shapes, shared, unit=self.unit, scope=self.scope, groups=groups)
            return pair[context.branch % 2]
        if self.pruning == "partition":
            shared = context.sibling_generator("partition")
            parts = partition(shapes, shared, members=self.members, unit=self.unit, scope=self.scope, groups=groups)
            return parts[context.branch % self.members]
        own = context.generator("prune")
        if self.pruning == "erk":
            return random_masks(shapes, own, density=erk_densities(shapes, sparsity=self.sparsity), unit=self.unit)
        return random_masks(shapes, own, density=density, unit=self.unit, scope=self.scope, groups=groups)


@dataclass(frozen=True, kw_only=True)
class Regrow(Operator):
    """Drop the smallest weights and grow as many where the gradient is largest, or at random.

    Grown weights start at zero with zero optimiser memory, so nothing from a former life carries over.

    Args:
        rate: share of kept weights replaced in each layer.
        grow: 'gradient' or 'random'.
        batches: batches of 256 points whose gradient decides.

    Reference: Evci et al., "Rigging the Lottery", ICML 2020, arXiv:1911.11134, Algorithm 1.
    """

    rate: float = 0.5
    grow: Literal["gradient", "random"] = "gradient"
    batches: int = 1

    @property
    def needs(self) -> tuple[str, ...]:
        """A mask to change."""
        return ("mask",)

    def apply(self, state: State, context: Context) -> State:
        """Return the state with other weights alive."""
        old = state.slots["mask"]
        gradients = context.gradients(state, self.batches) if self.grow == "gradient" else None
        new = regrow(old, state.params, gradients, rate=self.rate, generator=context.generator("regrow"))
        stayed = {n: old[n] & new[n] for n in new}
        params = {n: p * stayed[n] if n in stayed else p for n, p in state.params.items()}
        memory = {}
        for full, value in state.memory.items():
            name = full.split("/", 1)[1]
            memory[full] = value * stayed[name] if name in stayed and value.shape == params[name].shape else value
        return state.having(params=params, memory=memory).with_slots(mask=new)


@dataclass(frozen=True, kw_only=True)
class Compact(Operator):
    """Make removed neurons disappear: smaller dense tensors with the same outputs in evaluation mode.

    What cannot be removed (channels summed with living ones, for example) stays masked.
    """

    @property
    def needs(self) -> tuple[str, ...]:
        """A mask of whole neurons."""
        return ("mask",)

    @property
    def foreseen(self) -> bool:
        """The number of neurons is known, whichever they are."""
        return True

    def apply(self, state: State, context: Context) -> State:
        """Return the state of the smaller network."""
        from choral.compaction import slice_params

        mask = state.slots["mask"]
        network = context.network(state)
        result = compact(network, keep_vectors(mask), context.example(), repeats=0)
        small = result.network
        params = {n: p.detach().clone(memory_format=torch.contiguous_format) for n, p in small.named_parameters()}
        buffers = {n: b.detach().clone(memory_format=torch.contiguous_format) for n, b in small.named_buffers()}
        rest = {n: m for n, m in slice_params(mask, result.form).items() if n in params and not bool(m.all())}
        slots = {n: s for n, s in state.slots.items() if n != "mask"}
        form = result.form if result.form["axes"] else state.form
        return State(params, buffers, slots | ({"mask": rest} if rest else {}), {}, form)
