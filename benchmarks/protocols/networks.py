"""The papers' networks by name, each a function of the number of classes."""

from collections.abc import Callable

from torch import nn

from choral import models

from .pyramidnet import pyramidnet

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "lenet_s": lambda classes: models.lenet("S", classes=classes),
    "lenet_m": lambda classes: models.lenet("M", classes=classes),
    "lenet_l": lambda classes: models.lenet("L", classes=classes),
    "resnet8_narrow": lambda classes: models.resnet_cifar(8, width=8, classes=classes),
    "resnet8_narrow_silu": lambda classes: models.resnet_cifar(8, width=8, classes=classes, activation="silu"),
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
    "cnn_lstm": lambda classes: models.cnn_lstm(classes=classes),
}
