"""TreeNet: a shared trunk and a branch for each member.

Reference: Lee et al., "Why M Heads are Better than One: Training a Diverse Ensemble of Deep Networks", 2015,
arXiv:1511.06314, section 4.
"""

from choral.recipes.recipe import Combine, Recipe, joint
from choral.recipes.training import Paper, Training
from choral.structures import TreeNet


def treenet(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    start: str = "",
    branches: tuple[str, ...] = (),
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Members that share the first layers and own the last ones.

    Cost: one network for the shared layers, `members` networks for the others.
    """
    return joint("treenet", TreeNet, **locals())
