"""Hyper-ensemble: networks that also differ in hyper-parameters, of which the best combination is selected.

Reference: Wenzel et al., "Hyperparameter Ensembles for Robustness and Uncertainty Quantification", NeurIPS 2020, arXiv:2006.13570,
section 3 (random draws, then greedy selection with replacement).
"""

from choral.plan import Collect, LogUniform, Reset, Select, Space, fork
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, shares, total_epochs

SPACE = Space(rate=LogUniform(0.3, 3.0), weight_decay=LogUniform(1e-5, 1e-2))
"""Times the rate of the schedule, and weight decay: what every network and optimizer has."""


def hyper_ensemble(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 8,
    space: Space = SPACE,
    picks: int = 32,
    patience: int = 32,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Independent networks with random hyper-parameters, selected and weighted on held-out rows during training.

    Cost: training, memory and prediction of `members` networks.

    Args:
        members: networks trained; those that are not selected are not members of the ensemble.
        space: the distribution of settings (`choral.plan.Space`): rate, weight_decay, momentum, dropout, smoothing, and those that
            operators read.

    Differs from the paper: selection is repeated after every epoch; each network has one draw of initialization.
    """
    epochs = total_epochs(epochs, budget, trainings=members)
    training = settings_of(training)
    each = training.phase(shares(epochs, members)[-1][1], select=Select(picks=picks, patience=patience))
    return Recipe(name="hyper_ensemble", plan=fork(members, Reset(), each, Collect(), sample=space), combine=combine)
