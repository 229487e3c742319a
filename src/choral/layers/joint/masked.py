"""Layers whose members share all weights and differ by fixed binary masks over the output channels.

Reference: Durasov et al., "Masksembles for Uncertainty Estimation", CVPR 2021, arXiv:2012.08334.
"""

import torch
from torch import Tensor, nn

from choral.base.arguments import typed
from choral.base.errors import InputError
from choral.layers.joint.network import Foldable
from choral.layers.joint.weighted import WeightLayer, fold, unfold


def overlapping_masks(
    channels: int, members: int, *, scale: float = 2.0, generator: torch.Generator | None = None
) -> Tensor:
    """Return binary masks, one row for each member, with as many ones in every row and no column of zeros.

    Drawing m ones for each of M members among m * scale places uses m * scale * (1 - (1 - 1/scale)^M) of them in
    expectation; m is chosen so that this is the number of channels. A scale of 1 gives masks of ones (a plain network),
    a large one gives masks that hardly overlap (nearly independent networks of a fraction 1/M).

    Args:
        channels: number of columns.
        members: number of rows, M.
        scale: at least 1; how rarely two members use the same channel.
        generator: draws the masks; torch's own if None.

    Reference: Durasov et al., 2021, section 3.2.

    Differs from the paper: a channel no member uses is given to one of them, which gives up a channel used
    several times, instead of drawing masks until their number of channels fits.

    >>> overlapping_masks(12, 4, scale=2.0, generator=torch.Generator().manual_seed(0)).sum(1).tolist()
    [6.0, 6.0, 6.0, 6.0]
    """
    if scale < 1 or members < 1 or channels < 1:
        raise InputError(
            f"overlapping_masks: channels={channels}, members={members}, scale={scale}; give at least one channel and "
            "member and a scale of at least 1."
        )
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
    """A linear map or (transposed) convolution of which every member sees its own part of the output channels.

    Args:
        layer: the plain layer; its parameters become this layer's own.
        members: how many members.
        scale: see `overlapping_masks`.
        generator: see `overlapping_masks`.

    Shapes: (member * batch, ...) -> (member * batch, ...); (batch, ...) when the mask is one member's.

    >>> layer = MaskedLayer(nn.Linear(3, 8), members=2, scale=3.0)
    >>> int((layer(torch.ones(2, 3))[0] == 0).sum()) == int((layer.mask[0] == 0).sum())
    True
    """

    mask: Tensor

    @typed
    def __init__(self, layer: nn.Module, *, members: int, scale: float = 2.0, generator: torch.Generator | None = None):
        super().__init__(layer)
        self.members = members
        self.own = ("mask",)
        masks = overlapping_masks(self.outputs, members, scale=scale, generator=generator)
        self.register_buffer("mask", masks.to(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        """Return the masked outputs."""
        if self.mask.dim() == 1:
            return self.operate(x, *self._own())
        y = unfold(self.operate(x, self.weight, self.bias), self.members)
        return fold(y * self.over_channels(self.mask.unsqueeze(1), y))

    def _own(self) -> tuple[Tensor, Tensor | None]:
        weight = self.weight * self.over_outputs(self.mask)
        return weight, None if self.bias is None else self.bias * self.mask

    def plain(self) -> nn.Module:
        """Return the plain layer with zeros for channels out of the mask, when the mask is one member's."""
        return self.plain_layer(*self._own())

    def extra_repr(self) -> str:
        """Return the settings of the plain layer and the members."""
        return f"{super().extra_repr()}, members={self.members}"
