"""Sequential Bayesian ensemble: the phases of SeBayS on a dense mean-field network.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1.
"""

from typing import Literal

from choral.objectives.kl import GaussianKL
from choral.objectives.penalties import Objective
from choral.recipes.bnn import VARIATIONAL
from choral.recipes.exploration import Exploitation, Narrowing, sequential_phases
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of
from choral.structures import Gaussian


def bnn_sequential(
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
    rho: float = -6.0,
    rho_rate: float = 1.0,
    kl_weight: float = 1.0,
    anneal: float = 0.0,
    combine: Combine = "probs",
    training: Training | Paper = VARIATIONAL,
) -> Recipe:
    """One mean-field Bayesian run that settles, is kept and is perturbed, again and again; nothing is pruned.

    Args are those of `sebays_freeze`, as far as a dense network has them.

    Cost: about twice the training of one network; prediction takes `members` times `draws` passes.

    >>> bnn_sequential(members=3, epochs=60).members
    3
    """
    options = locals() | {"training": settings_of(training, VARIATIONAL).with_rates(_rho=rho_rate)}
    plan = sequential_phases((), **options)
    objective = Objective(penalties=(GaussianKL(prior_std=prior_std, weight=kl_weight, anneal=anneal),))
    return Recipe(
        name="bnn_sequential", plan=plan, structure=Gaussian(draws=draws, rho=rho), objective=objective, combine=combine
    )
