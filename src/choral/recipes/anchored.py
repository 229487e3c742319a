"""Anchored ensemble: each member is regularized towards its own draw from the prior, so that members approximate the posterior.

Reference: Pearce, Leibfried & Brintrup, "Uncertainty in Neural Networks: Approximately Bayesian Ensembling", AISTATS
2020, arXiv:1810.05546; Algorithm 1 of Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649.
"""

from typing import Any

from choral.objectives.penalties import Anchored, Objective
from choral.plan import Adam, Collect, DrawAnchor, DrawTargetShift, Operator, Reset
from choral.plan.bayes import IID
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, forked, settings_of, total_epochs

SCALED_STD = 3 * 2**0.5
ADAM = Training(optimizer=Adam())
AUTHORS = Training(lr=0.002145, optimizer=Adam(betas=(0.8547, 0.9997)), batch_size=155, end=6.03e-5)
"""Of a residual network on CIFAR-10, in the authors' code."""


def prior_of(prior_std: float | None) -> dict[str, Any]:
    """Return the prior of an anchored ensemble: scaled to the network if no standard deviation is given."""
    return {"prior_std": SCALED_STD, "scaled": True} if prior_std is None else {"prior_std": prior_std}


def anchored(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int | None = None,
    prior_std: float | None = None,
    target_noise: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = ADAM,
) -> Recipe:
    """Independent networks, each regularized towards its own anchor drawn from the prior.

    Cost: training, memory and prediction of `members` networks.

    Args:
        members: networks trained; by default 4, or one for every 100 epochs of a budget, but at least 2.
        prior_std: standard deviation of the Gaussian prior on every parameter; the authors use 0.2 ** 0.5 for residual networks on
            CIFAR-10. None scales the prior to the network: 3 sqrt(2 / inputs of a unit), three times the standard deviation of usual
            initial weights, and 3 sqrt(2) for vectors. With a third of it, members learn too little from a thousand rows.
        target_noise: also add noise of the likelihood, Gaussian with known precision, to each member's targets. This makes the ensemble
            of a linear model exact; the paper does not.
        training: its weight decay is ignored, because the anchor is the prior.

    Differs from the authors' code: the last weights are kept, not those that were best on validation data.
    """
    members = max(2, budget // 100) if members is None and budget is not None else members or 4
    epochs = total_epochs(epochs, budget, trainings=members)
    training = settings_of(training, AUTHORS)
    prior = prior_of(prior_std)
    draw: list[Operator] = [DrawAnchor(walk=IID(), **prior)]
    draw += [DrawTargetShift(walk=IID(), **prior)] if target_noise else []
    pulled = training.without_decay()
    plan = forked(epochs, members, lambda each: (Reset(), *draw, pulled.phase(each), Collect()))
    return Recipe(name="anchored", plan=plan, objective=Objective(penalties=(Anchored(**prior),)), combine=combine)
