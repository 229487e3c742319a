"""The papers' networks by name, each a function of the number of classes."""

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from choral import models

from .pyramidnet import pyramidnet
from .reference_networks import cnn_lstm


def small_cnn(classes: int, width: int = 16, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return three convolutions with stride 2 and BatchNorm: what minutes on one core can train."""
    widths = (3, width, 2 * width, 4 * width)
    layers = [
        part
        for inputs, outputs in pairwise(widths)
        for part in (
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            activation(),
        )
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "small_cnn": small_cnn,
    "small_cnn_silu": lambda classes: small_cnn(classes, activation=nn.SiLU),
    "resnet8_narrow": lambda classes: models.resnet_cifar(8, width=8, classes=classes),
    "resnet8_narrow_silu": lambda classes: models.resnet_cifar(8, width=8, classes=classes, activation="silu"),
    "small_cnn_double": lambda classes: small_cnn(classes, width=32),
    "lenet_s": lambda classes: models.lenet("S", classes=classes),
    "lenet_m": lambda classes: models.lenet("M", classes=classes),
    "lenet_l": lambda classes: models.lenet("L", classes=classes),
    "resnet20_narrow_silu": lambda classes: models.resnet_cifar(20, width=8, classes=classes, activation="silu"),
    "resnet20_narrow": lambda classes: models.resnet_cifar(20, width=8, classes=classes),
    "resnet20": lambda classes: models.resnet_cifar(20, classes=classes),
    "resnet32": lambda classes: models.resnet_cifar(32, classes=classes),
    "resnet32_silu": lambda classes: models.resnet_cifar(32, classes=classes, activation="silu"),
    "resnet56": lambda classes: models.resnet_cifar(56, classes=classes),
    "resnet56_silu": lambda classes: models.resnet_cifar(56, classes=classes, activation="silu"),
    "resnet18": lambda classes: models.resnet18(classes=classes, stem="cifar"),
    "resnet18_quarter": lambda classes: models.resnet18(classes=classes, stem="cifar", width=16),
    "resnet18_half": lambda classes: models.resnet18(classes=classes, stem="cifar", width=32),
    "resnet18_double": lambda classes: models.resnet18(classes=classes, stem="cifar", width=128),
    "resnet50": lambda classes: models.resnet50(classes=classes, stem="cifar"),
    "resnext50": lambda classes: models.resnext50(classes=classes, stem="cifar"),
    "wide_resnet": lambda classes: models.wide_resnet(28, 10, classes=classes),
    "wide_resnet_dropout": lambda classes: models.wide_resnet(28, 10, classes=classes, dropout=0.3),
    "pyramidnet": lambda classes: pyramidnet(110, 270, classes=classes),
    "resnet20_frn": lambda classes: models.resnet20_frn(classes=classes),
    "words_mlp": lambda classes: models.mlp(200, classes, hidden=(10,)),
    "cnn_lstm": lambda classes: cnn_lstm(classes=classes),
}
