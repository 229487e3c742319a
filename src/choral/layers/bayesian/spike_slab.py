"""Layers with a node spike-and-slab posterior: Gaussian weights behind one Bernoulli gate for each output node.

Node j has a gate z_j ~ Bernoulli(gamma_j) shared by all weights and the bias that enter it. The forward pass uses the
hard gate, eta_j > 0, the backward pass the gradient of the relaxed one, sigmoid(eta_j / temperature), where
eta_j = logit(gamma_j) + log(u / (1 - u)) with u uniform. The buffer `frozen_gate` fixes gates: -1 leaves a gate free, 0
or 1 is its value from then on (`choral.objectives.kl.freeze_gates`). Within `choral.layers.bayesian.sampling.at_means` a node is
in when gamma is above one half. The penalty that belongs to these layers is `choral.objectives.kl.SpikeSlabKL`.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, section 3.1 and
appendix A.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import draws
from choral.base.errors import InputError
from choral.layers.bayesian.sampling import RHO_START, SAMPLED, SampledLayer, draw, means_wanted
from choral.layers.functional import own_kind

GAMMA_START = 0.99


class SpikeSlabLayer(SampledLayer):
    """A linear map or convolution with Gaussian weights and a gate for each output node.

    Args:
        layer, rho, keep_weights, generator: as in `choral.layers.bayesian.sampling.SampledLayer`.
        gamma: inclusion probability every node starts with, between 0 and 1, ends excluded.
        temperature: of the relaxed gate (tau).
        sampled_gates: whether gates are drawn in evaluation mode too. If not, a node is in or out there as is more likely
            (the median probability model), and only weights are drawn. BatchNorm behind a gated layer needs that: its running
            variance also counts the passes in which a node was out, so a node that is rarely in would be blown up by 1 /
            sqrt(gamma) whenever it is drawn.

    >>> layer = SpikeSlabLayer(nn.Linear(3, 2))
    >>> [round(gamma, 2) for gamma in layer.gate_logit.sigmoid().tolist()]
    [0.99, 0.99]
    """

    frozen_gate: Tensor

    def __init__(
        self,
        layer: nn.Module,
        *,
        rho: float = RHO_START,
        keep_weights: bool = False,
        gamma: float = GAMMA_START,
        temperature: float = 0.5,
        sampled_gates: bool = False,
        generator: torch.Generator | None = None,
    ):
        if not 0 < gamma < 1:
            raise InputError(f"gamma={gamma!r}, but an inclusion probability starts between 0 and 1, ends excluded.")
        super().__init__(layer, rho=rho, keep_weights=keep_weights, generator=generator)
        self.temperature = temperature
        self.sampled_gates = sampled_gates
        free = self.weight_mean.new_full(self.weight_mean.shape[:1], -1.0)
        self.gate_logit = nn.Parameter(torch.full_like(free, math.log(gamma) - math.log1p(-gamma)))
        self.register_buffer("frozen_gate", free)

    def gate(self) -> Tensor:
        """Return the gates of one pass, exactly 0 or 1; if they are drawn, with the gradient of the relaxed gates."""
        if means_wanted() or not (self.training or self.sampled_gates):
            drawn = (self.gate_logit > 0).to(self.gate_logit.dtype)
        else:
            u = draws.uniform(self.gate_logit.shape, like=self.gate_logit)
            eta = self.gate_logit + u.log() - (-u).log1p()
            relaxed = (eta / self.temperature).sigmoid()
            drawn = (eta > 0).to(eta.dtype) + (relaxed - relaxed.detach())
        return torch.where(self.frozen_gate < 0, drawn, self.frozen_gate)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output under one draw of the gates and weights."""
        weight, bias, gate = draw(self.weight_mean, self.weight_rho), draw(self.bias_mean, self.bias_rho), self.gate()
        weight = weight * gate.view((-1,) + (1,) * (weight.dim() - 1))
        return self.operate(x, weight, None if bias is None else bias * gate)

    def plain(self) -> nn.Module:
        """Return a plain layer with the posterior means as weights, zero for nodes that are out."""
        gate = torch.where(self.frozen_gate < 0, (self.gate_logit > 0).to(self.frozen_gate), self.frozen_gate)
        weight = self.weight_mean * gate.view((-1,) + (1,) * (self.weight_mean.dim() - 1))
        return self.plain_layer(weight, None if self.bias_mean is None else self.bias_mean * gate)


def spike_slab_twin(layer: nn.Module, **options: Any) -> SpikeSlabLayer | None:
    """Return the spike-and-slab layer that stands for a plain linear map or convolution, or None for anything else.

    Args:
        layer: any module.
        **options: those of `SpikeSlabLayer`.
    """
    return None if own_kind(layer, SAMPLED) is None else SpikeSlabLayer(layer, **options)
