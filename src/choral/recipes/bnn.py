"""Mean-field Bayesian network: a Gaussian posterior for every weight, learned by stochastic variational inference.

Reference: Blundell et al., "Weight Uncertainty in Neural Networks", ICML 2015, arXiv:1505.05424; settings of Jantre et
al., 2022, arXiv:2206.00794, appendix B.
"""

from collections.abc import Callable
from typing import Any

from choral.objectives.kl import GATE, GaussianKL
from choral.objectives.penalties import Objective
from choral.plan import SGD, Collect, Operator, Reset, Steps
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, forked, settings_of, total_epochs
from choral.structures import Gaussian

VARIATIONAL = Training(lr=0.1, optimizer=SGD(momentum=0.9, clip=1.0), schedule="steps")


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
    """One network with Gaussian weights, drawn anew in every pass; predictions average several draws.

    Cost: about twice the training and parameters of one network; prediction takes `draws` passes.

    Args:
        members: networks, each with its own posterior.
        prior_std: standard deviation of the prior on weights, biases, and the scale and shift of normalization.
        rho_rate: factor of the learning rate for every rho.
        kl_weight: factor of the KL; 1 is the ELBO.
        anneal: share of training over which the weight of the KL rises from 0.
        training: posteriors have no weight decay; gradients are clipped at norm 1 by default.
    """
    return variational("bnn", gaussian, **locals())


def gaussian(
    *, draws: int, rho: float, prior_std: float, kl_weight: float, anneal: float, **others: Any
) -> dict[str, Any]:
    """Return structure and objective of networks with Gaussian posteriors; arguments as in `bnn`."""
    kl = GaussianKL(prior_std=prior_std, weight=kl_weight, anneal=anneal)
    return {"structure": Gaussian(draws=draws, rho=rho), "objective": Objective(penalties=(kl,))}


def settings(
    training: Training | Paper, *, rho_rate: float, gate_rate: float = 1.0, clip_gates: str = "joint", **others: Any
) -> Training:
    """Return training settings for posteriors: separate rates, and gradients clipped at norm 1, with those of gates jointly or apart."""
    chosen = settings_of(training, VARIATIONAL).clipped(1.0).with_rates(_rho=rho_rate, gate_logit=gate_rate)
    return chosen.clipped_apart(f"*{GATE}") if clip_gates == "apart" else chosen


def variational(
    name: str,
    posterior: Callable[..., dict[str, Any]],
    after: tuple[Operator, ...] = (),
    *,
    epochs: int | None,
    budget: int | None,
    members: int,
    combine: Combine,
    training: Training | Paper,
    **options: Any,
) -> Recipe:
    """Return the recipe of separately trained networks with posteriors.

    Args:
        name: the method's name.
        posterior: returns structure and objective for the `options`.
        after: operators applied to each trained network.
        epochs, budget, members, combine, training, options: as in `bnn` or `ssbnn`.
    """
    chosen = settings(training, **options)
    shape = Steps(chosen.peak, milestones=(0.6, 0.8)) if chosen.schedule == "steps" else None  # those of the paper
    total = total_epochs(epochs, budget, trainings=members, usual=250)
    plan = forked(total, members, lambda each: (Reset(), chosen.phase(each, shape), *after, Collect()))
    return Recipe(name=name, plan=plan, combine=combine, **posterior(**options))
