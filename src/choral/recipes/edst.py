"""EDST ensemble: one sparse run that settles, is kept, is shaken out of its minimum, and settles again.

Reference: Liu et al., "Deep Ensembling with No Overhead for either Training or Testing: The All-Round Blessings of Dynamic
Sparsity", ICLR 2022, arXiv:2106.14568, section 3.2.
"""

from choral.errors import InputError
from choral.plan import Collect, Constant, Prune, Regrow, Reset, every, repeat, seq
from choral.recipe import Recipe
from choral.training import Training


def edst(
    *,
    epochs: int = 450,
    members: int = 3,
    sparsity: float = 0.8,
    interval: int = 1000,
    rate: float = 0.5,
    escape: float = 0.8,
    training: Training = Training(),
) -> Recipe:
    """One dynamic sparse run: explore, then settle, keep a member and move 80 % of the weights, again and again.

    Args:
        epochs: total budget: a third explores (150 of 450), the rest is split over the members.
        members: networks kept.
        sparsity: share of weights that are zero at any time (Erdos-Renyi-Kernel densities).
        interval: steps between two moves.
        rate: share of living weights moved each time.
        escape: share moved after a member is kept, to leave its minimum.
        training: optimiser, rate (of the exploration; members settle at a tenth, then a hundredth) and batch size.

    Differs from the authors' code: grown weights also start with zero momentum.
    """
    settle = (epochs - epochs // 3) // members if members > 0 else 0
    if members < 1 or settle < 2:
        raise InputError(
            f"epochs is {epochs}, too few for {members} members: each needs at least 2 epochs after a third of exploration; "
            f"give at least {3 * max(members, 1)} epochs or fewer members."
        )
    move = (every(interval, Regrow(rate=rate)),)
    explore = training.phase(epochs - members * settle, Constant(training.rate), every=move)
    first = training.phase(settle - settle // 2, Constant(training.rate / 10), every=move)
    second = training.phase(settle // 2, Constant(training.rate / 100), memory="carried", every=move)
    kept = (first, second, Collect())
    plan = seq(
        Reset(),
        Prune(pruning="erk", sparsity=sparsity),
        explore,
        repeat(members - 1, *kept, Regrow(rate=escape)),
        *kept,
    )
    return Recipe(name="edst", plan=plan)
