"""MIMO: one network reads several inputs at once and predicts each; at prediction all inputs are the same.

Reference: Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, arXiv:2010.06610.
"""

from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import Mimo


def mimo(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 3,
    repetition: float = 0.0,
    batch_repetition: int = 1,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network with several inputs and outputs, which learns to treat them independently.

    Cost: training and prediction of one network with wider first and last layers.
    """
    return joint("mimo", Mimo, **locals())
