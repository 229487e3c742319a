"""ECMP: like EMP, but every scalar of a patched layer draws its component by itself.

Reference: Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
arXiv:1905.09453, Equation 5.
"""

from typing import Literal

from choral.recipes.emp import patched
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training


def ecmp(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    components: int = 5,
    draws: int = 50,
    norms: bool = True,
    output: bool = True,
    layers: tuple[str, ...] = (),
    learned: bool = False,
    precision: float | None = None,
    statistics: Literal["draw", "shared"] = "draw",
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Like EMP, but every scalar of a patched layer draws its own component.

    Args are those of `emp`.

    Cost: the training of one network; prediction takes `draws` passes.

    >>> ecmp(epochs=60).epochs
    60
    """
    return patched("ecmp", assignment="scalar", **locals())
