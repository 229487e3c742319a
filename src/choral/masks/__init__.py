"""Masks: pure functions from shapes and a generator to dicts of bool tensors, True for kept weights.

All of them take three choices. `unit` is what is kept or removed as a whole: a `connection` (one weight), a `neuron` (one output row or
filter) or a `layer`. `scope` says whether the kept share applies to every `layer` or to all of them together (`global`). `groups` names
layers that must keep the same neurons, because their outputs are summed. Masks have the shapes of the weights; `keep_vectors` and
`expand_neurons` convert between masks and vectors of neurons.
"""

from choral.base.values import offered
from choral.masks.sampling import (
    Masks,
    Scope,
    Shapes,
    Unit,
    erk_densities,
    expand_neurons,
    keep_vectors,
    magnitude_masks,
    partition,
    prunable,
    random_masks,
    regrow,
    total_distance,
)  # fmt: skip

__all__ = [
    "Masks", "Scope", "Shapes", "Unit", "erk_densities", "expand_neurons",
    "keep_vectors", "magnitude_masks", "partition", "prunable", "random_masks", "regrow",
    "total_distance",
]  # fmt: skip

globals().update(offered(__all__, globals()))
