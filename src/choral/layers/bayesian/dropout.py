"""Dropout that is on in evaluation too: of activations, of a layer's outputs, and of weights (DropConnect).

In training every row of a batch has its own draws. In evaluation a pass is one thinned network for all rows, as in the papers' derivation,
so that a prediction does not depend on other rows. All draws use `choral.base.draws`.

Reference: Gal & Ghahramani, "Dropout as a Bayesian Approximation", 2016, arXiv:1506.02142; Wan et al.,
"Regularization of Neural Networks using DropConnect", ICML 2013.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.base import draws
from choral.base.errors import ConversionError
from choral.base.values import BelowOne, typed
from choral.layers.bayesian.sampling import remembered
from choral.layers.convert import layers_of
from choral.layers.functional import Twin
from choral.layers.joint.layers import WeightLayer


class StochasticDepth(nn.Dropout):
    """Drop all outputs of a layer for a row, such as the branch of a residual block, with probability `p`.

    In evaluation it does nothing, unless `choral.recipes.mc_dropout` keeps it on: a pass is then one shallower network.

    Reference: Huang et al., "Deep Networks with Stochastic Depth", 2016, arXiv:1603.09382, scaled as `nn.Dropout`.

    >>> StochasticDepth(0.5)(torch.ones(1000, 3)).unique(dim=0).tolist()
    [[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return x * F.dropout(x.new_ones(x.shape[:1] + (1,) * (x.dim() - 1)), self.p, self.training)


_UNITS: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
DROPOUTS: tuple[type[nn.Module], ...] = (StochasticDepth, *_UNITS, *_ALPHA)
_SATURATION = -1.7580993408473766  # of SELU, where alpha dropout sends what it drops


class RowAware(nn.Module):
    """A layer with the same draws for all rows in evaluation; `rows` is their axis, by default 0.

    Networks that compute (time, batch, feature) have it elsewhere; it is stored by the number of axes, since a layer may be called in
    several places.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, int] = {}

    def one_row(self, x: Tensor) -> Tensor:
        """Return the first row of x, keeping its axis."""
        axis = self.rows.get(x.dim(), 0)
        return x.narrow(axis, 0, min(1, x.shape[axis]))


def find_rows(network: nn.Module, run: Callable[[int], object]) -> None:
    """Find the axis of rows for every `RowAware` layer: the one that grows with their number.

    Args:
        network: a network in evaluation mode.
        run: passes this many rows through it.
    """
    layers = [layer for _, layer in layers_of(network, (RowAware,))]
    seen: list[list[tuple[RowAware, torch.Size]]] = []
    hooks = [m.register_forward_hook(lambda m, _, y: seen[-1].append((m, y.shape))) for m in layers]
    try:
        for count in (2, 3):
            seen.append([])
            run(count)
    finally:
        for hook in hooks:
            hook.remove()
    for (layer, two), (_, three) in zip(*seen):
        grown = [i for i, (a, b) in enumerate(zip(two, three)) if a != b]
        if len(two) == len(three) and len(grown) == 1 and layer.rows.setdefault(len(two), grown[0]) != grown[0]:
            raise ConversionError(
                f"{layer} is called with its rows on different axes ({tuple(two)} for two rows); use a layer of its own in each place."
            )


class Dropped(RowAware, Twin):
    """Dropout that is on in training and in evaluation.

    Args:
        dropout: the plain dropout layer (`nn.Dropout`, `nn.Dropout1d` to `3d`, alpha dropout) to replace.

    >>> layer = Dropped(nn.Dropout(0.5)).eval()
    >>> bool((layer(torch.ones(1, 1000)) == 0).any())
    True
    """

    def __init__(self, dropout: nn.Module):
        super().__init__()
        self.kind: Any = next(k for k in DROPOUTS if isinstance(dropout, k))
        self.rate = float(dropout.p)  # type: ignore[arg-type]  # every dropout layer has its rate in p

    @property
    def p(self) -> float:
        """The rate, under the name that torch's layers use and forward code may read."""
        return self.rate

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0:
            return x
        whole: dict[type[nn.Module], int] = {StochasticDepth: x.dim() - 1, nn.FeatureAlphaDropout: x.dim() - 2}
        after = whole.get(self.kind, _UNITS.get(self.kind, 0))
        drawn = x if self.training else self.one_row(x)
        shape = (*drawn.shape[: x.dim() - after], *(1,) * after)  # one decision for all that a channel holds
        by_row = 0 if self.training else None
        keep = draws.keep_mask(shape, self.rate, device=x.device, rows=by_row).to(x.dtype)
        if self.kind not in _ALPHA:
            return x * (keep * (1.0 / (1.0 - self.rate)))
        scale = ((1 - self.rate) * (1 + self.rate * _SATURATION**2)) ** -0.5
        return scale * (x * keep + _SATURATION * (1 - keep)) - scale * _SATURATION * self.rate

    def plain(self) -> nn.Module:
        return self.kind(self.rate)

    def extra_repr(self) -> str:
        return f"{self.kind.__name__}, rate={self.rate}"


class DroppingLayer(WeightLayer):
    """A linear map or convolution that drops something in every pass, in training and in evaluation."""

    shown = ("rate",)

    @typed
    def __init__(self, layer: nn.Module, *, rate: BelowOne):
        super().__init__(layer)
        self.rate = rate


class DroppedOutput(DroppingLayer, RowAware):
    """A linear map or convolution followed by dropout of its outputs; for the arguments see `DropConnect`."""

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.operate(x, self.weight, self.bias)
        if self.training:
            return draws.dropout(outputs, self.rate)
        return outputs * draws.dropout(torch.ones_like(self.one_row(outputs)), self.rate, rows=None)


class DropConnect(DroppingLayer):
    """A linear map or convolution with weights dropped anew in every pass.

    The kept weights are divided by 1 - rate, so that the mean weight is the layer's own; biases are never dropped.

    Args:
        layer: the plain layer; its parameters are taken over under the same names.
        rate: probability of dropping a weight.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs under one draw of the weights, the same for the whole batch."""
        weight = remembered(self.weight, lambda: draws.dropout(self.weight, self.rate, rows=None))
        return self.operate(x, weight, self.bias)
