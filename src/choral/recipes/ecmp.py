"""ECMP: like EMP, but every scalar of a patched layer draws its component by itself.

Reference: Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
arXiv:1905.09453, Equation 5.
"""

from typing import Literal

from choral.layers.bayesian.patched import Mixture
from choral.objectives.penalties import Objective, PatchedL2
from choral.plan import RecalibrateDraws
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, total_epochs
from choral.structures import Patched


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
    epochs = total_epochs(epochs, budget)
    training = settings_of(training)
    mixture = Mixture(components=components, assignment="scalar", learned=learned)
    structure = Patched(
        mixture=mixture,
        draws=draws,
        norms=norms,
        output=output,
        include=layers,
        keep_weights=pretrained,
        statistics=statistics,
    )
    after = (RecalibrateDraws(),) if statistics == "draw" else ()
    penalties = () if precision is None else (PatchedL2(precision=precision),)
    return Recipe(
        name="ecmp",
        plan=training.whole(epochs, pretrained=pretrained, after=after),
        structure=structure,
        objective=Objective(penalties=penalties),
        combine=combine,
    )
