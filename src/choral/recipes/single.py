"""Single: one network trained for the whole budget; the baseline of comparisons."""

from choral.base.errors import InputError
from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import Independent


def single(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 1,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One plain network, trained for the whole budget.

    Cost: one network, the unit of all other costs.

    Args:
        members: always 1; accepted so that every recipe takes the same arguments.
    """
    if members != 1:
        raise InputError(f"members is {members}, but 'single' is one network; use 'deep_ensemble' for several.")
    return joint("single", Independent, epochs=epochs, budget=budget, combine=combine, training=training)
