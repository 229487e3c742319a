"""Horizontal voting: the networks at the ends of the last epochs of one training.

Reference: Xie, Xu & Zhang, "Horizontal and Vertical Ensemble with Deep Representation for Classification", 2013,
arXiv:1306.2759, section 2.
"""

from choral.plan import Collect, Part, Phase, Reset, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, settings_of, too_few, total_epochs

LEVEL = Training(schedule="linear_drop")
"""The last tenth of a training has a constant, low rate: the paper votes over epochs whose error is stable."""


def horizontal_voting(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 5,
    combine: Combine = "probs",
    training: Training | Paper = LEVEL,
) -> Recipe:
    """One training run; the networks at the ends of its last epochs are the members.

    Cost: the training of one network; prediction of `members` networks.

    Args:
        members: number of last epochs that give a member.
        training: its schedule runs once over all epochs; if it ends at 0, members hardly differ.
    """
    total, settings = total_epochs(epochs, budget), settings_of(training, LEVEL)
    if total < members:
        raise too_few(total, f"{members} members, one at the end of each of the last epochs", members)
    ends = range(total - members + 1, total + 1)
    phases: list[Phase] = [Reset()]
    for start, end in zip((0, *ends), ends):
        later = {"memory": "carried", "least_steps": 1} if start else {}
        phases += [settings.phase(end - start, Part(settings.full(), start / total, end / total), **later), Collect()]
    return Recipe(name="horizontal_voting", plan=seq(*phases), combine=combine)
