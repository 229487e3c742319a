"""Stochastic weight averaging: one network at the mean of the weights of its last epochs.

Reference: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018,
arXiv:1803.05407, Algorithm 1.
"""

from choral.base.errors import InputError
from choral.plan import Collect, Constant, Linear, Phase, Recalibrate, Reset, UpdateMoments, UseMean, every, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, total_epochs


def averaged(
    epochs: int | None, budget: int | None, training: Training | Paper, *, start: float, rank: int = 0
) -> tuple[Phase, ...]:
    """Return the phases of SWA and SWAG: train down to half the rate, then average at that constant rate."""
    epochs, training = total_epochs(epochs, budget), settings_of(training)
    first = round(start * epochs)
    if epochs - first < 2:
        raise InputError(
            f"epochs is {epochs}, too few: averaging needs at least 2 epochs after the first {start:.0%}; "
            f"give at least {-(-2 // (1 - start)):.0f} epochs."
        )
    half = training.peak / 2
    down = training.phase(first, Linear(((0.0, training.peak), (0.6, training.peak), (1.0, half))))
    collect = (every(1, UpdateMoments(rank=rank), unit="epochs"),)
    level = training.phase(epochs - first, Constant(half), memory="carried", every=collect, least_steps=2 * FEW_STEPS)
    return Reset(), down, level


def swa(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 1,
    start: float = 0.75,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network with the average of the weights at the ends of its last epochs.

    Cost: training and prediction of one network.

    Args:
        members: always 1; accepted so that every recipe takes the same arguments.
        start: share of the budget before averaging begins.
        training: averaging runs at half its learning rate; its schedule is not used.
    """
    if members != 1:
        raise InputError(f"members is {members}, but 'swa' gives one averaged network; use 'swag' for several.")
    plan = seq(*averaged(epochs, budget, training, start=start), UseMean(), Recalibrate(), Collect())
    return Recipe(name="swa", plan=plan, combine=combine)
