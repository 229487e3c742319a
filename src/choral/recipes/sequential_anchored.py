"""Sequential anchored ensemble: anchors walk through the prior in short steps, and each member continues from the last.

Reference: Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649, Algorithms 2 and 3; budgets
in Tables 4 and 5.
"""

from dataclasses import replace
from math import isqrt

from choral.base.errors import InputError
from choral.objectives.penalties import Anchored, Objective
from choral.plan import Collect, Operator, Phase, Reset, repeat
from choral.plan.bayes import DrawAnchor, DrawTargetShift, GuidedWalk, StepAnchor, StepTargetShift, Walk
from choral.recipes.anchored import ADAM, AUTHORS, prior_of
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, forked, settings_of, shares, too_few, total_epochs

GUIDED = GuidedWalk(step_std=0.045, relative_step=True)
"""Steps by which the 51st anchor has a correlation of 0.15 with the first; the authors' settings for CIFAR-10 have 0.16."""


def sequential_anchored(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int | None = None,
    chains: int | None = None,
    first_epochs: int | None = None,
    step_epochs: int | None = None,
    prior_std: float | None = None,
    walk: Walk = GUIDED,
    target_noise: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = ADAM,
    step_training: Training | None = None,
) -> Recipe:
    """Chains of anchored networks: a long training first, then a short one for each next member after its anchor moved a little.

    The paper's budgets: 200 epochs are 1 chain of 100 + 50 x 2 (51 members), 500 are 2 (100 + 75 x 2) = 152 members, 1,000
    are 3 (100 + 116 x 2) = 351, 10,000 are 10 (100 + 450 x 2) = 4,510. With steps of 10 epochs: 11, 32, 72 and 910.

    Cost: the training of one network; prediction of `members` networks.

    Args:
        epochs: epochs of all chains together, split evenly.
        members: networks kept; by default as many as fit into the budget.
        chains: independent chains; by default the integer part of sqrt(epochs / 100), or a divisor of `members` if given.
        first_epochs: epochs of a chain's first member; by default 100, or half of the chain's budget if that is less, plus the epochs
            that the steps leave.
        step_epochs: epochs of every other member; by default 2 (10 in the paper's small regression problems), or what `members` leaves.
        prior_std: as in `anchored`.
        walk: how anchors move.
        target_noise: as in `anchored`; the noise moves with the anchor.
        training: as in `anchored`; every member has a new optimizer and the whole schedule.
        step_training: settings of all but the first member of a chain; by default the same. The authors' rates on CIFAR-10 fall from
            0.002145 to 6.03e-5 in long and to 1e-4 in short trainings; on IMDB they begin at 7.4e-4 and 2.4e-3.
    """
    epochs = total_epochs(epochs, budget)
    step_training = step_training or (replace(AUTHORS, end=1e-4) if training == "paper" else None)
    training = settings_of(training, AUTHORS)
    if chains is None:
        chains = max(1, isqrt(epochs // 100))
        if members is not None:
            chains = max(c for c in range(1, chains + 1) if members % c == 0)
    budget = shares(epochs, chains)[-1][1]
    if members is not None and members % chains:
        raise InputError(f"members is {members}, but {chains} chains have equally many; give a multiple of {chains}.")
    first = (budget if members == chains else min(100, budget - budget // 2)) if first_epochs is None else first_epochs
    if members is None:
        length = 2 if step_epochs is None else step_epochs
        steps = max(0, budget - first) // max(length, 1)
    else:
        steps = members // chains - 1
        length = (budget - first) // max(steps, 1) if step_epochs is None else step_epochs
    if first < 1 or length < min(steps, 1) or first + steps * length > budget:
        what = f"{chains} chain(s) of a first member of {first} and {steps} more of {max(length, 1)}"
        raise too_few(epochs, what, chains * (max(first, 1) + steps * max(length, 1)))
    prior = prior_of(prior_std)
    draw: list[Operator] = [DrawAnchor(walk=walk, **prior)]
    move: list[Operator] = [StepAnchor(walk=walk, **prior)]
    if target_noise:
        draw.append(DrawTargetShift(walk=walk, **prior))
        move.append(StepTargetShift(walk=walk, **prior))
    long, short = training.without_decay(), (step_training or training).without_decay()
    again = repeat(steps, *move, short.phase(max(length, 1), least_steps=FEW_STEPS), Collect())

    def chain(each: int) -> tuple[Phase, ...]:
        rest = each - steps * length if first_epochs is None else first
        return Reset(), *draw, long.phase(rest), Collect(), again

    plan = forked(epochs, chains, chain)
    objective = Objective(penalties=(Anchored(**prior),))
    return Recipe(name="sequential_anchored", plan=plan, objective=objective, combine=combine)
