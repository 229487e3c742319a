"""Snapshot ensemble: one training run with a cyclic rate; a member at the end of every cycle.

Reference: Huang et al., "Snapshot Ensembles: Train 1, Get M for Free", ICLR 2017, arXiv:1704.00109, Equation 2.
"""

from choral.plan import Collect, Cosine, Reset, repeat, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Training, share


def snapshot(
    *, epochs: int = 200, members: int = 5, combine: Combine = "probs", training: Training = Training()
) -> Recipe:
    """One run of cosine cycles restarting at the full rate; a member at each low point.

    Args:
        epochs: total budget; each cycle gets epochs // members.
        members: cycles.
        combine: as in `choral.recipes.recipe.Recipe`.
        training: optimiser, rate (where each cycle starts) and batch size.
    """
    cycle = training.phase(share(epochs, members), Cosine(training.rate), memory="carried")
    return Recipe(name="snapshot", plan=seq(Reset(), repeat(members, cycle, Collect())), combine=combine)
