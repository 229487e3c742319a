"""SWAG: draw members from a Gaussian fitted to the weights of the last epochs.

Reference: Maddox et al., "A Simple Baseline for Bayesian Uncertainty in Deep Learning", NeurIPS 2019,
arXiv:1902.02476, Algorithm 1.
"""

from choral.plan import Collect, DrawMoments, Recalibrate, fork, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.swa import averaged
from choral.recipes.training import Paper, Training


def swag(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 20,
    rank: int = 20,
    scale: float = 0.5,
    start: float = 0.75,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Members drawn from a low-rank plus diagonal Gaussian around the average of the last epochs.

    Cost: the training of one network; prediction of `members` networks, drawn after training.

    Args:
        members: number of draws; they take no training, but BatchNorm statistics are estimated again for each.
        rank: number of last deviations kept (K).
        scale: factor of the covariance; 0.5 is the paper's formula.
        start: share of the budget before collecting begins.
        training: collecting runs at half its learning rate; its schedule is not used.
    """
    draw = fork(members, DrawMoments(scale=scale), Recalibrate(), Collect())
    plan = seq(*averaged(epochs, budget, training, start=start, rank=rank), draw)
    return Recipe(name="swag", plan=plan, combine=combine)
