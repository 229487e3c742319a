"""DST ensemble: sparse networks trained from scratch, each moving its few weights to where the gradient wants them.

Reference: Liu et al., "Deep Ensembling with No Overhead for either Training or Testing: The All-Round Blessings of Dynamic
Sparsity", ICLR 2022, arXiv:2106.14568, section 3.1; Evci et al., 2020, arXiv:1911.11134 for the updates.
"""

from choral.plan import Collect, ErdosRenyi, Every, Prune, Regrow, Reset
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import Paper, Training, forked, settings_of, total_epochs


def dst(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 3,
    sparsity: float = 0.8,
    interval: int = 1000,
    rate: float = 0.5,
    moving: float = 1.0,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Independent sparse networks whose connections move while they train.

    Cost: training, memory and prediction of `members` networks, each a sparse one.

    >>> dst(members=4, epochs=60).members
    4

    Args:
        members: networks trained.
        sparsity: share of weights that are zero at any time (Erdos-Renyi-Kernel densities).
        interval: steps between two moves.
        rate: share of living weights moved each time.
        moving: part of training in which connections move: all of it in the authors' code, 0.75 in Evci et al.
        epochs, budget, combine, training: as in `deep_ensemble`.
    """
    epochs = total_epochs(epochs, budget, trainings=members, usual=150)
    training = settings_of(training)
    move = Every(count=interval, phase=Regrow(rate=rate), stop=moving)
    cut = Prune(masks=ErdosRenyi(sparsity=sparsity))
    plan = forked(epochs, members, lambda each: (Reset(), cut, training.phase(each, every=(move,)), Collect()))
    return Recipe(name="dst", plan=plan, combine=combine)
