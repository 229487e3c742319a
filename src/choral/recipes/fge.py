"""Fast geometric ensembling: train most of the way, then short triangular cycles; a member at each low point.

Reference: Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018,
arXiv:1802.10026, section 5.
"""

from choral.errors import InputError
from choral.plan import Collect, Linear, Reset, repeat, seq
from choral.recipe import Recipe
from choral.training import Training


def fge(*, epochs: int = 200, members: int | None = None, cycle: int = 4, training: Training = Training()) -> Recipe:
    """Train for 78 % of the budget, then swing the rate in short triangles and keep the low points.

    Args:
        epochs: total budget.
        members: low points kept; as many as the budget holds if None.
        cycle: epochs of one triangle, an even number; the paper's 4.
        training: optimiser, rate and batch size. The triangles run between half and 1/200 of the rate.

    Differs from the paper: the first phase is one straight-line schedule that ends at the triangles' high point.
    """
    first = round(0.78 * epochs)
    half, tail = cycle // 2, epochs - round(0.78 * epochs)
    fitting = 1 + (tail - half) // cycle if cycle >= 2 and tail >= half else 0
    kept = fitting if members is None else members
    if cycle < 2 or cycle % 2:
        raise InputError(f"cycle is {cycle}; give an even number of epochs, 2 or more.")
    if kept < 1 or kept > fitting:
        needed = half + cycle * (max(kept, 1) - 1)
        raise InputError(
            f"epochs is {epochs}, too few: {tail} epochs remain after the first 78 %, but {max(kept, 1)} member(s) in cycles "
            f"of {cycle} need {needed}; give at least {-(-needed * 100 // 22)} epochs, fewer members or a shorter cycle."
        )
    first = epochs - half - cycle * (kept - 1)
    high, low = training.rate / 2, training.rate / 200
    start = training.phase(first, Linear(((0.0, training.rate), (0.6, training.rate), (1.0, high))))
    down = training.phase(half, Linear(((0.0, high), (1.0, low))), memory="carried")
    up = training.phase(half, Linear(((0.0, low), (1.0, high))), memory="carried")
    return Recipe(name="fge", plan=seq(Reset(), start, down, Collect(), repeat(kept - 1, up, down, Collect())))
