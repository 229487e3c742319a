"""MC dropout: keep dropout on at prediction and average several passes.

Reference: Gal & Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning", ICML
2016, arXiv:1506.02142.
"""

from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import Stochastic


def mc_dropout(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    rate: float | None = 0.1,
    draws: int = 20,
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network with dropout that stays on at prediction; several passes are averaged.

    Cost: the training of one network; prediction takes `draws` passes.
    """
    return joint("mc_dropout", Stochastic, **locals())
