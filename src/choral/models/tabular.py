"""MLPs for tables, with embeddings of numerical features."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from choral.base.errors import InputError
from choral.layers.features import Apiece, Beside, Piecewise, Skippable, Waves, piecewise_embedding
from choral.models.mlp import add_hidden
from choral.models.spec import zoo


@zoo
def tabular(
    inputs: int,
    outputs: int,
    *,
    hidden: Sequence[int] = (256, 256),
    embedding: Literal["none", "piecewise", "periodic"] = "piecewise",
    edges: Sequence[Sequence[float]] = (),
    embedding_width: int = 0,
    embed_all: bool = True,
    frequencies: int = 16,
    frequency_scale: float = 0.1,
    residual: bool = False,
    dropout: float = 0.0,
    skippable: bool = False,
) -> nn.Module:
    """Return an MLP for rows of a table.

    Args:
        inputs: number of features.
        outputs: number of classes or targets.
        hidden: units of each hidden layer; with `residual` all equal, one for each block.
        embedding: 'none' for the numbers themselves, 'piecewise' for piecewise-linear bins, 'periodic' for cosines of learned frequencies.
        edges: for 'piecewise': edges of each feature's bins, from `choral.layers.quantile_edges(x_train)`.
        embedding_width: width of a separate linear embedding of each feature; 0 passes bins or cosines to the first layer.
        embed_all: for 'piecewise' with a width: also embed features without bins (of at most two values).
        frequencies: for 'periodic': number of frequencies of each feature.
        frequency_scale: for 'periodic': standard deviation of the initial frequencies.
        residual: whether hidden layers are residual blocks (LayerNorm, linear, ReLU, linear) after a linear map.
        dropout: rate after every activation.
        skippable: whether hidden layers after the first can be skipped (`choral.layers.features.Skippable`), so that networks of
            different depths can be stacked; widths must be equal.

    Shapes: (batch, feature) -> (batch, outputs).

    >>> import torch
    >>> net = tabular(2, 1, hidden=(8,), edges=((0.0, 1.0, 2.0), ()))
    >>> net[0](torch.tensor([[1.5, 9.0]])).tolist()
    [[1.0, 0.5, 9.0]]
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    units, width = tuple(hidden), inputs
    if embedding == "piecewise":
        layers["features"], width = _piecewise(inputs, edges, embedding_width, embed_all)
    elif embedding == "periodic":
        layers["features"], width = _periodic(inputs, frequencies, frequency_scale, embedding_width)
    if skippable:
        if residual or len(set(units)) > 1:
            raise InputError(
                f"skippable=True with hidden={units}, residual={residual}; give equal widths and no blocks."
            )
        width = add_hidden(layers, width, units[:1], dropout=dropout)
        for i, wide in enumerate(units[1:], start=2):
            parts: OrderedDict[str, nn.Module] = OrderedDict()
            add_hidden(parts, width, (wide,), dropout=dropout)
            layers[f"hidden{i}"] = Skippable(nn.Sequential(parts))
    else:
        width = (_residual if residual else add_hidden)(layers, width, units, dropout=dropout)
    layers["output"] = nn.Linear(width, outputs)
    return nn.Sequential(layers)


def _piecewise(inputs: int, edges: Sequence[Sequence[float]], width: int, whole: bool) -> tuple[nn.Module, int]:
    if len(edges) != inputs:
        raise InputError(
            f"edges has {len(edges)} features and inputs is {inputs}; give edges=choral.layers.quantile_edges(x_train)."
        )
    binned = [whole or bool(own) for own in edges]
    if width and all(binned):
        return piecewise_embedding(edges, width), inputs * width
    if width and any(binned):
        own = piecewise_embedding([e for e, chosen in zip(edges, binned) if chosen], width)
        return Beside(own, binned), sum(width if chosen else 1 for chosen in binned)
    bins = Piecewise(edges)
    return bins, bins.width


def _periodic(inputs: int, frequencies: int, scale: float, width: int) -> tuple[nn.Module, int]:
    waves = Apiece(inputs, 1, frequencies)
    nn.init.normal_(waves.maps.weight, std=scale)
    nn.init.uniform_(waves.maps.bias, 0.0, 1.0)
    if not width:
        return nn.Sequential(waves, Waves()), inputs * frequencies
    return nn.Sequential(waves, Waves(), Apiece(inputs, frequencies, width), nn.ReLU()), inputs * width


def _residual(layers: OrderedDict[str, nn.Module], width: int, units: tuple[int, ...], dropout: float) -> int:
    if not units:
        return width
    layers["linear"] = nn.Linear(width, units[0])
    for i, wide in enumerate(units, start=1):
        layers[f"block{i}"] = Block(wide, dropout)
    layers["norm"] = nn.LayerNorm(units[0])
    layers["activation"] = nn.ReLU()
    return units[0]


class Block(nn.Module):
    """A residual block: x + linear(dropout(ReLU(linear(norm(x)))))."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear1, self.activation = nn.Linear(width, width), nn.ReLU()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.linear2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear2(self.dropout(self.activation(self.linear1(self.norm(x)))))
