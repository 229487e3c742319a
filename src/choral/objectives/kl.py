"""Closed-form KL divergences between variational posteriors and their priors, found by parameter name.

Both penalties are sums over parameters, as the convention in `penalties.py` asks: the loss gets KL / N.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params, Slots
from choral.bayes.posteriors import GATE, layer_of, posteriors, std_of
from choral.objectives.penalties import Penalty, matches

_SMALL = 1 << 16  # elements of a posterior that is joined with others, at most
_Posterior = tuple[Tensor, Tensor, Tensor | None]
"""Mean, rho, and the logits of its nodes' gates, if it has gates."""


def gaussian_kl(mean: Tensor, std: Tensor, *, prior_mean: float, prior_std: float) -> Tensor:
    """Return KL(N(mean, std^2), N(prior_mean, prior_std^2)) element by element.

    log(s0 / s) + (s^2 + (m - m0)^2) / (2 s0^2) - 1/2

    >>> gaussian_kl(torch.tensor([0.0, 1.0]), torch.ones(2), prior_mean=0.0, prior_std=1.0).tolist()
    [0.0, 0.5]
    """
    ratio = std / prior_std
    return 0.5 * (ratio.square() + ((mean - prior_mean) / prior_std).square() - 1) - ratio.log()


def _total_kl(mean: Tensor, std: Tensor, *, prior_mean: float, prior_std: float, by_node: bool = False) -> Tensor:
    """Return `gaussian_kl` summed over all elements, or over each node (first axis); term by term, in fewer passes."""

    def total(values: Tensor) -> Tensor:
        return values.flatten(1).sum(1) if by_node and values.dim() > 1 else values if by_node else values.sum()

    moved = mean - prior_mean if prior_mean else mean
    squares = total(std.square()) + total(moved.square())
    elements = mean.numel() // mean.shape[0] if by_node else mean.numel()
    return 0.5 / prior_std**2 * squares - total(std.log()) + elements * (math.log(prior_std) - 0.5)


def _divergences(found: list[_Posterior], *, prior_mean: float, prior_std: float) -> list[Tensor]:
    """Return terms whose sum is the divergence of all posteriors from N(prior_mean, prior_std^2).

    Small posteriors are laid end to end, so that one operation serves many layers.
    """
    prior: dict[str, Any] = {"prior_mean": prior_mean, "prior_std": prior_std}
    terms = []
    for gated in (False, True):
        some = [(mean, rho, gate) for mean, rho, gate in found if (gate is not None) == gated]
        small = [part for part in some if part[0].numel() <= _SMALL]
        for mean, rho, gate in (part for part in some if part[0].numel() > _SMALL):
            kl = _total_kl(mean, std_of(rho), by_node=gated, **prior)
            terms.append(kl if gate is None else (gate.sigmoid() * kl).sum())
        if small:
            mean, std = _end_to_end([m for m, _, _ in small]), std_of(_end_to_end([r for _, r, _ in small]))
            if not gated:
                terms.append(_total_kl(mean, std, **prior))
                continue
            open_ = [g.sigmoid().view(-1, *(1,) * (m.dim() - 1)).expand_as(m) for m, _, g in small if g is not None]
            terms.append((_end_to_end(open_) * gaussian_kl(mean, std, **prior)).sum())
    return terms


def _end_to_end(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def bernoulli_kl(logit: Tensor, *, inclusion: float) -> Tensor:
    """Return KL(Bernoulli(sigmoid(logit)), Bernoulli(inclusion)) element by element.

    >>> bernoulli_kl(torch.zeros(1), inclusion=0.5).item()
    0.0
    """
    gamma = logit.sigmoid()
    # gamma log(gamma / lambda) + (1 - gamma) log((1 - gamma) / (1 - lambda)), with the logs of gamma from its logit
    kept = F.logsigmoid(logit) - math.log(inclusion)
    removed = F.logsigmoid(-logit) - math.log1p(-inclusion)
    return gamma * kept + (1 - gamma) * removed


@dataclass(frozen=True, kw_only=True)
class GaussianKL(Penalty):
    """KL from every factorized Gaussian posterior (`X_mean`, `X_rho`) to N(prior_mean, prior_std^2).

    Args:
        prior_mean: mean of the prior; 1 for rank-one factors.
        prior_std: standard deviation of the prior, above 0; 0.2 for weights, 0.1 for rank-one factors.
        weight: factor of the KL, 0 or more; 1 is the ELBO, less tempers the posterior.
        anneal: share of the training phase over which that factor rises linearly from 0; 0 is at once.
        include: patterns of the posteriors it concerns, by their name without suffix ("fc.weight"); all by default.
        exclude: patterns of posteriors it leaves alone.

    Reference: Blundell et al., "Weight Uncertainty in Neural Networks", 2015, arXiv:1505.05424, Eq. 1, in closed form;
        for rank-one factors Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", 2020,
        arXiv:2005.07186.
    """

    prior_mean: float = 0.0
    prior_std: float = 0.2
    weight: float = 1.0
    anneal: float = 0.0
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.prior_std, self.weight, self.anneal)

    @property
    def changes(self) -> bool:
        """Whether the weight of the KL is still rising."""
        return self.anneal > 0

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        """Return the sum of the divergences."""
        found: list[_Posterior] = [
            (mean, rho, None)
            for name, mean, rho in posteriors(params)
            if matches(name, self.include) and not matches(name, self.exclude)
        ]
        terms = _divergences(found, prior_mean=self.prior_mean, prior_std=self.prior_std)
        return self.weight * annealed(progress, self.anneal) * torch.stack(terms).sum() if terms else torch.zeros(())


@dataclass(frozen=True, kw_only=True)
class SpikeSlabKL(Penalty):
    """KL of node spike-and-slab posteriors: KL(Bernoulli(gamma), Bernoulli(lambda)) + gamma * Gaussian KL, by node.

    The node's Gaussian KL is summed over its weights and bias. Gaussian posteriors in layers without a gate (the
    classifier, normalization) count in full, as in `GaussianKL`.

    Args:
        prior_std: standard deviation of the slab (sigma_0), above 0.
        inclusion: prior probability that a node is in the network (lambda), between 0 and 1, both excluded.
        weight, anneal: as in `GaussianKL`.

    Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, section 3.1 and
        appendix A.
    """

    prior_std: float = 0.2
    inclusion: float = 1e-4
    weight: float = 1.0
    anneal: float = 0.0

    def __post_init__(self) -> None:
        _check(self.prior_std, self.weight, self.anneal)
        if not 0 < self.inclusion < 1:
            raise InputError(f"inclusion={self.inclusion!r}, but a prior probability is above 0 and below 1.")

    @property
    def changes(self) -> bool:
        """Whether the weight of the KL is still rising."""
        return self.anneal > 0

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        """Return the sum of the divergences."""
        gates = [g for name, g in params.items() if name == GATE or name.endswith("." + GATE)]
        terms = [bernoulli_kl(_end_to_end(gates), inclusion=self.inclusion).sum()] if gates else []
        found = [(mean, rho, params.get(layer_of(name) + GATE)) for name, mean, rho in posteriors(params)]
        terms += _divergences(found, prior_mean=0.0, prior_std=self.prior_std)
        return self.weight * annealed(progress, self.anneal) * torch.stack(terms).sum() if terms else torch.zeros(())


def annealed(progress: float, anneal: float) -> float:
    """Return the weight of a KL: rises from 0 to 1 over the first `anneal` of the phase, then stays 1.

    >>> [annealed(p, 0.8) for p in (0.0, 0.4, 0.8, 1.0)], annealed(0.0, 0.0)
    ([0.0, 0.5, 1.0, 1.0], 1.0)
    """
    return min(1.0, progress / anneal) if anneal > 0 else 1.0


def _check(prior_std: float, weight: float, anneal: float) -> None:
    if not prior_std > 0:
        raise InputError(f"prior_std={prior_std!r}, but a standard deviation is above 0.")
    if not 0 <= weight < math.inf:
        raise InputError(f"weight={weight!r}, but the factor of a KL is a number of 0 or more.")
    if not 0 <= anneal <= 1:
        raise InputError(f"anneal={anneal!r}, but it is a share of the training phase: from 0 to 1.")
