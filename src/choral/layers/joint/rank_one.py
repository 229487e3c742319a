"""Layers whose members share one weight and own two vectors each: W_m = W * (r_m s_m^T), elementwise.

Reference: Wen et al., "BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning", 2020,
arXiv:2002.06715, equations 1 to 5 (where r multiplies the inputs and s the outputs).
"""

import torch
from torch import Tensor, nn

from choral.base.arguments import typed
from choral.base.errors import InputError
from choral.layers.joint.network import Foldable
from choral.layers.joint.weighted import WeightLayer, fold, unfold

STARTS = ("normal", "signs", "ones")


class RankOneLayer(WeightLayer, Foldable):
    """A linear map or (transposed) convolution shared by members that scale its outputs by r and its inputs by s.

    Args:
        layer: the plain layer; its parameters become this layer's own (the bias is repeated for every member).
        members: how many members, at least 1. A single member starts as the plain layer: r = s = 1.
        start: 'normal' draws r and s from N(1, spread^2), 'signs' from {-1, 1}; 'ones' leaves all at 1.
        spread: standard deviation of the normal start.
        generator: draws r and s; torch's own if None.

    Shapes: (member * batch, ...) -> (member * batch, ...); (batch, ...) when the tensors are one member's.

    >>> layer = RankOneLayer(nn.Linear(3, 2), members=4)
    >>> layer(torch.ones(4 * 5, 3)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([20, 2]), 34)
    """

    r: nn.Parameter
    s: nn.Parameter

    @typed
    def __init__(
        self,
        layer: nn.Module,
        *,
        members: int,
        start: str = "normal",
        spread: float = 0.5,
        generator: torch.Generator | None = None,
    ):
        super().__init__(layer)
        if members < 1 or spread < 0 or start not in STARTS:
            raise InputError(
                f"RankOneLayer: members={members}, start={start!r}, spread={spread}; give at least 1 member, a start of "
                f"{' or '.join(STARTS)} and a spread of at least 0."
            )
        self.members = members
        self.own = ("r", "s") if self.bias is None else ("r", "s", "bias")
        for name, size in (("r", self.outputs), ("s", self.inputs)):
            if members == 1 or start == "ones":
                vectors = torch.ones(members, size)
            elif start == "signs":
                vectors = torch.randint(2, (members, size), generator=generator) * 2.0 - 1.0
            else:
                vectors = 1 + spread * torch.randn(members, size, generator=generator)
            self.register_parameter(name, nn.Parameter(vectors.to(self.weight)))
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach().expand(members, -1).clone(), self.bias.requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        """Return every member's outputs for its part of the batch; of one member if the tensors are one member's."""
        if self.r.dim() == 1:
            rows = x.numel() // self.inputs
            if self.dims or rows * (self.inputs + self.outputs) > 2 * self.inputs * self.outputs:
                return self.operate(x, self._own_weight(), self.bias)
            return _scaled(self.operate(x * self.s, self.weight, None), self.r, self.bias)
        parts = unfold(x, self.members)
        x = parts if self.dims else parts.flatten(1, -2)  # (member, batch and further axes, input)
        y = unfold(self.operate(fold(x * self.over_channels(self._apart(self.s), x)), self.weight, None), self.members)
        bias = None if self.bias is None else self.over_channels(self._apart(self.bias), y)
        y = _scaled(y, self.over_channels(self._apart(self.r), y), bias)
        return fold(y if self.dims else y.unflatten(1, parts.shape[1:-1]))

    def _own_weight(self) -> Tensor:
        return self.weight * (self.over_outputs(self.r) * self.over_inputs(self.s))

    def _apart(self, factor: Tensor) -> Tensor:
        """Return (member, channel) as (member, 1, channel): the same for every example."""
        return factor.unsqueeze(1)

    def plain(self) -> nn.Module:
        """Return the plain layer, when the tensors are one member's."""
        return self.plain_layer(self._own_weight(), self.bias)

    def extra_repr(self) -> str:
        """Return the settings of the plain layer and the members."""
        return f"{super().extra_repr()}, members={self.members}"


class ScaledInputs(WeightLayer, Foldable):
    """A linear map or (transposed) convolution shared by members, bias included, each of which scales its inputs by s.

    Args:
        layer: the plain layer; its parameters become this layer's own.
        factors: s of each member (member, input).

    Shapes: as `RankOneLayer`.

    >>> layer = ScaledInputs(nn.Linear(3, 2, bias=False), torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]))
    >>> one, two = layer(torch.ones(2 * 1, 3))
    >>> torch.allclose(two, 2 * one)
    True
    """

    s: nn.Parameter

    def __init__(self, layer: nn.Module, factors: Tensor):
        super().__init__(layer)
        self.members, self.own = len(factors), ("s",)
        self.s = nn.Parameter(factors.to(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        """Return every member's outputs for its part of the batch; of one member if the factors are one member's."""
        if self.s.dim() == 1:
            return self.operate(x * self.over_channels(self.s, x), self.weight, self.bias)
        x = unfold(x, self.members)
        return self.operate(fold(x * self.over_channels(self.s.unsqueeze(1), x)), self.weight, self.bias)

    def plain(self) -> nn.Module:
        """Return the plain layer, when the factors are one member's."""
        return self.plain_layer(self.weight * self.over_inputs(self.s), self.bias)

    def extra_repr(self) -> str:
        """Return the settings of the plain layer and the members."""
        return f"{super().extra_repr()}, members={self.members}"


def _scaled(y: Tensor, factor: Tensor, shift: Tensor | None) -> Tensor:
    return y * factor if shift is None else torch.addcmul(shift, y, factor)
