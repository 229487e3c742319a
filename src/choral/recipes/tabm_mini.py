"""TabM-mini: one shared perceptron for tables, before which each member scales the inputs in a way of its own.

Reference: Gorishniy, Kotelnikov & Babenko, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling", ICLR 2025,
arXiv:2410.24210, section 3; settings of the authors' package.
"""

from dataclasses import replace
from typing import Literal

from choral.recipes.recipe import Combine, Recipe
from choral.recipes.tabm import TRAINING, tabm
from choral.recipes.training import Paper, Training
from choral.structures import TabM


def tabm_mini(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 32,
    start: Literal["auto", "signs", "normal"] = "auto",
    own_batches: bool = False,
    kernel: Literal["auto", "loop", "grouped", "matmul"] = "auto",
    combine: Combine = "probs",
    training: Training | Paper = TRAINING,
) -> Recipe:
    """Members that differ in factors of the inputs and in output layers, and share all else, for tables.

    Cost: the parameters of one network; each batch is run through all `members`.

    >>> tabm_mini(members=4, epochs=60).members
    4

    Args:
        epochs, members, start, own_batches, kernel, combine, training: as in `tabm`.
    """
    structure = TabM(members=members, adapters="first", start=start, own_batches=own_batches, kernel=kernel)
    recipe = tabm(epochs=epochs, budget=budget, combine=combine, training=training)
    return replace(recipe, name="tabm_mini", structure=structure)
