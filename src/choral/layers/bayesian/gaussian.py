"""Layers with a factorized Gaussian posterior over their weights, drawn anew in every forward pass.

Each tensor X of the plain layer becomes the parameters `X_mean` and `X_rho`; one draw for the whole batch gives it the
value X_mean + softplus(X_rho) * noise. Means start afresh (Kaiming) or from trained weights, and
`choral.layers.bayesian.sampling.at_means` makes the layers deterministic. The penalty that belongs to them is
`choral.objectives.kl.GaussianKL`.

Reference: Blundell et al., "Weight Uncertainty in Neural Networks", 2015, arXiv:1505.05424.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from choral.base.errors import ConversionError
from choral.layers.bayesian.sampling import RHO_START, SAMPLED, SampledLayer, add_posterior, draw
from choral.layers.functional import BATCH_NORMS, filled, own_kind


class GaussianLayer(SampledLayer):
    """A linear map or convolution with Gaussian weights and bias.

    Args are those of `choral.layers.bayesian.sampling.SampledLayer`.

    >>> layer = GaussianLayer(nn.Linear(3, 2))
    >>> sorted(name for name, _ in layer.named_parameters())
    ['bias_mean', 'bias_rho', 'weight_mean', 'weight_rho']
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the output under one draw of the weights."""
        return self.operate(x, draw(self.weight_mean, self.weight_rho), draw(self.bias_mean, self.bias_rho))

    def plain(self) -> nn.Module:
        """Return a plain layer with the posterior means as its weights."""
        return self.plain_layer(self.weight_mean, self.bias_mean)


_NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def _size(name: str) -> Any:
    """Return a property that reads and sets one size of the plain layer inside a `GaussianNorm`."""
    return property(lambda layer: getattr(layer.norm, name), lambda layer, size: setattr(layer.norm, name, size))


class GaussianNorm(nn.Module):
    """A normalization layer whose scale and shift are Gaussian.

    The statistics are those of the plain layer, kept without scale and shift in `norm`; means start at the layer's own
    scale and shift (1 and 0 in a fresh layer).

    Args:
        norm: an `nn.BatchNorm1d`, `2d`, `3d`, `nn.GroupNorm`, `nn.LayerNorm` or `nn.RMSNorm` with a scale; not changed.
        rho: as in `choral.layers.bayesian.sampling.SampledLayer`.

    >>> GaussianNorm(nn.LayerNorm(4)).weight_mean.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    weight_mean: nn.Parameter
    weight_rho: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_rho: nn.Parameter | None
    num_features, num_channels, num_groups = _size("num_features"), _size("num_channels"), _size("num_groups")

    def __init__(self, norm: nn.Module, *, rho: float = RHO_START):
        super().__init__()
        scale, shift = _affine_of(norm)
        if scale is None:
            accepted = ", ".join(kind.__name__ for kind in _NORMS)
            raise ConversionError(f"GaussianNorm was given {norm}; it takes one of {accepted} that has a scale.")
        self.norm = deepcopy(norm)
        for name in self.norm._parameters:
            self.norm._parameters[name] = None
        add_posterior(self, "weight", scale, rho)
        add_posterior(self, "bias", shift, rho)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input under one draw of scale and shift."""
        weight, bias = draw(self.weight_mean, self.weight_rho), draw(self.bias_mean, self.bias_rho)
        return functional_call(
            self.norm, {"weight": weight} if bias is None else {"weight": weight, "bias": bias}, (x,)
        )

    def plain(self) -> nn.Module:
        """Return a plain normalization layer with the posterior means as scale and shift."""
        means = {"weight": self.weight_mean, "bias": self.bias_mean}
        own = {n: None if m is None else m.detach().clone() for n, m in means.items() if n in self.norm._parameters}
        return filled(self.norm, own)


def _affine_of(norm: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """Return scale and shift of a plain normalization layer; None for those it, or any other module, does not have."""
    if type(norm) not in _NORMS:
        return None, None
    own = dict(norm.named_parameters(recurse=False))
    return own.get("weight"), own.get("bias")


def gaussian_twin(
    layer: nn.Module,
    *,
    keep_weights: bool = False,
    rho: float = RHO_START,
    generator: torch.Generator | None = None,
) -> GaussianLayer | GaussianNorm | None:
    """Return the Gaussian layer that stands for a plain one, or None if there is none for what it computes.

    Args:
        layer: any module; linear maps, convolutions and normalization with a scale have a twin.
        keep_weights: means start at the plain layer's weights, not at fresh draws; normalization always keeps its own.
        rho: as in `choral.layers.bayesian.sampling.SampledLayer`.
        generator: for fresh means.
    """
    if _affine_of(layer)[0] is not None:
        return GaussianNorm(layer, rho=rho)
    if own_kind(layer, SAMPLED) is None:
        return None
    return GaussianLayer(layer, rho=rho, keep_weights=keep_weights, generator=generator)
