"""The cost of a plan (epochs, members, steps), and its minimum number of steps, known before it runs."""

from dataclasses import dataclass, replace

from choral.plan.phases import Phase, Train
from choral.plan.walk import mapped, trainings


@dataclass(frozen=True)
class Cost:
    """Counts of a plan.

    Attributes:
        epochs: passes over the training data, summed over all networks trained.
        networks: number of collected networks (times the structure's members = members).
        phases: training phases.
    """

    epochs: int = 0
    networks: int = 0
    phases: int = 0


def cost(plan: Phase) -> Cost:
    """Return the cost of a plan.

    >>> from choral.plan.phases import Collect, fork, seq
    >>> cost(fork(3, seq(Train(epochs=5), Collect())))
    Cost(epochs=15, networks=3, phases=3)
    """
    phases = trainings(plan)
    return Cost(sum(phase.epochs for phase in phases), _counted(plan, "collect"), len(phases))


def begun(plan: Phase) -> int:
    """Return the number of networks that a plan starts: branches that start anew, not rounds that continue.

    >>> from choral.plan.phases import Collect, Reset, fork, repeat, seq
    >>> begun(fork(3, Reset(), Collect())), begun(seq(Reset(), repeat(4, Collect())))
    (3, 1)
    """
    return _counted(plan, "start")


def _counted(plan: Phase, visit: str) -> int:
    if not plan.children:
        return int(plan.visit == visit)
    return sum(_counted(phase, visit) for phase in plan.children) * plan.runs


def batches_in(points: int, batch_size: int) -> int:
    """Return the steps of one epoch: the last, smaller batch counts unless it is a single row.

    >>> batches_in(257, 128), batches_in(258, 128), batches_in(1, 128)
    (2, 3, 1)
    """
    full, rest = divmod(points, batch_size)
    return full + (1 if rest > 1 or (rest and not full) or (rest and batch_size == 1) else 0)


ENOUGH = 10_000
"""Steps of the longest training phase where the user does not say how long it is."""


def steps_of(phase: Train, points: int) -> int:
    """Return the steps of a training phase on this many rows.

    >>> steps_of(Train(epochs=5, batch_size=32), 277)
    45
    """
    return phase.epochs * batches_in(points, phase.batch_size)


def short(plan: Phase, points: int) -> list[Train]:
    """Return the training phases that are shorter than they need to be, each once, in order.

    >>> [phase.epochs for phase in short(Train(epochs=5, batch_size=32, least_steps=100), 277)]
    [5]
    """
    return [p for p in dict.fromkeys(trainings(plan)) if p.epochs and steps_of(p, points) < p.least_steps]


def raised(plan: Phase, points: int) -> Phase:
    """Return the plan with every training phase at least as long as necessary; phases without epochs are not changed.

    >>> raised(Train(epochs=5, batch_size=32, least_steps=100), 277).epochs
    12
    """

    def floor(phase: Train) -> Train:
        least = -(-phase.least_steps // batches_in(points, phase.batch_size))
        return replace(phase, epochs=least) if 0 < phase.epochs < least else phase

    return mapped(plan, floor)


def enough(plan: Phase, points: int) -> Phase:
    """Return a plan with enough epochs for this many rows: 10,000 steps in the longest phase, or its own epochs if they are fewer, and in every
    phase the steps that its method needs.

    >>> enough(Train(epochs=200, batch_size=128), 50_000).epochs, enough(Train(epochs=200, batch_size=32), 150).epochs
    (26, 200)
    """
    longest = max((steps_of(phase, points) for phase in trainings(plan)), default=0)
    factor = min(1.0, ENOUGH / max(longest, 1))
    return raised(mapped(plan, lambda phase: replace(phase, epochs=-int(-phase.epochs * factor // 1))), points)


def warning(plan: Phase, points: int) -> str:
    """Return a warning if a budget is too small for a plan on this many rows, else an empty text.

    >>> warning(Train(epochs=5, batch_size=32, least_steps=100), 277)
    'the budget is below what the method needs: a training of 5 epochs is 45 steps and should be 100; give epochs=12 or more (budget=12)'
    """
    found = short(plan, points)
    if not found:
        return ""
    worst = min(found, key=lambda phase: steps_of(phase, points) / phase.least_steps)
    total, trained = cost(raised(plan, points)).epochs, max(1, begun(plan))
    apart = " for each member" if trained > 1 else ""
    return (
        f"the budget is below what the method needs: a training of {worst.epochs} epochs is {steps_of(worst, points)} steps "
        f"and should be {worst.least_steps}; give epochs={-(-total // trained)} or more{apart} (budget={total})"
        + (", or fewer members" if cost(plan).networks > 1 else "")
    )
