"""Single: one network trained for the whole budget; the baseline of everything."""

from choral.base.errors import InputError
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, total_epochs


def single(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 1,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One plain network, trained for the whole budget.

    Cost: the unit of all others: one network.

    >>> single(epochs=60).epochs
    60

    Args:
        epochs: length of the training run.
        members: always 1; accepted so that every recipe takes the same arguments.
        combine: as in `choral.recipes.recipe.Recipe`.
        training: optimizer, learning rate, batch size and schedule.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training)
    if members != 1:
        raise InputError(f"members is {members}, but 'single' is one network; use 'deep_ensemble' for several.")
    return Recipe(name="single", plan=training.whole(epochs), combine=combine)
