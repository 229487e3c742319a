"""Mean-field Bayesian networks: one network whose weights are drawn from a Gaussian posterior in every pass.

Reference: Blundell et al., "Weight Uncertainty in Neural Networks", 2015, arXiv:1505.05424.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.layers.bayesian.gaussian import GaussianNorm, gaussian_twin
from choral.layers.bayesian.sampling import RHO_START, SampledLayer
from choral.layers.convert import Replace, holds, swap, unless_held
from choral.structures.base import OneMember

_BAYESIAN = (SampledLayer, GaussianNorm)


@dataclass(frozen=True, kw_only=True)
class Sampled(OneMember, ABC):
    """One network with sampled weights: its passes differ, in training and in evaluation mode alike.

    Prediction averages `draws` passes. `member` gives the deterministic network at the center of the posterior: a plain
    network, but not the same function as the average of the draws.

    Args:
        draws: passes averaged at prediction.
        rho: where every rho starts; the standard deviation is softplus(rho), 0.0025 for the default.
        keep_weights: means start at the network's own weights; otherwise they are drawn by Kaiming's rule. `fit` sets it for networks
            that bring trained weights.
        include: patterns of the layers that become Bayesian; all that can when empty.
        exclude: patterns of layers that stay plain.
    """

    draws: int = 10
    undecayed: ClassVar[tuple[str, ...]] = ("*_mean", "*_rho", "*gate_logit")
    converts_all: ClassVar[bool] = True
    rho: float = RHO_START
    keep_weights: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise InputError(f"{type(self).__name__}: draws={self.draws}; give 1 or more.")

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the network with Bayesian layers in place of plain ones; other kinds, and frozen or tied layers, stay."""
        twins = unless_held(network, self._twins(network, generator))
        joint = swap(network, twins, include=self.include, exclude=self.exclude)
        if not holds(joint, *_BAYESIAN):
            raise ConversionError(
                f"{type(self).__name__} found no layer to make Bayesian in {type(network).__name__}; it takes torch's "
                "own linear, convolution and normalization layers (with a scale), within include and exclude."
            )
        return joint

    def keeping(self) -> Self:
        """Return the structure whose means start at the network's own weights."""
        return replace(self, keep_weights=True)

    @abstractmethod
    def _twins(self, network: nn.Module, generator: torch.Generator) -> Replace:
        """Return what `swap` asks: the Bayesian layer for a named plain layer, or None."""

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return the plain network at the posterior means, with zeros for nodes that are out."""
        return swap(network, lambda _, module: module.plain() if isinstance(module, _BAYESIAN) else None)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Sampled):
    """A mean-field Gaussian posterior over weights, biases and the scale and shift of normalization layers.

    See `Sampled` for the arguments; the penalty is `choral.objectives.kl.GaussianKL`.

    >>> network = Gaussian(draws=5).convert(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), torch.Generator())
    >>> [type(layer).__name__ for layer in network]
    ['GaussianLinear', 'GaussianNorm']
    """

    def _twins(self, network: nn.Module, generator: torch.Generator) -> Replace:
        return lambda _, layer: gaussian_twin(layer, keep_weights=self.keep_weights, rho=self.rho, generator=generator)
