"""Sequential Bayesian ensemble: the phases of SeBayS on a dense mean-field network.

Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1.
"""

from choral.exploration import Exploitation, Narrowing, sequential_phases
from choral.objectives.combine import Objective
from choral.objectives.kl import GaussianKL
from choral.recipe import Recipe
from choral.recipes.bnn import VARIATIONAL
from choral.structures import Gaussian
from choral.training import Training


def bnn_sequential(
    *,
    epochs: int = 450,
    members: int = 3,
    branches: int = 1,
    schedule: Exploitation = "stepwise",
    factor: float = 3.0,
    reset: Narrowing = "redraw",
    recalibrate: bool = False,
    draws: int = 5,
    prior_std: float = 0.2,
    rho: float = -6.0,
    training: Training = VARIATIONAL,
) -> Recipe:
    """One mean-field Bayesian run that settles, is kept and is perturbed, again and again; nothing is pruned.

    Args are those of `sebays_freeze`, as far as a dense network has them.
    """
    plan = sequential_phases(
        (),
        epochs=epochs,
        members=members,
        branches=branches,
        schedule=schedule,
        factor=factor,
        reset=reset,
        rho=rho,
        recalibrate=recalibrate,
        training=training,
    )
    objective = Objective(penalties=(GaussianKL(prior_std=prior_std),))
    return Recipe(name="bnn_sequential", plan=plan, structure=Gaussian(draws=draws, rho=rho), objective=objective)
