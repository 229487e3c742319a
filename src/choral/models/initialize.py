"""Initializations that several families share; all draw from torch's global generator."""

from typing import Literal

from torch import nn


def he(network: nn.Module, *, fan: Literal["fan_in", "fan_out"] = "fan_out", linear: bool = False) -> None:
    """Draw the weights of every convolution from N(0, 2 / fan) and set all convolution and linear biases to zero.

    Args:
        network: the network to initialize, in place.
        fan: inputs ("fan_in") or outputs ("fan_out") of one unit.
        linear: draw the weights of linear layers in the same way instead of leaving them as they are.

    Reference: He et al., "Delving Deep into Rectifiers", 2015, arXiv:1502.01852, Eq. 10 (fan_in) and 14 (fan_out).
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            if linear or isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode=fan, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
