"""Deep ensemble: independent networks that differ in initialization and batch order.

Reference: Lakshminarayanan, Pritzel & Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
Ensembles", NeurIPS 2017, arXiv:1612.01474.
"""

from choral.plan import Collect, Reset
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, forked, settings_of, total_epochs


def deep_ensemble(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Independent networks from different random initializations; a budget is split evenly.

    Cost: training, memory and prediction of `members` networks.

    Differs from the paper: no adversarial training.
    """
    epochs = total_epochs(epochs, budget, trainings=members)
    training = settings_of(training)
    plan = forked(epochs, members, lambda each: (Reset(), training.phase(each), Collect()))
    return Recipe(name="deep_ensemble", plan=plan, combine=combine)
