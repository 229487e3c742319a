"""What sampled layers share: a base, a draw from a Gaussian posterior, and the mean mode.

Sampled layers draw their weights anew in every forward pass, in training and in evaluation mode alike, through
`choral.base.draws`. Within `at_means` they draw nothing and use the center of their posterior.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor, nn

from choral.base import draws
from choral.base.draws import now, under
from choral.base.errors import ConversionError
from choral.layers.functional import CONVOLUTIONS, emptied, filled, operate, own_kind, read_through
from choral.objectives.kl import MEAN, RHO, std_of

RHO_START = -6.0
SAMPLED = (nn.Linear, *CONVOLUTIONS)
"""Plain layers that have a sampled one."""


@contextmanager
def at_means() -> Iterator[None]:
    """Make every sampled layer of the block deterministic: posterior means, and nodes with gamma above one half.

    >>> from choral.layers.bayesian.gaussian import GaussianLayer
    >>> layer, x = GaussianLayer(nn.Linear(3, 2), rho=0.0), torch.ones(1, 3)
    >>> with at_means():
    ...     torch.equal(layer(x), layer(x))
    True
    >>> torch.equal(layer(x), layer(x))
    False
    """
    with under(means=True):
        yield


def means_wanted() -> bool:
    """Return whether an `at_means` block is running."""
    return now().means


@overload
def draw(mean: Tensor, rho: Tensor) -> Tensor: ...
@overload
def draw(mean: Tensor | None, rho: Tensor | None) -> Tensor | None: ...
def draw(mean: Tensor | None, rho: Tensor | None) -> Tensor | None:
    """Return mean + softplus(rho) * noise, or the mean within `at_means`; None (a layer without bias) stays None."""
    if mean is None or rho is None or means_wanted():
        return mean
    return draws.remembered(mean, lambda: torch.addcmul(mean, std_of(rho), draws.normal(mean.shape, like=mean)))


def add_posterior(layer: nn.Module, name: str, center: Tensor | None, rho: float) -> None:
    """Give a layer the parameters `name_mean`, a copy of `center`, and `name_rho`; None twice if `center` is None."""
    mean = None if center is None else nn.Parameter(center.detach().clone())
    layer.register_parameter(name + MEAN, mean)
    layer.register_parameter(name + RHO, None if mean is None else nn.Parameter(torch.full_like(mean, rho)))


def fresh_weight(weight: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return a weight drawn by Kaiming's rule (normal, over the inputs) in the shape of another."""
    empty = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    return nn.init.kaiming_normal_(empty, nonlinearity="relu", generator=generator)


def size(name: str) -> Any:
    """Return a property that reads and sets one size of the plain layer in `_plain`."""
    return property(lambda layer: getattr(layer._plain[0], name), lambda layer, n: setattr(layer._plain[0], name, n))


class SampledLayer(nn.Module, ABC):
    """A linear map or convolution whose weight and bias have a Gaussian posterior each.

    It states its sizes as the plain layer does, and can be given others by compaction.

    Args:
        layer: the plain layer, for its settings, device and dtype; not changed.
        rho: where every rho starts; the standard deviation is softplus(rho), 0.0025 for the default.
        keep_weights: means start at the plain layer's weights, not at fresh draws.
        generator: a generator for fresh means; torch's own if None.
    """

    weight_mean: nn.Parameter
    weight_rho: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_rho: nn.Parameter | None
    in_features, out_features = size("in_features"), size("out_features")
    in_channels, out_channels, groups = size("in_channels"), size("out_channels"), size("groups")
    __getattr__ = read_through

    def __init__(
        self,
        layer: nn.Module,
        *,
        rho: float = RHO_START,
        keep_weights: bool = False,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if own_kind(layer, SAMPLED) is None:
            raise ConversionError(
                f"{type(self).__name__} was given {layer}; it takes torch's own nn.Linear and nn.Conv1d-3d."
            )
        self._plain = (emptied(layer),)  # in a tuple, so that it is no submodule
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        zeros = None if bias is None else torch.zeros_like(bias)
        add_posterior(self, "weight", weight if keep_weights else fresh_weight(weight, generator), rho)
        add_posterior(self, "bias", bias if keep_weights else zeros, rho)

    @property
    def weight(self) -> nn.Parameter:
        """The mean of the weight: forward code may read its dtype or shape."""
        return self.weight_mean

    @property
    def bias(self) -> nn.Parameter | None:
        """The mean of the bias."""
        return self.bias_mean

    def operate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return what the plain layer returns under these weights."""
        return operate(self._plain[0], x, {"weight": weight, "bias": bias}, training=self.training)

    def plain_layer(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a plain layer of the same settings with copies of these weights."""
        copies = {"weight": weight.detach().clone(), "bias": None if bias is None else bias.detach().clone()}
        return filled(self._plain[0], copies)

    @abstractmethod
    def plain(self) -> nn.Module:
        """Return a plain layer with the center of the posterior as its weights."""

    def extra_repr(self) -> str:
        """Return the settings of the plain layer."""
        return self._plain[0].extra_repr()
