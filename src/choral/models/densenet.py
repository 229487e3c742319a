"""Densely connected networks; parameter names are torchvision's, so its trained weights load."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from choral.models.resnet import STEMS
from choral.models.spec import choice, count, he, rate, zoo


class DenseLayer(nn.Module):
    """BN, ReLU, 1x1 convolution, BN, ReLU, 3x3 convolution; the new maps are appended to the input."""

    def __init__(self, inputs: int, growth: int, dropout: float):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with `growth` channels more."""
        y = self.conv1(self.relu1(self.norm1(x)))
        y = self.conv2(self.relu2(self.norm2(y)))
        return torch.cat([x, self.dropout(y)], 1)


def _transition(inputs: int) -> nn.Sequential:
    """Halve the channels and the side."""
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(inputs),
            relu=nn.ReLU(),
            conv=nn.Conv2d(inputs, inputs // 2, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )


@zoo
def densenet121(
    *, classes: int = 1000, channels: int = 3, stem: str = "imagenet", growth: int = 32, dropout: float = 0.0
) -> nn.Module:
    """Return DenseNet-121: four dense blocks of 6, 12, 24 and 16 layers with halving transitions between them.

    Args:
        classes: number of classes.
        channels: channels of the images.
        stem: "imagenet" (7x7 convolution of stride 2 and max-pooling) or "cifar" (3x3 of stride 1, no pooling).
        growth: channels each layer adds, the paper's k; the stem has twice as many.
        dropout: rate on the new maps of each layer.

    Shapes: (batch, channels, height, width) -> (batch, classes); height and width at least 8 (cifar) or 32 (imagenet).

    Reference: Huang et al., "Densely Connected Convolutional Networks", 2017, arXiv:1608.06993, Table 1.
    """
    choice("stem", stem, STEMS)
    count("channels", channels)
    rate("dropout", dropout)
    width = 2 * count("growth", growth)
    large = stem == "imagenet"
    features: OrderedDict[str, nn.Module] = OrderedDict()
    if large:
        features["conv0"] = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    else:
        features["conv0"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    features["norm0"] = nn.BatchNorm2d(width)
    features["relu0"] = nn.ReLU()
    if large:
        features["pool0"] = nn.MaxPool2d(3, stride=2, padding=1)
    for i, length in enumerate((6, 12, 24, 16), start=1):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for j in range(1, length + 1):
            layers[f"denselayer{j}"] = DenseLayer(width, growth, dropout)
            width += growth
        features[f"denseblock{i}"] = nn.Sequential(layers)
        if i < 4:
            features[f"transition{i}"] = _transition(width)
            width //= 2
    features["norm5"] = nn.BatchNorm2d(width)
    network = nn.Sequential(
        OrderedDict(
            features=nn.Sequential(features),
            relu=nn.ReLU(),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Linear(width, count("classes", classes)),
        )
    )
    he(network, fan="fan_in")
    return network
