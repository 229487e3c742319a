"""Spike-and-slab Bayesian networks: Gaussian weights behind a gate for every node, so that nodes can leave.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, section 3.1.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from choral.base.errors import ConversionError, InputError, did_you_mean
from choral.base.order import output_last
from choral.base.types import Params
from choral.bayes.posteriors import gate_keep
from choral.layers.bayesian.gaussian import gaussian_twin
from choral.layers.bayesian.spike_slab import GAMMA_START, spike_slab_twin
from choral.layers.convert import Replace, fits, layers_of
from choral.structures.gaussian import Sampled

_NODES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class SpikeSlab(Sampled):
    """Gated Gaussian nodes in all convolutions and linear layers but the classifier; Gaussian layers elsewhere.

    Args not listed are those of `Sampled`; the penalty is `choral.objectives.kl.SpikeSlabKL`.

    Args:
        gamma: inclusion probability every node starts with.
        temperature: of the relaxed gates (tau).
        sampled_gates: gates are drawn at prediction too, instead of being open or closed as is more likely; not for
            networks with BatchNorm (see `choral.layers.bayesian.spike_slab.SpikeSlabLayer`).
        gate_classifier: the last layer, which gives the output, gets gates too.
        ungated: patterns of layers that get no gates.
        rest: what layers without gates become: 'gaussian' (as in the authors' code) or 'plain'.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [type(layer).__name__ for layer in SpikeSlab().convert(network, torch.Generator())]
    ['SpikeSlabLinear', 'ReLU', 'GaussianLinear']
    """

    gamma: float = GAMMA_START
    temperature: float = 0.5
    sampled_gates: bool = False
    gate_classifier: bool = False
    ungated: tuple[str, ...] = ()
    rest: Literal["gaussian", "plain"] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rest not in ("gaussian", "plain"):
            raise InputError(f"SpikeSlab: rest={self.rest!r}; use 'gaussian' or 'plain'.")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"SpikeSlab: temperature={self.temperature}; give a finite number above 0.")

    def _twins(self, network: nn.Module, generator: torch.Generator) -> Replace:
        names = [name for name, _ in layers_of(network, _NODES)]
        for pattern in self.ungated:
            if not any(fits(name, (pattern,)) for name in names):
                raise ConversionError(
                    f"SpikeSlab: the pattern {pattern!r} in ungated fits no linear or convolution layer; the network "
                    f"has {', '.join(names)}.{did_you_mean(pattern, names)}"
                )
        classifier = output_last(names)[-1] if names and not self.gate_classifier else None

        def twin(name: str, layer: nn.Module) -> nn.Module | None:
            if name != classifier and not fits(name, self.ungated):
                gated = spike_slab_twin(
                    layer,
                    keep_weights=self.keep_weights,
                    rho=self.rho,
                    gamma=self.gamma,
                    temperature=self.temperature,
                    sampled_gates=self.sampled_gates,
                    generator=generator,
                )
                if gated is not None:
                    return gated
            if self.rest == "plain":
                return None
            return gaussian_twin(layer, keep_weights=self.keep_weights, rho=self.rho, generator=generator)

        return twin

    def remaining(self, params: Params, buffers: Params) -> dict[str, float] | None:
        """Return the share of open gates, frozen or more likely open than not, of each layer that has gates."""
        return {name: float(kept.double().mean()) for name, kept in gate_keep(params, buffers).items()}
