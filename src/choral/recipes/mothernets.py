"""MotherNets: train a narrow network once, widen it into members that begin as the same function, and train each briefly.

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
    """A narrow mother network is trained; members are widened copies of it, each trained briefly.

    Cost: less than the training of one network, since the mother is smaller; prediction of `members` networks.

    Args:
        epochs: epochs of the whole run; by default the mother gets half of them, and members share the rest.
        members: networks of the full width.
        mother_epochs: epochs of the mother.
        size: share of the neurons of every hidden layer that the mother has.
        training: settings of the mother and of each member; a member's schedule starts anew.

    Differs from the paper: all members have the layers of your network, so `size` determines the mother, not the largest network that
    different members contain.
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
