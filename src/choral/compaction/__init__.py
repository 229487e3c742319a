"""Compaction: networks with removed neurons become smaller networks with the same outputs.

One forward pass on an example is traced (`tracer`), rule by rule (`rules`);
what can go follows from it (`solve`); the result is described by a form (`form`), built and checked (`compact`).

Why not Torch-Pruning's dependency graph: it answers another question, which tensors change together when channels are
cut, and cuts them whatever they carry. Asked to drop channels with zero weights, it also drops the live channels they
are summed with, drops the constant that BatchNorm still emits for them, lets LayerNorm take its statistics over
fewer features, and passes functions it does not know (a softmax) as elementwise: each changes the outputs.
Where none of this plays a part both give the same network, which the tests check.
"""

from choral.compaction.compact import CompactResult, compact
from choral.compaction.form import Form, shrink, slice_params
from choral.compaction.solve import Fold, neuron_param_mask, tied_groups

__all__ = [
    "CompactResult", "Fold", "Form", "compact", "neuron_param_mask", "shrink",
    "slice_params", "tied_groups",
]  # fmt: skip
