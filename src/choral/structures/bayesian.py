"""Bayesian structures: mean-field, spike-and-slab and rank-1 networks, with weights drawn in every pass.

For the papers see the layers, `choral.layers.bayesian.sampling` and `choral.layers.bayesian.rank_one_gaussian`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from choral.base import batches
from choral.base.batches import Batch
from choral.base.types import Params
from choral.base.values import Count, Inside, Positive
from choral.layers.bayesian.rank_one_gaussian import MemberBatchNorm, RankOneGaussianLayer
from choral.layers.bayesian.sampling import GAMMA_START, RHO_START, SAMPLED, SpikeSlabLayer, gaussian_twin
from choral.layers.convert import Replace, convert, layers_of, output_last, swap
from choral.layers.functional import BATCH_NORMS, own_kind
from choral.objectives.kl import gate_keep
from choral.structures.base import OneMember, Selective


@dataclass(frozen=True, kw_only=True)
class Sampled(Selective, OneMember, ABC):
    """One network with sampled weights, in training and in evaluation mode.

    Prediction averages `draws` passes. `member` returns the plain network at the posterior means, which is not the same function as the
    average of the draws.

    Args:
        draws: passes averaged at prediction.
        rho: initial value of every rho; the standard deviation is softplus(rho), 0.0025 for the default.
        keep_weights: start means at the network's own weights instead of drawing them by Kaiming's rule. `fit` sets it for trained networks.
    """

    draws: Count = 10
    undecayed: ClassVar[tuple[str, ...]] = ("*_mean", "*_rho", "*gate_logit")
    converts_all: ClassVar[bool] = True
    rho: float = RHO_START
    keep_weights: bool = False

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the network with Bayesian layers in place of plain ones; other kinds, and frozen or tied layers, are kept."""
        return convert(network, self._twins(network, generator), self, include=self.include, exclude=self.exclude)

    def keeping(self) -> Self:
        return replace(self, keep_weights=True)

    @abstractmethod
    def _twins(self, network: nn.Module, generator: torch.Generator) -> Replace:
        """Return a function for `swap`: the Bayesian layer for a named plain layer, or None."""


@dataclass(frozen=True, kw_only=True)
class Gaussian(Sampled):
    """A mean-field Gaussian posterior over weights, biases and the scale and shift of normalization layers.

    See `Sampled` for the arguments; the penalty is `choral.objectives.kl.GaussianKL`.

    >>> network = Gaussian(draws=5).convert(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), torch.Generator())
    >>> [type(layer).__name__ for layer in network]
    ['GaussianLayer', 'GaussianNorm']
    """

    def _twins(self, network: nn.Module, generator: torch.Generator) -> Replace:
        return lambda _, layer: gaussian_twin(layer, keep_weights=self.keep_weights, rho=self.rho, generator=generator)


@dataclass(frozen=True, kw_only=True)
class SpikeSlab(Sampled):
    """Gated Gaussian nodes in all convolutions and linear layers but the classifier; Gaussian layers elsewhere.

    Args not listed are those of `Sampled`; the penalty is `choral.objectives.kl.SpikeSlabKL`.

    Args:
        gamma: initial inclusion probability of every node.
        temperature: temperature of the relaxed gates (tau).
        sampled_gates: draw gates at prediction too, instead of fixing each to its more probable state; not for networks with BatchNorm (see
            `choral.layers.bayesian.sampling.SpikeSlabLayer`).

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [type(layer).__name__ for layer in SpikeSlab().convert(network, torch.Generator())]
    ['SpikeSlabLayer', 'ReLU', 'GaussianLayer']
    """

    gamma: Inside = GAMMA_START
    temperature: Positive = 0.5
    sampled_gates: bool = False

    def _twins(self, network: nn.Module, generator: torch.Generator) -> Replace:
        names = output_last([name for name, _ in layers_of(network, SAMPLED)])
        starts: dict[str, Any] = {"keep_weights": self.keep_weights, "rho": self.rho, "generator": generator}
        gates = {name: getattr(self, name) for name in ("gamma", "temperature", "sampled_gates")}

        def twin(name: str, layer: nn.Module) -> nn.Module | None:
            gated = name not in names[-1:] and own_kind(layer, SAMPLED) is not None
            return SpikeSlabLayer(layer, **starts, **gates) if gated else gaussian_twin(layer, **starts)

        return twin

    def remaining(self, params: Params, buffers: Params) -> dict[str, float] | None:
        """Return the share of open gates, frozen or more likely open than not, of each layer that has gates."""
        return {name: float(kept.double().mean()) for name, kept in gate_keep(params, buffers).items()}


@dataclass(frozen=True, kw_only=True)
class RankOneGaussian(Selective):
    """Members folded into the batch axis; every linear map and convolution is W * (s_m r_m^T) with Gaussian r_m, s_m.

    Weights (also trained ones) are the network's own; the factors are new and start at random signs. Every member has its own biases and
    BatchNorm. Prediction averages `draws` passes of each member; `member` returns member m at the means of its factors, a plain network.

    Args:
        members: number of members that share the weights.
        draws: passes averaged at prediction.
        rho: initial value of every rho; the standard deviation is softplus(rho).

    Differs from the paper: BatchNorm statistics are separate, so that members do not influence each other.

    The penalty is `choral.objectives.kl.GaussianKL(prior_mean=1.0, prior_std=0.1, anneal=0.8)`.
    """

    members: Count = 4
    draws: Count = 1
    folds_members: ClassVar[bool] = True
    undecayed: ClassVar[tuple[str, ...]] = ("*_mean", "*_rho")
    converts_all: ClassVar[bool] = True
    rho: float = RHO_START

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        def factors(_: str, layer: nn.Module) -> nn.Module | None:
            if own_kind(layer, SAMPLED) is None:
                return None
            return RankOneGaussianLayer(layer, members=self.members, rho=self.rho, generator=generator)

        def by_member(_: str, layer: nn.Module) -> nn.Module | None:
            return MemberBatchNorm(layer, members=self.members) if type(layer) in BATCH_NORMS else None

        joint = convert(network, factors, self, include=self.include, exclude=self.exclude)
        return swap(joint, by_member)

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        repeated = batches.mapped(lambda t: t.repeat((self.members,) + (1,) * (t.dim() - 1)), x)
        return repeated, None if y is None else y.expand(self.members, *y.shape)

    def unfold(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(0, (self.members, -1))

    def shared(self, network: nn.Module) -> frozenset[str]:
        """Return all but the factors and biases of rank-one layers and the members' normalization."""
        own: set[str] = set()
        for name, module in network.named_modules():
            if isinstance(module, (RankOneGaussianLayer, MemberBatchNorm)):
                own |= {n for n, p in module.named_parameters(name) if p is not getattr(module, "weight", None)}
        return frozenset(n for n, _ in network.named_parameters() if n not in own)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return member `index` as a plain network, at the means of its factors."""
        kinds = (RankOneGaussianLayer, MemberBatchNorm)
        return swap(network, lambda _, module: module.plain(index) if isinstance(module, kinds) else None)
