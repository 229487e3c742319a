"""DropConnect: drop weights instead of outputs, in training and at prediction.

Reference: Wan et al., "Regularization of Neural Networks using DropConnect", ICML 2013; as an ensemble in Chang et al., 2019,
arXiv:1905.09453, Table 2.
"""

from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import Stochastic


def drop_connect(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    rate: float = 0.1,
    draws: int = 20,
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network whose weights are dropped at random, also at prediction; several passes are averaged.

    Cost: the training of one network; prediction takes `draws` passes.
    """
    return joint("drop_connect", Stochastic, connections=True, **locals())
