"""Stochastic weight averaging: one network at the mean of the weights of its last epochs.

Reference: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018,
arXiv:1803.05407, Algorithm 1.
"""

from choral.base.errors import InputError
from choral.plan import Collect, Constant, Linear, Recalibrate, Reset, Train, UpdateMoments, UseMean, every, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, total_epochs


def averaging_phases(epochs: int, rank: int, start: float, training: Training) -> tuple[Train, Train]:
    """Return the two phases of SWA and SWAG: train down to half the rate, then average at that constant rate."""
    first = round(start * epochs)
    if epochs - first < 2:
        raise InputError(
            f"epochs is {epochs}, too few: averaging needs at least 2 epochs after the first {start:.0%}; "
            f"give at least {-(-2 // (1 - start)):.0f} epochs."
        )
    half = training.peak / 2
    down = training.phase(first, Linear(((0.0, training.peak), (0.6, training.peak), (1.0, half))))
    collect = every(1, UpdateMoments(rank=rank), unit="epochs")
    return down, training.phase(
        epochs - first, Constant(half), memory="carried", every=(collect,), least_steps=2 * FEW_STEPS
    )


def swa(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 1,
    start: float = 0.75,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network at the average of the weights at the ends of its last epochs.

    Cost: training and prediction of one network.

    >>> swa(epochs=60).epochs
    60

    Args:
        members: always 1; accepted so that every recipe takes the same arguments.
        start: part of the budget before averaging begins.
        epochs, combine: as in `single`.
        training: optimizer, learning rate and batch size; averaging runs at half the rate.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training)
    if members != 1:
        raise InputError(f"members is {members}, but 'swa' gives one averaged network; use 'swag' for several.")
    down, level = averaging_phases(epochs, 0, start, training)
    return Recipe(name="swa", plan=seq(Reset(), down, level, UseMean(), Recalibrate(), Collect()), combine=combine)
