"""Layers that compute their weight in every pass, and batched matrix products over members.

A `WeightLayer` takes over the parameters of a plain layer under their own names. It says which axis of the weight
belongs to the inputs and which to the outputs, groups and transposed convolutions included, so that a factor for each
channel can be multiplied into the weight instead of into the activations.
"""

from abc import ABC

import torch
from torch import Tensor, nn

from choral.base.draws import now
from choral.base.errors import ConversionError
from choral.layers.functional import TRANSPOSED, WEIGHTED, emptied, filled, operate, own_kind, read_through, spatial


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b for every member.

    Shapes: x (member, row, input), weight (member, output, input), bias (member, output) -> (member, row, output).

    >>> batched_linear(torch.ones(2, 1, 3), torch.ones(2, 4, 3), None)[0, 0, 0].item()
    3.0
    """
    y = torch.bmm(x, weight.mT)
    return y if bias is None else y + bias.unsqueeze(1)


class WeightLayer(nn.Module, ABC):
    """A linear map or (transposed) convolution whose weight and bias are computed in every pass.

    Args:
        layer: the plain layer; its settings are copied and its parameters become this layer's own.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Module):
        super().__init__()
        kind = own_kind(layer, WEIGHTED)
        if kind is None:
            raise ConversionError(
                f"{type(self).__name__} was given {layer}; it takes torch's own nn.Linear, nn.Conv1d-3d and "
                "nn.ConvTranspose1d-3d, without parametrizations."
            )
        self._plain = (emptied(layer),)  # in a tuple, so that it is no submodule
        self.transposed = kind in TRANSPOSED
        self.dims = spatial(layer)
        self.groups = int(getattr(layer, "groups", 1))
        sizes = ("in_features", "out_features") if kind is nn.Linear else ("in_channels", "out_channels")
        self.inputs, self.outputs = (int(getattr(layer, size)) for size in sizes)
        self.weight = layer.get_parameter("weight")
        self.register_parameter("bias", layer._parameters["bias"])

    __getattr__ = read_through

    def operate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return what the plain layer returns under these weights."""
        return operate(self._plain[0], x, {"weight": weight, "bias": bias}, training=self.training)

    def plain_layer(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a plain layer of the same settings with these weights."""
        return filled(self._plain[0], {"weight": weight, "bias": bias})

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

    def extra_repr(self) -> str:
        """Return the settings of the plain layer."""
        return self._plain[0].extra_repr()


def fold(x: Tensor) -> Tensor:
    """Return (member, batch, ...) as (member * batch, ...)."""
    return x.flatten(0, 1)


class CutError(ConversionError):
    """A layer was given a part of a batch that members are folded into."""


def unfold(x: Tensor, members: int) -> Tensor:
    """Return (member * batch, ...) as (member, batch, ...); CutError if forward code took a part of the whole.

    >>> import torch
    >>> unfold(torch.zeros(6, 2), 3).shape
    torch.Size([3, 2, 2])
    """
    rows = now().rows or 1
    if x.shape[0] % (members * rows):
        raise CutError(
            f"a layer for {members} members was given {x.shape[0]} rows; its input is (member * batch, ...), here {members} * {rows} rows or a multiple: "
            "forward code takes a part of the batch, chunks of it, say, which belongs to some members only; use kernel='loop' where the method "
            "has it, or another method."
        )
    return x.unflatten(0, (members, -1))
