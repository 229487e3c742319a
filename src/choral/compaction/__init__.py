"""Compaction: networks with removed neurons become smaller networks with the same outputs.

One forward pass on an example is traced (`tracer`) with a rule for each function (`rules`); the removable neurons follow from it; the
result is described by a form, built and checked (`compact`).

Torch-Pruning's dependency graph answers another question: which tensors change together when channels are cut. Given channels with zero
weights, it also drops the live channels they are summed with, drops the constant that BatchNorm still emits for them, lets LayerNorm use
fewer features, and treats unknown functions (a softmax) as elementwise: each changes the outputs. Otherwise both give the same network,
which the tests check.
"""

from choral.compaction.compact import (
    CompactResult,
    Fold,
    Form,
    compact,
    neuron_param_mask,
    shrink,
    slice_params,
    tied_groups,
)

__all__ = [
    "CompactResult", "Fold", "Form", "compact", "neuron_param_mask", "shrink",
    "slice_params", "tied_groups",
]  # fmt: skip
