"""KL divergences of Gaussian posteriors and node gates from their priors, in closed form.

A Gaussian posterior of a tensor X is the pair of parameters `X_mean` and `X_rho`, with standard deviation softplus(rho). A node gate is a
parameter `gate_logit` (inclusion probability gamma = sigmoid(gate_logit)) and a buffer `frozen_gate`: -1 for a drawn gate, 0 or 1 for a
fixed one. Layers create these names; penalties and the functions below find them in one member's dicts. The penalties are sums over
parameters, as explained in `penalties.py`: the loss gets KL / N.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params, Slots
from choral.base.values import Inside, NotNegative, Positive, Share
from choral.objectives.penalties import Penalty

MEAN, RHO = "_mean", "_rho"
GATE, FROZEN = "gate_logit", "frozen_gate"
FrozenKL = Literal["certain", "gamma"]

# Far enough out that the gradients of gamma and of its KL vanish (below 1e-15), so a frozen gate costs a constant.
_CERTAIN_LOGIT = 40.0


def std_of(rho: Tensor) -> Tensor:
    """Return the standard deviation softplus(rho)."""
    return F.softplus(rho)


def rho_of(std: float) -> float:
    """Return the rho whose softplus is `std`.

    >>> round(rho_of(0.0024757), 3), round(rho_of(1e-6), 3)
    (-6.0, -13.816)
    """
    if not std > 0:
        raise InputError(f"std={std!r} is not a standard deviation: give a number above 0.")
    return float(torch.tensor(std, dtype=torch.float64).expm1().log()) if std < 30 else float(std)


def posteriors(params: Params) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name without suffix, mean, rho) of every Gaussian posterior in the dict.

    >>> w = torch.zeros(2)
    >>> [name for name, _, _ in posteriors({"fc.weight_mean": w, "fc.weight_rho": w, "norm.running_mean": w})]
    ['fc.weight']
    """
    for name, mean in params.items():
        stem = name.removesuffix(MEAN)
        rho = params.get(stem + RHO)
        if name != stem and rho is not None:
            yield stem, mean, rho


def layer_of(name: str) -> str:
    """Return the name of the layer of a parameter, with its dot; empty for the network itself.

    >>> layer_of("block.0.conv.weight"), layer_of("weight")
    ('block.0.conv.', '')
    """
    return name[: name.rfind(".") + 1]


def freeze_gates(
    params: Params,
    buffers: Params,
    *,
    rule: Literal["draw", "threshold"] = "draw",
    kl: FrozenKL = "certain",
    generator: torch.Generator | None = None,
) -> tuple[Params, Params]:
    """Return parameters and buffers with every node gate fixed to 0 or 1 in the buffer `frozen_gate`.

    Gates that are frozen already are not changed.

    Args:
        params: one member's parameters.
        buffers: the same member's buffers.
        rule: "draw" draws each gate from Bernoulli(gamma) (the authors' code), "threshold" keeps gamma > 0.5.
        kl: "certain" sets gamma to 0 or 1, so that the spike-and-slab KL counts kept nodes fully, removed nodes not at all, and moves no
            gate; "gamma" keeps gamma as the weight of the node's KL (the authors' code).
        generator: a CPU generator, needed by "draw".
    """
    params, buffers = dict(params), dict(buffers)
    for name, gate, frozen in _gates(params, buffers):
        if rule == "draw":
            kept = torch.rand(gate.shape, generator=generator, dtype=torch.float64).to(gate.device) < gate.sigmoid()
        else:
            kept = gate > 0
        value = torch.where(frozen < 0, kept.to(frozen), frozen)
        buffers[name + FROZEN] = value
        if kl == "certain":
            params[name + GATE] = ((value * 2 - 1) * _CERTAIN_LOGIT).to(gate)
    return params, buffers


def gate_keep(params: Params, buffers: Params) -> dict[str, Tensor]:
    """Return, for each gated layer, which of its nodes are kept: the frozen gates, else gamma > 0.5.

    >>> params = {"fc.gate_logit": torch.tensor([3.0, -2.0])}
    >>> gate_keep(params, {"fc.frozen_gate": torch.tensor([-1.0, -1.0])})["fc"].tolist()
    [True, False]
    """
    return {
        name.removesuffix("."): torch.where(frozen < 0, gate > 0, frozen > 0.5)
        for name, gate, frozen in _gates(params, buffers)
    }


def _gates(params: Params, buffers: Params) -> list[tuple[str, Tensor, Tensor]]:
    names = [layer_of(name) for name in params if name == GATE or name.endswith("." + GATE)]
    return [(name, params[name + GATE], buffers[name + FROZEN]) for name in names]


def gaussian_kl(mean: Tensor, std: Tensor, *, prior_mean: float, prior_std: float) -> Tensor:
    """Return KL(N(mean, std^2), N(prior_mean, prior_std^2)) element by element.

    log(s0 / s) + (s^2 + (m - m0)^2) / (2 s0^2) - 1/2

    >>> gaussian_kl(torch.tensor([0.0, 1.0]), torch.ones(2), prior_mean=0.0, prior_std=1.0).tolist()
    [0.0, 0.5]
    """
    ratio = std / prior_std
    return 0.5 * (ratio.square() + ((mean - prior_mean) / prior_std).square() - 1) - ratio.log()


def _total_kl(mean: Tensor, std: Tensor, *, prior_mean: float, prior_std: float) -> Tensor:
    """Return the sum of `gaussian_kl`, term by term, in fewer passes."""
    moved = mean - prior_mean if prior_mean else mean
    squares = std.square().sum() + moved.square().sum()
    return 0.5 / prior_std**2 * squares - std.log().sum() + mean.numel() * (math.log(prior_std) - 0.5)


_SMALL = 1 << 16  # elements of a posterior that is joined with others, at most
_Posterior = tuple[Tensor, Tensor, Tensor | None]
"""Mean, rho, and the logits of its nodes' gates, if it has gates."""


def _divergences(found: list[_Posterior], **prior: float) -> list[Tensor]:
    """Return terms whose sum is the KL of all posteriors from the prior, each node's times its gate.

    Small posteriors are concatenated, so that one operation serves many layers.
    """
    terms = []
    for gated in (False, True):
        some = [(mean, rho, gate) for mean, rho, gate in found if (gate is not None) == gated]
        small = [part for part in some if part[0].numel() <= _SMALL]
        for parts in [*([part] for part in some if part[0].numel() > _SMALL), *([small] if small else [])]:
            mean, std = _end_to_end(m for m, _, _ in parts), std_of(_end_to_end(r for _, r, _ in parts))
            if not gated:
                terms.append(_total_kl(mean, std, **prior))
                continue
            open_ = (g.sigmoid().view(-1, *(1,) * (m.dim() - 1)).expand_as(m) for m, _, g in parts if g is not None)
            terms.append((_end_to_end(open_) * gaussian_kl(mean, std, **prior)).sum())
    return terms


def _end_to_end(parts: Iterable[Tensor]) -> Tensor:
    flat = [part.reshape(-1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


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
class _KL(Penalty):
    """The KL of posteriors from a prior; arguments as in `GaussianKL`."""

    prior_std: Positive = 0.2
    weight: NotNegative = 1.0
    anneal: Share = 0.0

    @property
    def changes(self) -> bool:
        return self.anneal > 0

    @abstractmethod
    def terms(self, params: Params) -> list[Tensor]:
        """Return terms whose sum is the divergence."""

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        terms = self.terms(params)
        rise = min(1.0, progress / self.anneal) if self.anneal > 0 else 1.0
        return self.weight * rise * torch.stack(terms).sum() if terms else torch.zeros(())


@dataclass(frozen=True, kw_only=True)
class GaussianKL(_KL):
    """KL from every factorized Gaussian posterior (`X_mean`, `X_rho`) to N(prior_mean, prior_std^2).

    Args:
        prior_mean, prior_std: mean and standard deviation of the prior; 0 and 0.2 for weights, 1 and 0.1 for rank-one factors.
        weight: factor of the KL, 0 or more; 1 is the ELBO, less tempers the posterior.
        anneal: share of the training phase over which that factor rises linearly from 0; 0 starts at the full factor.

    Reference: Blundell et al., "Weight Uncertainty in Neural Networks", 2015, arXiv:1505.05424, Eq. 1, in closed form;
    for rank-one factors Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", 2020,
    arXiv:2005.07186.
    """

    prior_mean: float = 0.0

    def terms(self, params: Params) -> list[Tensor]:
        found: list[_Posterior] = [(mean, rho, None) for _, mean, rho in posteriors(params)]
        return _divergences(found, prior_mean=self.prior_mean, prior_std=self.prior_std)


@dataclass(frozen=True, kw_only=True)
class SpikeSlabKL(_KL):
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

    inclusion: Inside = 1e-4

    def terms(self, params: Params) -> list[Tensor]:
        gates = [g for name, g in params.items() if name == GATE or name.endswith("." + GATE)]
        terms = [bernoulli_kl(_end_to_end(gates), inclusion=self.inclusion).sum()] if gates else []
        found = [(mean, rho, params.get(layer_of(name) + GATE)) for name, mean, rho in posteriors(params)]
        return terms + _divergences(found, prior_mean=0.0, prior_std=self.prior_std)
