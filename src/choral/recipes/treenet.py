"""TreeNet: a shared trunk and a branch for each member.

Reference: Lee et al., "Why M Heads are Better than One: Training a Diverse Ensemble of Deep Networks", 2015,
arXiv:1511.06314, section 4.
"""

from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, total_epochs
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
    """Members that share the first layers and have the last ones to themselves.

    Cost: one network for the shared layers, `members` networks for the others.

    >>> treenet(members=4, epochs=60).members
    4

    Args:
        members: branches.
        start: name of the first layer that is not shared; the output layer alone if nothing is said.
        branches: instead of start, name patterns of all layers that are not shared.
        pretrained: start from the weights of the network handed to fit.
        epochs, combine, training: as in `single`.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training)
    structure = TreeNet(members=members, start=start, branches=branches)
    return Recipe(
        name="treenet", plan=training.whole(epochs, pretrained=pretrained), structure=structure, combine=combine
    )
