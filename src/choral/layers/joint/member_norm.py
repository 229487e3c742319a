"""BatchNorm for members folded into the batch axis: each member keeps its own statistics, scale and shift.

One BatchNorm over the folded batch would mix the members' statistics, so that one member's loss would move another.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from choral.base.errors import ConversionError
from choral.layers.joint.weighted import unfold

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


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
