"""Rank-1 Bayesian network: members share every weight and own Gaussian rank-one factors.

Reference: Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from choral.objectives.kl import GaussianKL
from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training, settings_of
from choral.structures import RankOneGaussian


def rank1_bnn(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    draws: int = 4,
    prior_std: float = 0.1,
    rho: float = -6.0,
    anneal: float = 0.8,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network shared by members that each own two Gaussian vectors in every layer.

    Cost: the parameters of about one network; each batch is run through all `members`, prediction `draws` times.

    Args:
        members: components of the mixture.
        prior_std: standard deviation of the prior N(1, prior_std^2) on the factors.
        anneal: share of training over which the weight of the KL rises from 0 to 1.
        training: weight decay applies to the shared weights and biases; gradients are clipped at norm 1 by default.

    Differs from the paper: gradients are clipped, because the losses of members add up in the weights they share.
    """
    options = locals() | {"training": settings_of(training).clipped(1.0)}
    kl = GaussianKL(prior_mean=1.0, prior_std=options.pop("prior_std"), anneal=options.pop("anneal"))
    return joint("rank1_bnn", RankOneGaussian, penalties=(kl,), **options)
