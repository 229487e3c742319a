"""Activations by the names that builders of networks take."""

from collections.abc import Callable

from torch import nn

from choral.models.arguments import choice

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def activation_named(name: str) -> Callable[[], nn.Module]:
    """Return what makes the activation of a name: "relu", "tanh", "sigmoid", "elu", "gelu" or "silu".

    >>> activation_named("silu")()
    SiLU()
    """
    choice("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]
