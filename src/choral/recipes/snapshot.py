"""Snapshot ensemble: one training run with a cyclic learning rate; a member at the end of every cycle.

Reference: Huang et al., "Snapshot Ensembles: Train 1, Get M for Free", ICLR 2017, arXiv:1704.00109, Equation 2.
"""

import functools

from choral.plan import Collect, Cosine, Reset, repeat, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, shares, total_epochs


def snapshot(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 5,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One run of cosine cycles, each restarting at the full learning rate; a member at the end of each cycle.

    Cost: the training of one network; prediction of `members` networks.

    Args:
        members: number of cycles, which share the epochs evenly; the first ones are longer if necessary.
        training: each cycle starts at its learning rate; its schedule is not used.
    """
    train = functools.partial(settings_of(training).phase, memory="carried", least_steps=2 * FEW_STEPS)
    falling = Cosine(settings_of(training).peak)
    cycles = [repeat(n, train(each, falling), Collect()) for n, each in shares(total_epochs(epochs, budget), members)]
    return Recipe(name="snapshot", plan=seq(Reset(), *cycles), combine=combine)
