"""Bagged ensemble: independent networks, each on its own random part of the training data.

Reference: Breiman, "Bagging Predictors", Machine Learning 24, 1996; 90 % parts as in Whitaker & Whitley, "Prune and
Tune Ensembles", AAAI 2022, arXiv:2202.11782, Table 1.
"""

from choral.plan import Bag, Collect, Reset
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, forked, settings_of, total_epochs


def bagged(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    fraction: float = 0.9,
    replace: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Independent networks, each on its own random 90 % of the training points.

    Cost: training, memory and prediction of `members` networks, each on a part of the points.
    """
    epochs = total_epochs(epochs, budget, trainings=members)
    training = settings_of(training)
    bag = Bag(fraction=fraction, replace=replace)
    plan = forked(epochs, members, lambda each: (Reset(), bag, training.phase(each), Collect()))
    return Recipe(name="bagged", plan=plan, combine=combine)
