"""SeBayS without freezing: the sparsity found by exploring goes on learning while members settle and are kept.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1;
schedules in appendix G, several branches as its future work proposes.
"""

from typing import Literal

from choral.plan import Recalibrate
from choral.recipes.bnn import VARIATIONAL
from choral.recipes.exploration import Exploitation, GateClipping, Narrowing, gated_recipe
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training


def sebays_no_freeze(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    explore_epochs: int | None = None,
    exploit_epochs: int | None = None,
    members: int = 3,
    branches: int = 1,
    schedule: Exploitation = "stepwise",
    factor: float = 3.0,
    reset: Narrowing = "redraw",
    memory: Literal["fresh", "carried"] = "fresh",
    recalibrate: bool = False,
    draws: int = 5,
    prior_std: float = 0.2,
    inclusion: float = 1e-4,
    gamma: float = 0.99,
    temperature: float = 0.5,
    rho: float = -6.0,
    clip_gates: GateClipping = "apart",
    rho_rate: float = 1.0,
    gate_rate: float = 1.0,
    kl_weight: float = 1.0,
    anneal: float = 0.0,
    combine: Combine = "probs",
    training: Training | Paper = VARIATIONAL,
) -> Recipe:
    """SeBayS whose gates go on learning, so that members differ in their sparsity too.

    Args are those of `sebays_freeze`, without `freeze`; gates at prediction are as in `ssbnn`.

    Cost: about twice the training of one network; prediction takes `members` times `draws` passes.

    >>> sebays_no_freeze(members=3, epochs=60).members
    3
    """
    return gated_recipe("sebays_no_freeze", closing=(Recalibrate(),), **locals())
