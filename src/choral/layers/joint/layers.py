"""Layers of members that share weights: masked ones, rank-one ones, and their common parts.

A `Foldable` layer reads members folded into the batch. A `WeightLayer` takes over the parameters of a plain layer under their names, and
knows which axis of the weight belongs to the inputs and which to the outputs, groups and transposed convolutions included, so that a
factor for each channel can multiply the weight instead of the activations.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from choral.base.draws import now
from choral.base.errors import ConversionError, InputError
from choral.base.values import typed
from choral.layers.functional import TRANSPOSED, WEIGHTED, Converted, Twin, filled, spatial


class Foldable(Twin):
    """A layer that reads a folded batch (member * batch, ...) whenever its tensors have the member axis.

    With tensors of one member it is the plain layer, which `plain` returns. `own` names its tensors with the member axis.
    """

    own: tuple[str, ...] = ()
    dims: int = 0  # spatial axes of a convolution


def fold(x: Tensor) -> Tensor:
    """Return (member, batch, ...) as (member * batch, ...)."""
    return x.flatten(0, 1)


class CutError(ConversionError):
    """A layer got a part of a batch that members are folded into."""


def unfold(x: Tensor, members: int) -> Tensor:
    """Return (member * batch, ...) as (member, batch, ...); CutError if forward code took a part of the whole.

    >>> unfold(torch.zeros(6, 2), 3).shape
    torch.Size([3, 2, 2])
    """
    rows = now().rows or 1
    if x.shape[0] % (members * rows):
        raise CutError(
            f"a layer for {members} members was given {x.shape[0]} rows, not {members} * {rows}: forward code takes a part of the batch; use kernel='loop'."
        )
    return x.unflatten(0, (members, -1))


class WeightLayer(Converted):
    """A linear map or (transposed) convolution whose weight and bias are computed in every pass.

    Args:
        layer: the plain layer; its settings are copied and its parameters taken over.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Module):
        super().__init__(layer, WEIGHTED)
        self.transposed = isinstance(layer, TRANSPOSED)
        self.dims = spatial(layer)
        self.groups = int(getattr(layer, "groups", 1))
        sizes = ("in_channels", "out_channels") if self.dims else ("in_features", "out_features")
        self.inputs, self.outputs = (int(getattr(layer, size)) for size in sizes)
        self.take_over(layer)

    def operate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output of the plain layer with these weights."""
        return self.run(x, {"weight": weight, "bias": bias})

    def plain_layer(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a plain layer of the same settings with these weights."""
        return filled(self.settings, {"weight": weight, "bias": bias})

    def plain(self) -> nn.Module:
        return self.plain_layer(self.weight, self.bias)

    def over_outputs(self, factor: Tensor) -> Tensor:
        """Return a factor (output,) in a shape that multiplies the weight."""
        if self.transposed:  # the weight is (input, output of the group, ...)
            rows = factor.view(self.groups, 1, -1).expand(-1, self.inputs // self.groups, -1)
            return rows.reshape(self.inputs, -1, *(1,) * self.dims)
        return factor.view(-1, 1, *(1,) * self.dims)

    def over_inputs(self, factor: Tensor) -> Tensor:
        """Return a factor (input,) in a shape that multiplies the weight."""
        if self.transposed:
            return factor.view(-1, 1, *(1,) * self.dims)
        rows = factor.view(self.groups, 1, -1).expand(-1, self.outputs // self.groups, -1)
        return rows.reshape(self.outputs, -1, *(1,) * self.dims)  # (output, input of the group, ...)

    def over_channels(self, factor: Tensor, x: Tensor) -> Tensor:
        """Return a factor (..., channel) in a shape that multiplies x, whose leading axes are the factor's."""
        lead = factor.shape[:-1]
        return factor.view(*lead, *(1,) * (x.dim() - len(lead) - 1 - self.dims), -1, *(1,) * self.dims)

    def over_rows(self, factor: Tensor, x: Tensor) -> Tensor:
        """Return a factor (member, channel), the same for every example, in a shape that multiplies x (member, batch, ...)."""
        return self.over_channels(factor.unsqueeze(1), x)


def overlapping_masks(
    channels: int, members: int, *, scale: float = 2.0, generator: torch.Generator | None = None
) -> Tensor:
    """Return binary masks, one row for each member, with equally many ones in every row and no column of zeros.

    Drawing m ones for each of M members among m * scale places uses m * scale * (1 - (1 - 1/scale)^M) of them in
    expectation; m is chosen so that this is the number of channels. A scale of 1 gives masks of ones (a plain network),
    a large one gives masks that hardly overlap (nearly independent networks of a fraction 1/M).

    Args:
        channels: number of columns.
        members: number of rows, M.
        scale: at least 1; the larger, the fewer channels two members share.
        generator: draws the masks; torch's own if None.

    Reference: Durasov et al., "Masksembles for Uncertainty Estimation", CVPR 2021, arXiv:2012.08334, section 3.2.

    Differs from the paper: a channel that no member uses is given to one of them, which gives up a channel used several times, instead of
    drawing masks until their number of channels fits.

    >>> overlapping_masks(12, 4, scale=2.0, generator=torch.Generator().manual_seed(0)).sum(1).tolist()
    [6.0, 6.0, 6.0, 6.0]
    """
    if scale < 1 or channels < 1:
        raise InputError(f"scale is {scale} and channels {channels}; give at least 1 of both.")
    used = scale * (1 - (1 - 1 / scale) ** members)
    ones = min(channels, max(-(-channels // members), round(channels / used)))
    order = torch.rand(members, channels, generator=generator).argsort(1)
    masks = torch.zeros(members, channels).scatter_(1, order[:, :ones], 1.0)
    for channel in (masks.sum(0) == 0).nonzero().flatten().tolist():
        spare = masks * (masks.sum(0) > 1)  # ones that can be given up without leaving a channel unused
        row = int(spare.sum(1).argmax())
        choices = spare[row].nonzero().flatten()
        given = choices[torch.randint(len(choices), (), generator=generator)]
        masks[row, given], masks[row, channel] = 0.0, 1.0
    return masks


class MaskedLayer(WeightLayer, Foldable):
    """A linear map or (transposed) convolution with a mask of the output channels for each member.

    Args:
        layer: the plain layer, whose parameters are taken over.
        members: number of members.
        scale: see `overlapping_masks`.
        generator: see `overlapping_masks`.

    Shapes: (member * batch, ...) -> (member * batch, ...); (batch, ...) with the mask of one member.

    >>> layer = MaskedLayer(nn.Linear(3, 8), members=2, scale=3.0)
    >>> int((layer(torch.ones(2, 3))[0] == 0).sum()) == int((layer.mask[0] == 0).sum())
    True
    """

    mask: Tensor
    shown = ("members",)

    @typed
    def __init__(self, layer: nn.Module, *, members: int, scale: float = 2.0, generator: torch.Generator | None = None):
        super().__init__(layer)
        self.members = members
        self.own = ("mask",)
        masks = overlapping_masks(self.outputs, members, scale=scale, generator=generator)
        self.register_buffer("mask", masks.to(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        if self.mask.dim() == 1:
            return self.operate(x, *self._masked())
        y = unfold(self.operate(x, self.weight, self.bias), self.members)
        return fold(y * self.over_rows(self.mask, y))

    def _masked(self) -> tuple[Tensor, Tensor | None]:
        weight = self.weight * self.over_outputs(self.mask)
        return weight, None if self.bias is None else self.bias * self.mask

    def plain(self) -> nn.Module:
        """Return the plain layer with zeros for channels out of the mask, when the mask is one member's."""
        return self.plain_layer(*self._masked())


class RankOneLayer(WeightLayer, Foldable):
    """A linear map or (transposed) convolution shared by members that scale its outputs by r and its inputs by s.

    Member m has the weight W * (r_m s_m^T), elementwise.

    Args:
        layer: the plain layer, whose parameters are taken over (the bias is repeated for every member).
        members: number of members. A single member starts as the plain layer: r = s = 1.
        start: 'normal' draws r and s from N(1, spread^2), 'signs' from {-1, 1}; 'ones' leaves all at 1.
        spread: standard deviation of the normal start.
        generator: draws r and s; torch's own if None.

    Shapes: (member * batch, ...) -> (member * batch, ...); (batch, ...) with the tensors of one member.

    Reference: Wen et al., "BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning", 2020,
    arXiv:2002.06715, equations 1 to 5 (where r multiplies the inputs and s the outputs).

    >>> layer = RankOneLayer(nn.Linear(3, 2), members=4)
    >>> layer(torch.ones(4 * 5, 3)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([20, 2]), 34)
    """

    r: nn.Parameter
    s: nn.Parameter
    shown = ("members",)

    @typed
    def __init__(
        self,
        layer: nn.Module,
        *,
        members: int,
        start: Literal["normal", "signs", "ones"] = "normal",
        spread: float = 0.5,
        generator: torch.Generator | None = None,
    ):
        super().__init__(layer)
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
        y = unfold(self.operate(fold(x * self.over_rows(self.s, x)), self.weight, None), self.members)
        y = _scaled(y, self.over_rows(self.r, y), None if self.bias is None else self.over_rows(self.bias, y))
        return fold(y if self.dims else y.unflatten(1, parts.shape[1:-1]))

    def _own_weight(self) -> Tensor:
        return self.weight * (self.over_outputs(self.r) * self.over_inputs(self.s))

    def plain(self) -> nn.Module:
        return self.plain_layer(self._own_weight(), self.bias)


class ScaledInputs(WeightLayer, Foldable):
    """A linear map or (transposed) convolution shared by members, bias included, each of which scales its inputs by s.

    Args:
        layer: the plain layer, whose parameters are taken over.
        factors: s of each member (member, input).

    Shapes: as `RankOneLayer`.

    >>> layer = ScaledInputs(nn.Linear(3, 2, bias=False), torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]))
    >>> one, two = layer(torch.ones(2 * 1, 3))
    >>> torch.allclose(two, 2 * one)
    True
    """

    s: nn.Parameter
    shown = ("members",)

    def __init__(self, layer: nn.Module, factors: Tensor):
        super().__init__(layer)
        self.members, self.own = len(factors), ("s",)
        self.s = nn.Parameter(factors.to(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        if self.s.dim() == 1:
            return self.operate(x * self.over_channels(self.s, x), self.weight, self.bias)
        x = unfold(x, self.members)
        return self.operate(fold(x * self.over_rows(self.s, x)), self.weight, self.bias)

    def plain(self) -> nn.Module:
        return self.plain_layer(self.weight * self.over_inputs(self.s), self.bias)


def _scaled(y: Tensor, factor: Tensor, shift: Tensor | None) -> Tensor:
    return y * factor if shift is None else torch.addcmul(shift, y, factor)
