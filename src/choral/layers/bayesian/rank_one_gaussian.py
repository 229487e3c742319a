"""Layers whose members share one weight and own Gaussian rank-one factors: W_m = W * (s_m r_m^T), elementwise.

Member m multiplies its inputs by r_m, applies the shared weight, and multiplies the outputs by s_m; r_m and s_m have
factorized Gaussian posteriors (`input_mean`, `input_rho`, `output_mean`, `output_rho`), drawn once for each member in
every forward pass. Means start at random signs, so that members start apart. The penalty that belongs to them is
`choral.objectives.kl.GaussianKL(prior_mean=1.0, prior_std=0.1)`.

Inputs and outputs hold all members folded into the batch axis, member by member: (member * batch, ...).

Reference: Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", 2020, arXiv:2005.07186.
"""

from abc import ABC
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from choral.base.errors import InputError
from choral.layers.bayesian.sampling import (
    RHO_START,
    Operation,
    add_posterior,
    describe,
    draw,
    fresh_weights,
    operation_of,
    read_arguments,
    twin_arguments,
)
from choral.layers.functional import own_kind


class RankOneGaussianLayer(nn.Module, ABC):
    """A linear map or convolution with shared weight and Gaussian rank-one factors; use its named kinds.

    Args:
        *arguments: those of the plain layer, by position or by name.
        members: how many members, at least 1. A single member's factors start at 1, so it starts as the plain layer.
        rho: as in `choral.layers.bayesian.sampling.SampledLayer`.
        generator: a generator for weight and signs; torch's own if None.
        device: where the parameters live.
        dtype: their type.
        **options: more arguments of the plain layer.

    Shapes: (member * batch, ...) -> (member * batch, ...).
    """

    plain_kind: ClassVar[type[nn.Module]]
    bias: nn.Parameter | None
    input_mean: nn.Parameter
    input_rho: nn.Parameter
    output_mean: nn.Parameter
    output_rho: nn.Parameter
    __getattr__ = read_arguments

    def __init__(
        self,
        *arguments: Any,
        members: int,
        rho: float = RHO_START,
        generator: torch.Generator | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ):
        super().__init__()
        if members < 1:
            raise InputError(f"members={members}, but there is at least 1 member.")
        self.members = members
        self.operation: Operation = operation_of(self.plain_kind(*arguments, **options, device="meta"))
        weight, bias = fresh_weights(self.operation, generator, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.repeat(members, 1)))
        for name, size in (("input", self.operation.inputs), ("output", self.operation.outputs)):
            signs = torch.randint(2, (members, size), generator=generator).to(weight) * 2 - 1
            add_posterior(self, name, signs if members > 1 else signs.abs(), rho)

    def forward(self, x: Tensor) -> Tensor:
        """Return the members' outputs under one draw of every member's factors."""
        x = self._by_member(x, draw(self.input_mean, self.input_rho))
        return self._by_member(self.operation(x, self.weight, None), draw(self.output_mean, self.output_rho), self.bias)

    def _by_member(self, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        """Return x * scale + shift with the member's own row of each, (member, feature or channel)."""
        # rows are repeated rather than x unfolded: twice as fast where channels come last
        axes = (x.shape[0],) + (1,) * (x.dim() - 2 - self.operation.dims) + (-1,) + (1,) * self.operation.dims
        batch = x.shape[0] // self.members
        each = [t.unsqueeze(1).expand(-1, batch, -1).reshape(axes) for t in (scale, shift) if t is not None]
        return x * each[0] if shift is None else torch.addcmul(each[1], x, each[0])

    def plain(self, index: int) -> nn.Module:
        """Return member `index` as a plain layer, at the means of its factors."""
        outputs, inputs = self.output_mean[index], self.input_mean[index]
        groups = self.operation.arguments.get("groups", 1)
        # each output channel reads the inputs of its own group only
        rows = inputs.view(groups, -1).repeat_interleave(self.operation.outputs // groups, 0)  # (out, in of its group)
        factor = (outputs.unsqueeze(1) * rows).view(self.weight.shape[:2] + (1,) * self.operation.dims)
        return self.operation.plain(self.weight * factor, None if self.bias is None else self.bias[index])

    def extra_repr(self) -> str:
        """Return the arguments of the plain layer and the members."""
        return f"{describe(self.operation)}, members={self.members}"


class RankOneGaussianLinear(RankOneGaussianLayer):
    """`nn.Linear` shared by members with Gaussian rank-one factors.

    >>> layer = RankOneGaussianLinear(3, 2, members=4)
    >>> layer(torch.ones(4 * 5, 3)).shape
    torch.Size([20, 2])
    """

    plain_kind = nn.Linear


class RankOneGaussianConv1d(RankOneGaussianLayer):
    """`nn.Conv1d` shared by members with Gaussian rank-one factors."""

    plain_kind = nn.Conv1d


class RankOneGaussianConv2d(RankOneGaussianLayer):
    """`nn.Conv2d` shared by members with Gaussian rank-one factors."""

    plain_kind = nn.Conv2d


class RankOneGaussianConv3d(RankOneGaussianLayer):
    """`nn.Conv3d` shared by members with Gaussian rank-one factors."""

    plain_kind = nn.Conv3d


_KINDS: dict[type[nn.Module], type[RankOneGaussianLayer]] = {
    kind.plain_kind: kind
    for kind in (RankOneGaussianLinear, RankOneGaussianConv1d, RankOneGaussianConv2d, RankOneGaussianConv3d)
}


def rank_one_gaussian_twin(
    layer: nn.Module, *, members: int, rho: float = RHO_START, generator: torch.Generator | None = None
) -> RankOneGaussianLayer | None:
    """Return the rank-one layer that stands for a plain linear map or convolution, or None for anything else.

    The shared weight and every member's bias are the plain layer's own; only the factors are new.
    """
    kind = own_kind(layer, tuple(_KINDS))
    if kind is None:
        return None
    twin = _KINDS[kind](**twin_arguments(layer), members=members, rho=rho, generator=generator)
    with torch.no_grad():
        twin.weight.copy_(layer.get_parameter("weight"))
        if twin.bias is not None:
            twin.bias.copy_(layer.get_parameter("bias"))
    return twin
