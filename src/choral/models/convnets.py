"""Plain convolutional networks: LeNet in four sizes, and the AlexNet and small CNN of the reference-posterior literature."""

from collections import OrderedDict
from itertools import pairwise
from typing import Literal

from torch import nn

from choral.base.errors import InputError
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
    if side < 16:
        raise InputError(f"side is {side}, of which two convolutions and poolings leave nothing; give 16 or more.")
    *convolutions, fc1, fc2 = _LENET_WIDTHS[size]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (inputs, outputs) in enumerate(pairwise((channels, *convolutions)), start=1):
        layers |= {f"conv{i}": nn.Conv2d(inputs, outputs, 5), f"relu{i}": nn.ReLU(), f"pool{i}": nn.MaxPool2d(2)}
        side = (side - 4) // 2
    layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(outputs * side**2, fc1), "relu3": nn.ReLU()}
    layers |= {"fc2": nn.Linear(fc1, fc2), "relu4": nn.ReLU(), "classifier": nn.Linear(fc2, classes)}
    return nn.Sequential(layers)


@zoo
def alexnet_cifar(*, classes: int = 10, channels: int = 3, side: int = 32) -> nn.Module:
    """Return a small AlexNet with Swish: five convolutions and three linear layers, no normalization, no dropout.

    Convolutions of 64, 128 (3x3, each with max-pooling), 256, 128 and 64 channels (2x2), linear layers of 256 and 256
    units. Every convolution keeps the side of its input.

    Args:
        classes: number of classes.
        channels: channels of the images.
        side: height and width of the images, at least 4.

    Shapes: (batch, channels, side, side) -> (batch, classes).

    Reference: Wilson et al., "Evaluating Approximate Inference in Bayesian Deep Learning", NeurIPS 2021 competition,
    PMLR 176; the network of its CIFAR-10 track.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = channels
    for i, (filters, kernel) in enumerate(((64, 3), (128, 3), (256, 2), (128, 2), (64, 2)), start=1):
        if kernel == 2:
            layers[f"pad{i}"] = nn.ZeroPad2d((0, 1, 0, 1))  # an even kernel needs one more row and column
        layers[f"conv{i}"] = nn.Conv2d(width, filters, kernel, padding=1 if kernel == 3 else 0)
        layers[f"swish{i}"] = nn.SiLU()
        if kernel == 3:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
        width = filters
    layers["flatten"] = nn.Flatten()
    width *= (side // 2 // 2) ** 2
    for i, units in enumerate((256, 256), start=1):
        layers[f"fc{i}"] = nn.Linear(width, units)
        layers[f"swish{i + 5}"] = nn.SiLU()
        width = units
    layers["classifier"] = nn.Linear(width, classes)
    return nn.Sequential(layers)


@zoo
def cnn28(*, classes: int = 7, channels: int = 3, side: int = 28) -> nn.Module:
    """Return a CNN of two convolutions for images of 28 pixels, such as DermaMNIST's.

    Convolutions of 16 and 32 channels (3x3), each with Swish and max-pooling, and a linear layer.

    Args:
        classes: number of classes.
        channels: channels of the images.
        side: height and width of the images, at least 4.

    Shapes: (batch, channels, side, side) -> (batch, classes).

    Reference: Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649, Table 3, which says two layers
    and no widths.

    >>> sum(p.numel() for p in cnn28().parameters())
    16071
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (inputs, outputs) in enumerate(pairwise((channels, 16, 32)), start=1):
        layers[f"conv{i}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers[f"swish{i}"] = nn.SiLU()
        layers[f"pool{i}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["classifier"] = nn.Linear(32 * (side // 2 // 2) ** 2, classes)
    return nn.Sequential(layers)
