"""Normalization layers of members that share other weights: each member keeps its own statistics.

A normalization that keeps running statistics would mix members that pass through it together, and one member's loss would
move another. Statistics are therefore always kept by member; scale and shift are shared, or each member's own.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from choral.base.errors import ConversionError
from choral.layers.functional import BATCH_NORMS, INSTANCE_NORMS, NORMS, own_kind
from choral.layers.joint.weighted import unfold
from choral.layers.packed.layers import PackedLayer


class MemberBatchNorm(nn.Module):
    """A BatchNorm for each member.

    Args:
        norm: the plain `nn.BatchNorm1d`, `2d` or `3d` every member starts from; not changed.
        members: how many members are folded into the batch axis.

    Shapes: (member * batch, channel, ...) -> the same.

    >>> norm = MemberBatchNorm(nn.BatchNorm1d(3), members=2)
    >>> y = norm(torch.tensor([[0.0] * 3, [2.0] * 3, [7.0] * 3, [9.0] * 3]))
    >>> y[:, 0].round(decimals=3).tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """

    def __init__(self, norm: nn.Module, *, members: int):
        super().__init__()
        if not isinstance(norm, BATCH_NORMS):
            raise ConversionError(f"MemberBatchNorm was given {norm}; it takes nn.BatchNorm1d, 2d or 3d.")
        self.norms = nn.ModuleList(deepcopy(norm) for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each member's part of the batch by itself."""
        # one call for each member keeps the memory layout of x; a single wider BatchNorm would have to move the members
        return torch.cat([norm(part) for norm, part in zip(self.norms, unfold(x, len(self.norms)))])

    def plain(self, index: int) -> nn.Module:
        """Return member `index` as a plain BatchNorm."""
        return deepcopy(self.norms[index])


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
    layer = deepcopy(layer)
    for name, tensor in {**layer._parameters, **layer._buffers}.items():
        if tensor is not None and (own_affine or name in STATISTICS):
            stack = tensor.detach().expand(members, *tensor.shape).clone()
            setattr(layer, name, nn.Parameter(stack, tensor.requires_grad) if name in layer._parameters else stack)
    return PackedLayer(layer, members=members, shared=() if own_affine else ("weight", "bias"))
