"""Rank-1 Bayesian network: members share every weight and own Gaussian rank-one factors.

Reference: Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from choral.objectives.kl import GaussianKL
from choral.objectives.penalties import Objective
from choral.plan import Collect, Reset, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, total_epochs
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

    >>> rank1_bnn(members=4, epochs=60).members
    4

    Args:
        epochs: length of the training run. All members train together.
        members: components of the mixture.
        draws: passes averaged at prediction for each member (4 in the paper).
        prior_std: standard deviation of the prior N(1, prior_std^2) on the factors.
        rho: where every rho starts; the standard deviation is softplus(rho).
        anneal: share of training over which the weight of the KL rises from 0 to 1.
        combine: as in `choral.recipes.recipe.Recipe`.
        training: optimizer, learning rate, batch size and schedule; weight decay acts on the shared weights and biases, and gradients
            are clipped at norm 1 unless it says otherwise.

    Differs from the paper: gradients are clipped, because the losses of members add up in the weights they share.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training)
    objective = Objective(penalties=(GaussianKL(prior_mean=1.0, prior_std=prior_std, anneal=anneal),))
    structure = RankOneGaussian(members=members, draws=draws, rho=rho)
    plan = seq(Reset(), training.clipped(1.0).phase(epochs), Collect())
    return Recipe(name="rank1_bnn", plan=plan, structure=structure, objective=objective, combine=combine)
