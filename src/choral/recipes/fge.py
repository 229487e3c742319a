"""Fast geometric ensembling: train most of the way, then short triangular cycles; a member at each minimum of the learning rate.

Reference: Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018,
arXiv:1802.10026, section 5.
"""

from typing import Any

from choral.base.errors import InputError
from choral.plan import Collect, Linear, Part, Phase, Reset, fork, repeat, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, too_few, total_epochs


def fge(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int | None = None,
    cycle: int = 4,
    starts: int | None = None,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """Train for 78 % of the budget, then in short triangular cycles of the learning rate, with a member at each of its minima.

    The paper's 200 epochs: 156 with a schedule for 200, then 22 of triangles from each of the checkpoints at epochs 120 and 156, with
    members after 2, 6, ..., 22: 12 members.

    Cost: the training of one network; prediction of `members` networks.

    Args:
        members: members kept, equally many from each start; by default as many as fit into the budget.
        cycle: epochs of one triangle, an even number; 4 in the paper. A member is kept in its middle, at the lowest rate.
        starts: checkpoints from which triangles start: 1 (the last epoch of the first phase) or 2 (also at 120 / 156 of it). By default
            2 if the budget allows both and `members` is even.
        training: its schedule is not used. The rate is constant for half the budget and falls linearly to a hundredth at 90 %; triangles
            replace the end of it, with rates between half and 1/200.
    """
    epochs = total_epochs(epochs, budget)
    training = settings_of(training)
    if cycle < 2 or cycle % 2:
        raise InputError(f"cycle is {cycle}; give an even number of epochs, 2 or more.")
    half, tail = cycle // 2, epochs - round(0.78 * epochs)
    if starts is None:
        starts = 2 if tail >= 2 * half and (members is None or members % 2 == 0) else 1
    fitting = starts * (1 + (tail // starts - half) // cycle) if tail >= starts * half else 0
    kept = fitting if members is None else members
    if starts not in (1, 2) or kept % starts:
        raise InputError(
            f"members is {members} and starts is {starts}; give 1 start, or 2 and an even number of members."
        )
    each = half + cycle * (max(kept // starts, 1) - 1)
    if kept < 1 or kept > fitting:
        what = f"{max(kept, starts)} member(s) in cycles of {cycle}, which need {starts * each} of the last 22 %"
        raise too_few(epochs, what, -(-starts * each * 100 // 22))
    first = epochs - starts * each
    early = round(first * 120 / 156) if starts == 2 else first
    rate, high, low = training.peak, training.peak / 2, training.peak / 200
    falling = Linear(((0.0, rate), (0.5, rate), (0.9, rate / 100)))
    short: dict[str, Any] = {"memory": "carried", "least_steps": FEW_STEPS // 2}
    down = training.phase(half, Linear(((0.0, high), (1.0, low))), **short)
    up = training.phase(half, Linear(((0.0, low), (1.0, high))), **short)
    swing: tuple[Phase, ...] = (down, Collect(), repeat(kept // starts - 1, up, down, Collect()))
    begin = (Reset(), training.phase(early, Part(falling, 0.0, early / epochs)))
    later = training.phase(first - early, Part(falling, early / epochs, first / epochs), **short)
    return Recipe(
        name="fge", plan=seq(*begin, *((fork(1, *swing), later) if starts == 2 else ()), *swing), combine=combine
    )
