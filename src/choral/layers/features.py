"""Layers of networks for tables: piecewise-linear and periodic features, and layers that can be skipped.

An MLP on standardized numbers learns sharp steps slowly; with quantile bins or cosines as inputs it learns them fast. All of these are plain
layers (a look-up without parameters, a convolution with one group for each feature), so that every structure converts them.

References: Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning", 2022, arXiv:2203.05556, Equations 1
and 2. Phases of cosines are learned, as in Holzmüller et al., "Better by Default", 2024, arXiv:2407.04491.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from choral.base.errors import InputError

Edges = Sequence[Sequence[float]]
MOST = 256
"""Bins of one feature, at most."""
_LEAST = 1e-30  # width of a bin whose inverse is still a number
_CLOSE = 1e-6  # of a feature's range: edges nearer than this are one


def quantile_edges(x: Tensor | np.ndarray, *, bins: int = 48) -> tuple[tuple[float, ...], ...]:
    """Return the edges of each feature's bins: distinct quantiles of the training data.

    A feature of at most two values has no bins. Edges nearer than a millionth of the range are merged.

    >>> quantile_edges(np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]), bins=3)
    ((0.0, 1.0, 2.0, 3.0), ())

    Args:
        x: training inputs (row, feature), without NaN.
        bins: largest number of bins of a feature.
    """
    if not 1 <= bins <= MOST:
        raise InputError(f"bins is {bins}; give 1 to {MOST}.")
    values = np.asarray(x, dtype=np.float32)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise InputError(f"x has shape {values.shape}; give finite numbers of shape (point, feature).")
    found = []
    for column in values.T:
        different = np.unique(column)
        cuts = np.unique(np.quantile(column.astype(np.float64), np.linspace(0, 1, bins + 1)).astype(np.float32))
        far = np.diff(cuts, prepend=-np.inf) > _CLOSE * (cuts[-1] - cuts[0])
        found.append(() if len(different) < 3 or far.sum() < 2 else tuple(map(float, cuts[far])))
    return tuple(found)


class Piecewise(nn.Module):
    """Each number as its position in bins: 0 before a bin, 1 after it, linear in between (Equation 1).

    The first and last bins extend beyond their edges, so that nothing is lost outside the training range.

    >>> Piecewise([(0.0, 1.0, 3.0), ()])(torch.tensor([[2.0, 7.0]])).tolist()
    [[1.0, 0.5, 7.0]]

    Args:
        edges: rising edges of each feature's bins; () keeps a feature as it is.
        raw: also keep each feature as it is, before its bins.
        even: pad all features with zeros to the largest number of columns.

    Shapes: (batch, feature) -> (batch, `width`).
    """

    def __init__(self, edges: Edges, *, raw: bool = False, even: bool = False):
        super().__init__()
        self.edges = tuple(tuple(map(float, own)) for own in edges)
        for i, own in enumerate(self.edges):
            rising = all(map(math.isfinite, own)) and all(b - a > _LEAST for a, b in itertools.pairwise(own))
            if len(own) == 1 or len(own) > MOST + 1 or not rising:
                raise InputError(f"edges[{i}] is {own[:4]}...; give () or 2 to {MOST + 1} finite numbers that rise.")
        columns = [_columns(i, e, raw) for i, e in enumerate(self.edges)]
        self.each = max((len(c) for c in columns), default=0)
        if even:
            columns = [c + [(i, 0.0, 0.0, 0.0, 0.0)] * (self.each - len(c)) for i, c in enumerate(columns)]
        rows = [column for feature in columns for column in feature]
        self.features, self.width = len(columns), len(rows)
        self._rows = torch.tensor(rows, dtype=torch.float64).T.contiguous()
        self._ready: dict[tuple[torch.device, torch.dtype], tuple[Tensor, ...]] = {}

    def forward(self, x: Tensor) -> Tensor:
        source, begin, slope, low, high = self._constants(x)
        # subtracted first: large numbers with narrow bins would round
        part = (x.index_select(-1, source) - begin) * slope
        return torch.maximum(torch.minimum(part, high), low)

    def _constants(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the constants on the device of x; they are not buffers, since they need not be saved."""
        key = (x.device, x.dtype)
        if key not in self._ready:
            source, *rest = self._rows
            self._ready[key] = (source.long().to(x.device), *(r.to(x.device, x.dtype) for r in rest))
        return self._ready[key]

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each feature."""
        return tuple(torch.bincount(self._rows[0].long(), minlength=self.features).tolist())

    def extra_repr(self) -> str:
        return f"features={self.features}, width={self.width}"


def _columns(feature: int, edges: tuple[float, ...], raw: bool) -> list[tuple[int, float, float, float, float]]:
    plain = [(feature, 0.0, 1.0, -math.inf, math.inf)]
    last = len(edges) - 2
    bins = [
        (feature, a, 1 / (b - a), -math.inf if i == 0 else 0.0, math.inf if i == last else 1.0)
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]
    return plain + bins if raw or not bins else bins


class Apiece(nn.Sequential):
    """A separate linear map for each feature: equal groups of columns, each with `outputs` outputs.

    It is a convolution of one pixel with a group for each feature, which every structure can convert.

    Shapes: (batch, features * inputs) -> (batch, features * outputs).
    """

    def __init__(self, features: int, inputs: int, outputs: int):
        super().__init__(Pixel(), nn.Conv1d(features * inputs, features * outputs, 1, groups=features), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the maps.

        It uses one batched product, since grouped convolutions loop over their groups: a row of 16 features takes a tenth of the time, a training
        step half. Hooks on the convolution see it called.
        """
        layer = self.maps
        watched = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        if type(layer) is not nn.Conv1d or watched or not isinstance(x, Tensor):  # torch.fx traces with no tensor
            return super().forward(x)
        assert layer.bias is not None  # made with one
        features = layer.groups
        weight = layer.weight.reshape(features, -1, layer.weight.shape[1])  # (feature, output, input)
        apart = x.unflatten(-1, (features, -1)).transpose(0, 1)  # (feature, batch, input)
        y = torch.baddbmm(layer.bias.reshape(features, 1, -1), apart, weight.mT)
        return y.transpose(0, 1).flatten(1)

    @property
    def maps(self) -> Any:
        """The linear maps, an `nn.Conv1d`: weight (features * outputs, inputs, 1)."""
        return self[1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each feature."""
        return (self.maps.out_channels // self.maps.groups,) * self.maps.groups


class Pixel(nn.Module):
    """Add an axis of length one at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1)


class Waves(nn.Module):
    """The cosine of 2 pi times each number."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(2 * math.pi * x)


class Beside(nn.Module):
    """The outputs of a layer for some features, followed by the other features.

    >>> Beside(nn.Identity(), [True, False, True])(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 3.0, 2.0]]

    Args:
        layer: takes the chosen features (batch, chosen).
        chosen: whether each feature is chosen.

    Shapes: (batch, feature) -> (batch, columns of the layer + other features).
    """

    def __init__(self, layer: nn.Module, chosen: Sequence[bool]):
        super().__init__()
        self.layer = layer
        self.own, self.others = ([i for i, own in enumerate(chosen) if bool(own) is side] for side in (True, False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x[..., self.own]), x[..., self.others]], -1)


def piecewise_embedding(edges: Edges, width: int) -> nn.Sequential:
    """Return an embedding of each feature: a line plus a piecewise-linear function, which starts at zero.

    Shapes: (batch, feature) -> (batch, feature * width).
    """
    bins = Piecewise(edges, raw=True, even=True)
    maps = Apiece(bins.features, bins.each, width)
    bound = width**-0.5
    with torch.no_grad():
        maps.maps.weight.zero_()
        maps.maps.weight[:, 0].uniform_(-bound, bound)
        maps.maps.bias.uniform_(-bound, bound)
    return nn.Sequential(bins, maps)


class Skippable(nn.Module):
    """A layer, or the identity if the buffer `used` is False; inputs and outputs have equal shapes.

    >>> layer = Skippable(nn.Linear(2, 2))
    >>> layer.used.fill_(False)
    tensor(False)
    >>> layer(torch.ones(1, 2)).tolist()
    [[1.0, 1.0]]
    """

    used: Tensor

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.register_buffer("used", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.used, self.layer(x), x)
