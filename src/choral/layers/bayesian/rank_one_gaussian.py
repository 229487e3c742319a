"""Layers whose members share one weight and have Gaussian rank-one factors: W_m = W * (s_m r_m^T), elementwise.

Member m multiplies its inputs by r_m, applies the shared weight, and multiplies the outputs by s_m. r_m and s_m have factorized Gaussian
posteriors (`input_mean`, `input_rho`, `output_mean`, `output_rho`), drawn for each member in every forward pass. Means start at random
signs, so that members differ. The penalty is `choral.objectives.kl.GaussianKL(prior_mean=1.0, prior_std=0.1)`.

Inputs and outputs have all members folded into the batch axis: (member * batch, ...).

Reference: Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", 2020, arXiv:2005.07186.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from choral.base.values import typed
from choral.layers.bayesian.sampling import RHO_START, add_posterior, draw, fresh_weight
from choral.layers.joint.layers import WeightLayer, unfold


class RankOneGaussianLayer(WeightLayer):
    """A linear map or convolution with shared weight and Gaussian rank-one factors.

    Args:
        layer: the plain layer; its weight is taken over, and every member starts with its bias.
        members: number of members. A single member's factors start at 1, so it starts as the plain layer.
        rho: as in `choral.layers.bayesian.sampling.SampledLayer`.
        generator: a generator for the signs; torch's own if None.

    Shapes: (member * batch, ...) -> (member * batch, ...).

    >>> layer = RankOneGaussianLayer(nn.Linear(3, 2), members=4)
    >>> layer(torch.ones(4 * 5, 3)).shape
    torch.Size([20, 2])
    """

    shown = ("members",)
    input_mean: nn.Parameter
    input_rho: nn.Parameter
    output_mean: nn.Parameter
    output_rho: nn.Parameter

    @typed
    def __init__(
        self, layer: nn.Module, *, members: int, rho: float = RHO_START, generator: torch.Generator | None = None
    ):
        super().__init__(layer)
        self.members = members
        self.bias = None if self.bias is None else nn.Parameter(self.bias.detach().repeat(members, 1))
        fresh_weight(self.weight, generator)  # the signs of a seed come after as many draws as the weight has numbers
        for name, count in (("input", self.inputs), ("output", self.outputs)):
            signs = torch.randint(2, (members, count), generator=generator).to(self.weight) * 2 - 1
            add_posterior(self, name, signs if members > 1 else signs.abs(), rho)

    def forward(self, x: Tensor) -> Tensor:
        """Return the members' outputs under one draw of every member's factors."""
        x = self._by_member(x, draw(self.input_mean, self.input_rho))
        return self._by_member(self.operate(x, self.weight, None), draw(self.output_mean, self.output_rho), self.bias)

    def _by_member(self, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        """Return x * scale + shift with the member's own row of each, (member, feature or channel)."""
        # rows are repeated rather than x unfolded: twice as fast where channels come last
        axes = (x.shape[0],) + (1,) * (x.dim() - 2 - self.dims) + (-1,) + (1,) * self.dims
        batch = x.shape[0] // self.members
        each = [t.unsqueeze(1).expand(-1, batch, -1).reshape(axes) for t in (scale, shift) if t is not None]
        return x * each[0] if shift is None else torch.addcmul(each[1], x, each[0])

    def plain(self, index: int = 0) -> nn.Module:
        """Return member `index` as a plain layer, at the means of its factors."""
        factor = self.over_outputs(self.output_mean[index]) * self.over_inputs(self.input_mean[index])
        return self.plain_layer(self.weight * factor, None if self.bias is None else self.bias[index].clone())


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
        self.norms = nn.ModuleList(deepcopy(norm) for _ in range(members))

    def forward(self, x: Tensor) -> Tensor:
        # one call for each member keeps the memory layout of x; a single wider BatchNorm would have to move the members
        return torch.cat([norm(part) for norm, part in zip(self.norms, unfold(x, len(self.norms)))])

    def plain(self, index: int) -> nn.Module:
        """Return member `index` as a plain BatchNorm."""
        return deepcopy(self.norms[index])
