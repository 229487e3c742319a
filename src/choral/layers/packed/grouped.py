"""A linear map whose inputs and outputs are split into groups that do not see each other."""

import torch
from torch import Tensor, nn

from choral.base.errors import InputError
from choral.base.fitting import typed


class GroupedLinear(nn.Module):
    """A block-diagonal linear map: group g of the outputs reads group g of the inputs only.

    Args:
        in_features: inputs, a multiple of groups.
        out_features: outputs, a multiple of groups.
        groups: number of blocks on the diagonal.
        bias: whether to add a bias.

    Shapes: (..., in_features) -> (..., out_features); the weight is (out_features, in_features / groups).

    >>> layer = GroupedLinear(4, 2, groups=2, bias=False)
    >>> layer(torch.tensor([1.0, 1.0, 0.0, 0.0]))[1].item()
    0.0
    """

    bias: nn.Parameter | None

    @typed
    def __init__(self, in_features: int, out_features: int, *, groups: int, bias: bool = True):
        super().__init__()
        if min(groups, in_features, out_features) < 1 or in_features % groups or out_features % groups:
            raise InputError(
                f"GroupedLinear: groups={groups} does not divide in_features={in_features} and out_features={out_features}."
            )
        self.in_features, self.out_features, self.groups = in_features, out_features, groups
        self.weight = nn.Parameter(torch.empty(out_features, in_features // groups))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_features)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly within one over the root of the inputs each output reads."""
        bound = (self.in_features // self.groups) ** -0.5
        for p in self.parameters():
            nn.init.uniform_(p, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all groups side by side."""
        blocks = self.weight.unflatten(0, (self.groups, -1))  # (group, output of the group, input of the group)
        y = torch.einsum("...gi,goi->...go", x.unflatten(-1, (self.groups, -1)), blocks).flatten(-2)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """Show the arguments."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, groups={self.groups}, bias={bias}"
