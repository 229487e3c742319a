"""BatchNorm for members folded into the batch axis: each member keeps its own statistics, scale and shift.

One BatchNorm over the folded batch would mix the members' statistics, so that one member's loss would move another;
here channel c of member m is channel (m, c) of a wider BatchNorm.
"""

import torch
from torch import Tensor, nn

from choral.errors import ConversionError

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class MemberBatchNorm(nn.Module):
    """A BatchNorm for each member, as one wider BatchNorm.

    Args:
        norm: the plain `nn.BatchNorm1d`, `2d` or `3d` every member starts from; not changed.
        members: how many members are folded into the batch axis.

    Shapes: (member * batch, channel, ...) -> the same.

    >>> norm = MemberBatchNorm(nn.BatchNorm1d(3), members=2)
    >>> norm(torch.randn(2 * 5, 3)).shape, norm.norm.num_features
    (torch.Size([10, 3]), 6)
    """

    def __init__(self, norm: nn.Module, *, members: int):
        super().__init__()
        if not isinstance(norm, BATCH_NORMS):
            raise ConversionError(f"MemberBatchNorm was given {norm}; it takes nn.BatchNorm1d, 2d or 3d.")
        self.members = members
        self.norm = _resized(norm, norm.num_features * members)
        for name, value in self.norm.state_dict(keep_vars=True).items():
            own = norm.state_dict()[name]
            value.data.copy_(own.repeat(members) if own.dim() else own)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each member's part of the batch by itself."""
        x = x.unflatten(0, (self.members, -1)).transpose(0, 1)  # (batch, member, channel, ...)
        x = self.norm(x.flatten(1, 2)).unflatten(1, (self.members, -1))
        return x.transpose(0, 1).flatten(0, 1)

    def plain(self, index: int) -> nn.Module:
        """Return member `index` as a plain BatchNorm."""
        channels = self.norm.num_features // self.members
        norm = _resized(self.norm, channels)
        for name, value in norm.state_dict(keep_vars=True).items():
            own = self.norm.state_dict()[name]
            value.data.copy_(own[index * channels : (index + 1) * channels] if own.dim() else own)
        return norm


def _resized(norm: BatchNorm, channels: int) -> BatchNorm:
    """Return a BatchNorm of the same kind and settings for another number of channels."""
    like = next((t for t in norm.state_dict().values() if t.is_floating_point()), torch.empty(0))
    return type(norm)(
        channels,
        eps=norm.eps,
        momentum=norm.momentum,
        affine=norm.affine,
        track_running_stats=norm.track_running_stats,
        device=like.device,
        dtype=like.dtype,
    )
