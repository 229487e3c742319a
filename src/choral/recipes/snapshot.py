"""Snapshot ensemble: one training run with a cyclic rate; a member at the end of every cycle.

Reference: Huang et al., "Snapshot Ensembles: Train 1, Get M for Free", ICLR 2017, arXiv:1704.00109, Equation 2.
"""

from choral.plan import Collect, Cosine, Reset, Train, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, repeated, settings_of, total_epochs


def snapshot(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 5,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One run of cosine cycles restarting at the full rate; a member at each low point.

    Cost: the training of one network; prediction of `members` networks.

    >>> snapshot(members=4, epochs=60).members
    4

    Args:
        epochs: length of the training run. Shared evenly by the cycles, the first ones longer where it cannot be.
        members: cycles.
        combine: as in `choral.recipes.recipe.Recipe`.
        training: optimizer, learning rate (where each cycle starts) and batch size.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training)

    def cycle(epochs: int) -> tuple[Train, Collect]:
        return training.phase(epochs, Cosine(training.peak), memory="carried", least_steps=2 * FEW_STEPS), Collect()

    return Recipe(name="snapshot", plan=seq(Reset(), *repeated(epochs, members, cycle)), combine=combine)
