"""A workaround for strided 1x1 convolutions of few channels.

oneDNN's gradient of such a convolution's weight writes beyond its memory when images are in channels-last format (uxlfoundation/oneDNN,
issue 6035). Subsampling the pixels first and convolving them with a stride of 1 is the same map and avoids the bug.
"""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

NARROW = 16
"""From this many input channels on, oneDNN takes a way without the fault."""


def faulty(kernel: tuple[int, ...], stride: tuple[int, ...], groups: int, channels: int) -> bool:
    """Return whether oneDNN computes a convolution wrongly.

    >>> faulty((1, 1), (2, 2), 1, 8), faulty((1, 1), (2, 2), 1, 16), faulty((3, 3), (2, 2), 1, 8)
    (True, False, False)
    """
    return len(kernel) == 2 and set(kernel) == {1} and set(stride) != {1} and groups == 1 and channels < NARROW


def of_layer(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution of a layer's settings with these weights."""
    if not faulty(layer.kernel_size, layer.stride, layer.groups, weight.shape[1]):
        return layer._conv_forward(x, weight, bias)
    if layer.padding != "valid" and set(layer.padding) != {0}:
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    return F.conv2d(x[..., :: layer.stride[0], :: layer.stride[1]], weight, bias)


def guard(network: nn.Module) -> None:
    """Apply the workaround to the affected convolutions of a network, in place."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d and faulty(layer.kernel_size, layer.stride, layer.groups, layer.weight.shape[1]):
            layer.forward = partial(_forward, layer)  # type: ignore[method-assign]  # the layer stays what it is to everything else


def unguard(network: nn.Module) -> nn.Module:
    """Return a network with torch's own convolutions, for use outside of choral."""
    for layer in network.modules():
        given = layer.__dict__.get("forward")
        if isinstance(given, partial) and given.func is _forward:
            del layer.__dict__["forward"]
    return network


def _forward(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return of_layer(layer, x, layer.weight, layer.bias)
