"""Spike-and-slab Bayesian network: Gaussian weights with a gate for every node, so that the network prunes itself.

Reference: Jantre, Bhattacharya & Maiti, "Layer Adaptive Node Selection in Bayesian Neural Networks", 2021,
arXiv:2108.11000; as used by Jantre et al., 2022, arXiv:2206.00794, section 3.1 and appendices A and B.
"""

from typing import Any, Literal

from choral.objectives.kl import SpikeSlabKL
from choral.objectives.penalties import Objective
from choral.plan import Recalibrate
from choral.recipes.bnn import VARIATIONAL, variational
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training
from choral.structures import SpikeSlab

GateClipping = Literal["apart", "joint"]
PredictedGates = Literal["median", "drawn"]


def ssbnn(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 1,
    draws: int = 10,
    prior_std: float = 0.2,
    inclusion: float = 1e-4,
    gamma: float = 0.99,
    temperature: float = 0.5,
    rho: float = -6.0,
    clip_gates: GateClipping = "joint",
    gates: PredictedGates = "median",
    rho_rate: float = 1.0,
    gate_rate: float = 1.0,
    kl_weight: float = 1.0,
    anneal: float = 0.0,
    combine: Combine = "probs",
    training: Training | Paper = VARIATIONAL,
) -> Recipe:
    """One Bayesian network with a gate for every neuron and filter; gates whose nodes are not worth their KL close.

    Cost: about twice the training of one network; prediction takes `draws` passes of the remaining network.

    Args:
        members, draws, prior_std, rho_rate, kl_weight, anneal, training: as in `bnn`.
        rho: initial value of every rho. With few rows start wide (-2), or anneal: with narrow posteriors the KL of a node is large, and
            all gates may close.
        clip_gates: 'joint' (the authors' code) clips the gradients of gates by the norm of all gradients, which a closed gate before
            BatchNorm dominates; 'apart' clips them by their own norm.
        gates: 'median' fixes each gate at prediction to its more probable state, and estimates BatchNorm statistics again for that network;
            'drawn' draws gates in every pass and keeps the statistics of training (the authors' code).
        gate_rate: factor of the learning rate for the logits of gates.

    Differs from the paper: 'median' gates, because the statistics of training do not fit a node that is rarely active.
    """
    return variational("ssbnn", spike_slab, () if gates == "drawn" else (Recalibrate(),), **locals())


def spike_slab(**options: Any) -> dict[str, Any]:
    """Return structure and objective of networks with node gates; arguments as in `ssbnn`."""
    drawn = options.get("gates") == "drawn"
    structure = SpikeSlab(sampled_gates=drawn, **{n: options[n] for n in ("draws", "rho", "gamma", "temperature")})
    prior = {n: options[n] for n in ("prior_std", "inclusion", "anneal")}
    return {
        "structure": structure,
        "objective": Objective(penalties=(SpikeSlabKL(weight=options["kl_weight"], **prior),)),
    }
