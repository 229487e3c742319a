"""Normalization layers for members that share other weights: statistics of its own for every member.

A normalization that keeps running statistics would mix members that pass through it together, and one member's loss would
move another. Statistics are therefore always kept by member; scale and shift are shared, or each member's own.
"""

import copy

from torch import nn

from choral.layers.functional import BATCH_NORMS, INSTANCE_NORMS, NORMS, own_kind
from choral.layers.packed.layer import PackedLayer

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def member_norm(layer: nn.Module, *, members: int, own_affine: bool = False) -> PackedLayer | None:
    """Return a normalization layer with statistics by member; None for layers that need none.

    Args:
        layer: any layer; not changed.
        members: how many members share the network.
        own_affine: whether every member gets a scale and shift of its own.

    >>> norm = member_norm(nn.BatchNorm1d(3), members=4)
    >>> norm.running_mean.shape, norm.weight.shape
    (torch.Size([4, 3]), torch.Size([3]))
    """
    if own_kind(layer, NORMS) is None:
        return None
    tracked = isinstance(layer, (*BATCH_NORMS, *INSTANCE_NORMS)) and layer.track_running_stats
    if not tracked and not (own_affine and layer._parameters.get("weight") is not None):
        return None
    layer = copy.deepcopy(layer)
    for name, tensor in {**layer._parameters, **layer._buffers}.items():
        if tensor is not None and (own_affine or name in STATISTICS):
            stack = tensor.detach().expand(members, *tensor.shape).clone()
            setattr(layer, name, nn.Parameter(stack, tensor.requires_grad) if name in layer._parameters else stack)
    return PackedLayer(layer, members=members, shared=() if own_affine else ("weight", "bias"))
