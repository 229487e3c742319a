"""Plain convolutional networks: LeNet in four sizes."""

from collections import OrderedDict
from itertools import pairwise
from typing import Literal

from torch import nn

from choral.models.spec import zoo

_LENET_WIDTHS = {
    "5": (6, 16, 120, 84),
    "S": (16, 32, 256, 128),
    "M": (32, 64, 512, 256),
    "L": (64, 128, 1024, 512),
}


@zoo
def lenet(
    size: Literal["5", "S", "M", "L"] = "S", *, classes: int = 10, channels: int = 3, side: int = 32
) -> nn.Module:
    """Return a LeNet: two 5x5 convolutions without padding, each with max-pooling, and three linear layers.

    Args:
        size: widths of conv1, conv2, fc1, fc2: "5" (6, 16, 120, 84), "S" (16, 32, 256, 128), "M" twice and "L" four
            times those of S.
        classes: number of classes.
        channels: channels of the images.
        side: height and width of the images, at least 16.

    Shapes: (batch, channels, side, side) -> (batch, classes).

    Reference: LeCun et al., "Backpropagation Applied to Handwritten Zip Code Recognition", 1989; sizes S, M, L:
    Whitaker & Whitley, "Prune and Tune Ensembles", AAAI 2022, arXiv:2202.11782.

    >>> sum(p.numel() for p in lenet("S").parameters())
    253290
    """
    *convolutions, fc1, fc2 = _LENET_WIDTHS[size]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (inputs, outputs) in enumerate(pairwise((channels, *convolutions)), start=1):
        layers |= {f"conv{i}": nn.Conv2d(inputs, outputs, 5), f"relu{i}": nn.ReLU(), f"pool{i}": nn.MaxPool2d(2)}
        side = (side - 4) // 2
    layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(outputs * side**2, fc1), "relu3": nn.ReLU()}
    layers |= {"fc2": nn.Linear(fc1, fc2), "relu4": nn.ReLU(), "classifier": nn.Linear(fc2, classes)}
    return nn.Sequential(layers)
