"""MotherNets: train a narrow network once, hatch wider members that begin as the same function, and tune each.

Reference: Wasay et al., "MotherNets: Rapid Deep Ensemble Learning", MLSys 2020, arXiv:1809.04270, sections 2.1 to 2.3.
"""

from choral.base.values import Inside
from choral.plan import Collect, Compact, Hatch, Prune, RandomMasks, Reset, fork, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, too_few, total_epochs


def mothernets(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 4,
    mother_epochs: int | None = None,
    size: Inside = 0.5,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """A narrow mother is trained; members are hatched from it by widening and tuned each.

    Cost: less than the training of one network, as the mother is smaller; prediction of `members` networks.

    Args:
        epochs: of the whole run; the mother gets half of them, and members share the rest.
        members: networks of the given width.
        mother_epochs: epochs of the mother.
        size: share of the neurons of every hidden layer that the mother has.
        training: of the mother and of each member; a member's schedule starts anew.

    Differs from the paper: all members have the same layers, those of the network that is given, so the mother is chosen by
    `size` instead of being the largest network that different members contain.
    """
    total, settings = total_epochs(epochs, budget), settings_of(training)
    mother = max(1, total // 2) if mother_epochs is None else mother_epochs
    each = (total - mother) // members
    if each < 1 or mother < 1:
        raise too_few(total, f"a mother and {members} members of at least 1 epoch each", members + max(mother, 1))
    mother += total - mother - members * each if mother_epochs is None else 0
    narrow = Prune(masks=RandomMasks(sparsity=1 - size), unit="neuron", keep_first=False)
    tune = settings.phase(each, least_steps=FEW_STEPS)
    plan = seq(Reset(), narrow, Compact(), settings.phase(mother), fork(members, Hatch(), tune, Collect()))
    return Recipe(name="mothernets", plan=plan, combine=combine)
