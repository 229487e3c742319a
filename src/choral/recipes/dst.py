"""DST and EDST ensembles: sparse networks whose connections move during training, independent or in one run.

Reference: Liu et al., "Deep Ensembling with No Overhead for either Training or Testing: The All-Round Blessings of Dynamic
Sparsity", ICLR 2022, arXiv:2106.14568, sections 3.1 and 3.2; Evci et al., 2020, arXiv:1911.11134 for the updates.
"""

from typing import Any

from choral.plan import Collect, Constant, ErdosRenyi, Every, Prune, Regrow, Reset, repeat, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, forked, settings_of, too_few, total_epochs


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
    """Independent sparse networks whose connections move during training.

    Cost: training, memory and prediction of `members` sparse networks.

    Args:
        sparsity: share of weights that are zero at any time (Erdos-Renyi-Kernel densities).
        interval: steps between two moves.
        rate: share of nonzero weights moved each time.
        moving: share of training in which connections move: all of it in the authors' code, 0.75 in Evci et al.
    """
    epochs = total_epochs(epochs, budget, trainings=members, usual=150)
    training = settings_of(training)
    move = Every(count=interval, phase=Regrow(rate=rate), stop=moving)
    cut = Prune(masks=ErdosRenyi(sparsity=sparsity))
    plan = forked(epochs, members, lambda each: (Reset(), cut, training.phase(each, every=(move,)), Collect()))
    return Recipe(name="dst", plan=plan, combine=combine)


def edst(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 3,
    explore_epochs: int | None = None,
    sparsity: float = 0.8,
    interval: int = 1000,
    rate: float = 0.5,
    escape: float = 0.8,
    moving: float = 1.0,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One dynamic sparse run: explore, then repeatedly converge, keep a member and move 80 % of the weights.

    Cost: the training of one network; prediction of `members` sparse networks.

    Args:
        epochs: epochs of exploration and all members; in the paper 150 + 3 x 100 = 450 and 150 + 7 x 100 = 850.
        members: networks kept; they share the epochs after exploration evenly.
        explore_epochs: epochs before the first member; by default 150, or a third of budgets below 450, plus the epochs that cannot be
            shared evenly.
        sparsity, interval, rate, moving: as in `dst`; `moving` is a share of each training phase.
        escape: share of weights moved after a member is kept, to leave its minimum.
        training: its learning rate is that of exploration; members converge at a tenth, then a hundredth.

    Differs from the authors' code: grown weights also start with zero momentum.
    """
    epochs = total_epochs(epochs, budget, usual=450)
    training = settings_of(training)
    planned = min(150, epochs // 3) if explore_epochs is None else explore_epochs
    settle = (epochs - planned) // members
    if settle < 2:
        least = 3 * members - 1 if explore_epochs is None else planned + 2 * members
        raise too_few(epochs, f"{members} members of at least 2 epochs each after {planned} of exploration", least)
    rest = epochs - members * settle if explore_epochs is None else planned
    move: dict[str, Any] = {"every": (Every(count=interval, phase=Regrow(rate=rate), stop=moving),)}
    short = move | {"least_steps": FEW_STEPS}
    explore = training.phase(rest, Constant(training.peak), **move)
    first = training.phase(settle - settle // 2, Constant(training.peak / 10), **short)
    second = training.phase(settle // 2, Constant(training.peak / 100), memory="carried", **short)
    kept = (first, second, Collect())
    begin = (Reset(), Prune(masks=ErdosRenyi(sparsity=sparsity)), explore)
    plan = seq(*begin, repeat(members - 1, *kept, Regrow(rate=escape)), *kept)
    return Recipe(name="edst", plan=plan, combine=combine)
