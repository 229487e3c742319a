"""Factorized Gaussian posteriors and node gates as flat dicts of parameters: names, units and the moves of SeBayS.

A Gaussian posterior over a tensor X is the pair of parameters `X_mean` and `X_rho`, with standard deviation
softplus(rho). A node gate is a parameter `gate_logit` (inclusion probability gamma = sigmoid(gate_logit)) beside a
buffer `frozen_gate`: -1 where the gate is still drawn, 0 or 1 where it is fixed. Layers create these names,
penalties and the functions below find them again; all of them are pure functions of one member's dicts.
"""

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params

MEAN, RHO = "_mean", "_rho"
GATE, FROZEN = "gate_logit", "frozen_gate"

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
    """Yield (name without suffix, mean, rho) for every Gaussian posterior in the dict.

    >>> w = torch.zeros(2)
    >>> [name for name, _, _ in posteriors({"fc.weight_mean": w, "fc.weight_rho": w, "norm.running_mean": w})]
    ['fc.weight']
    """
    for name, mean in params.items():
        if name.endswith(MEAN):
            stem = name.removesuffix(MEAN)
            rho = params.get(stem + RHO)
            if rho is not None:
                yield stem, mean, rho


def layer_of(name: str) -> str:
    """Return the name of the layer that owns a parameter, with its dot; empty for the network itself.

    >>> layer_of("block.0.conv.weight"), layer_of("weight")
    ('block.0.conv.', '')
    """
    return name[: name.rfind(".") + 1]


def perturb_means(params: Params, factor: float, generator: torch.Generator) -> Params:
    """Return the parameters with every mean moved by plus or minus `factor` standard deviations.

    mu' = mu ± factor * sigma with a fair coin for each weight; everything else is passed through.

    Args:
        params: one member's parameters.
        factor: the perturbation factor (rho in the paper, 3 there).
        generator: a CPU generator for the coins.

    Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1.
    """
    moved = dict(params)
    for stem, mean, rho in posteriors(params):
        coin = torch.randint(2, mean.shape, generator=generator).to(mean) * 2 - 1
        moved[stem + MEAN] = mean + factor * std_of(rho) * coin
    return moved


def reset_stds(
    params: Params,
    *,
    how: Literal["small", "redraw"] = "small",
    std: float = 1e-6,
    rho: float = -6.0,
    rho_spread: float = 0.05,
    generator: torch.Generator | None = None,
) -> Params:
    """Return the parameters with every posterior made narrow again.

    Args:
        params: one member's parameters.
        how: "small" sets every standard deviation to `std` (the paper), "redraw" draws every rho anew from
            N(rho, rho_spread^2) (the authors' code).
        std: the standard deviation of "small".
        rho: the center of "redraw".
        rho_spread: the standard deviation of rho in "redraw".
        generator: a CPU generator, needed by "redraw".

    Reference: Jantre et al., 2022, arXiv:2206.00794, Algorithm 1.
    """
    if how not in ("small", "redraw"):
        raise InputError(f"how={how!r} is not a way to reset standard deviations; use 'small' or 'redraw'.")
    if how == "redraw" and generator is None:
        raise InputError("how='redraw' draws random numbers: give a generator.")
    narrow = dict(params)
    for stem, _, old in posteriors(params):
        if how == "small":
            narrow[stem + RHO] = torch.full_like(old, rho_of(std))
        else:
            noise = torch.randn(old.shape, generator=generator, dtype=old.dtype)
            narrow[stem + RHO] = (rho + rho_spread * noise).to(old)
    return narrow


def freeze_gates(
    params: Params,
    buffers: Params,
    *,
    rule: Literal["draw", "threshold"] = "draw",
    generator: torch.Generator | None = None,
) -> tuple[Params, Params]:
    """Return parameters and buffers in which every node gate is fixed to 0 or 1.

    The buffer `frozen_gate` takes the value; the logit is set to the matching certainty (gamma of 0 or 1), so that the
    spike-and-slab KL counts kept nodes fully, removed nodes not at all, and moves no gate any more. Gates that are
    frozen already stay as they are.

    Args:
        params: one member's parameters.
        buffers: the same member's buffers.
        rule: "draw" draws each gate from Bernoulli(gamma) (the authors' code), "threshold" keeps gamma > 0.5.
        generator: a CPU generator, needed by "draw".
    """
    if rule not in ("draw", "threshold"):
        raise InputError(f"rule={rule!r} does not say how to freeze gates; use 'draw' or 'threshold'.")
    if rule == "draw" and generator is None:
        raise InputError("rule='draw' draws random numbers: give a generator.")
    params, buffers = dict(params), dict(buffers)
    for name, gate, frozen in _gates(params, buffers):
        if rule == "draw":
            kept = torch.rand(gate.shape, generator=generator, dtype=torch.float64).to(gate.device) < gate.sigmoid()
        else:
            kept = gate > 0
        value = torch.where(frozen < 0, kept.to(frozen), frozen)
        buffers[name + FROZEN] = value
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
    """Return (layer name with its dot, gate logits, frozen values) of every gated layer."""
    names = [layer_of(name) for name in params if name == GATE or name.endswith("." + GATE)]
    return [(name, params[name + GATE], buffers[name + FROZEN]) for name in names]
