"""MLPs for tables and small images."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from choral.models.spec import ACTIVATIONS, Activation, zoo

_NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


@zoo
def mlp(
    inputs: int,
    outputs: int,
    *,
    hidden: Sequence[int] = (50,),
    activation: Activation = "relu",
    norm: Literal["batch", "layer", None] = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Return a multilayer perceptron (MLP) that flattens its inputs first.

    Args:
        inputs: number of features, the product of all axes after the batch.
        outputs: number of classes or targets.
        hidden: units of each hidden layer; () gives a linear model.
        activation: "relu", "tanh", "sigmoid", "elu", "gelu" or "silu".
        norm: "batch" or "layer" puts this normalization before the activation of every hidden layer.
        dropout: rate after the activation of every hidden layer.

    Shapes: (batch, ...) -> (batch, outputs).

    >>> sum(p.numel() for p in mlp(8, 1).parameters())
    501
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = add_hidden(layers, inputs, hidden, ACTIVATIONS[activation], norm=norm and _NORMS[norm], dropout=dropout)
    layers["output"] = nn.Linear(width, outputs)
    return nn.Sequential(layers)


def add_hidden(
    layers: OrderedDict[str, nn.Module],
    width: int,
    hidden: Sequence[int],
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    norm: Callable[[int], nn.Module] | None = None,
    dropout: float = 0.0,
) -> int:
    """Append hidden layers after `width` units, numbered from 1; return the width of the last."""
    for i, units in enumerate(hidden, start=1):
        layers[f"linear{i}"] = nn.Linear(width, units)
        if norm is not None:
            layers[f"norm{i}"] = norm(units)
        layers[f"activation{i}"] = activation()
        if dropout:
            layers[f"dropout{i}"] = nn.Dropout(dropout)
        width = units
    return width
