"""Multilayer perceptrons for tables and small images."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import nn

from choral.models.spec import activation_named, choice, count, counts, rate, zoo

_NORMS: dict[str | None, Callable[[int], nn.Module] | None] = {
    None: None,
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
}


@zoo
def mlp(
    inputs: int,
    outputs: int,
    *,
    hidden: Sequence[int] = (50,),
    activation: str = "relu",
    norm: str | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Return a multilayer perceptron that flattens its inputs first.

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
    act = activation_named(activation)
    choice("norm", norm, _NORMS)
    rate("dropout", dropout)
    normalize = _NORMS[norm]
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = count("inputs", inputs)
    for i, units in enumerate(counts("hidden", hidden), start=1):
        layers[f"linear{i}"] = nn.Linear(width, units)
        if normalize is not None:
            layers[f"norm{i}"] = normalize(units)
        layers[f"activation{i}"] = act()
        if dropout > 0:
            layers[f"dropout{i}"] = nn.Dropout(dropout)
        width = units
    layers["output"] = nn.Linear(width, count("outputs", outputs))
    return nn.Sequential(layers)
