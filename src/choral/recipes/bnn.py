"""Mean-field Bayesian network: a Gaussian posterior for every weight, learned by stochastic variational inference.

Reference: Blundell et al., "Weight Uncertainty in Neural Networks", ICML 2015, arXiv:1505.05424; settings of Jantre et
al., 2022, arXiv:2206.00794, appendix B.
"""

from choral.objectives.kl import GaussianKL
from choral.objectives.penalties import Objective
from choral.plan import SGD, Collect, Reset, Schedule, Steps
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, forked, settings_of, total_epochs
from choral.structures import Gaussian

VARIATIONAL = Training(lr=0.1, optimizer=SGD(momentum=0.9, clip=1.0), schedule="steps")


def settling(training: Training) -> Schedule:
    """Return the schedule of a single Bayesian network: 'steps' falls to a tenth at 60 % and 80 %, as in the paper."""
    return Steps(training.peak, milestones=(0.6, 0.8)) if training.schedule == "steps" else training.full()


def bnn(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 1,
    draws: int = 10,
    prior_std: float = 0.2,
    rho: float = -6.0,
    rho_rate: float = 1.0,
    kl_weight: float = 1.0,
    anneal: float = 0.0,
    combine: Combine = "probs",
    training: Training | Paper = VARIATIONAL,
) -> Recipe:
    """One network whose weights are Gaussian, drawn anew in every pass; predictions average several draws.

    Cost: about twice the training and parameters of one network; prediction takes `draws` passes.

    >>> bnn(epochs=60).epochs
    60

    Args:
        members: networks, each with a posterior of its own.
        draws: passes averaged at prediction for each network (1 or 5 in the paper).
        prior_std: standard deviation of the prior on weights, biases, and the scale and shift of normalization.
        rho: where every rho starts; the standard deviation is softplus(rho).
        rho_rate: factor of the learning rate for every rho.
        kl_weight: factor of the KL; 1 is the ELBO.
        anneal: share of training over which the weight of the KL rises from 0.
        epochs, budget, combine: as in `deep_ensemble`.
        training: optimizer, learning rate, batch size and schedule; posteriors take no weight decay, and gradients are clipped at norm
            1 unless it says otherwise.
    """
    epochs = total_epochs(epochs, budget, trainings=members, usual=250)
    training = settings_of(training, VARIATIONAL)
    objective = Objective(penalties=(GaussianKL(prior_std=prior_std, weight=kl_weight, anneal=anneal),))
    chosen = training.clipped(1.0).with_rates(_rho=rho_rate)
    plan = forked(epochs, members, lambda each: (Reset(), chosen.phase(each, settling(training)), Collect()))
    return Recipe(name="bnn", plan=plan, structure=Gaussian(draws=draws, rho=rho), objective=objective, combine=combine)
