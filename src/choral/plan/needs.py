"""What a plan needs at least: every training phase says how many steps, and data say how many its epochs are."""

from dataclasses import dataclass, replace

from choral.plan.cost import batches_in, cost
from choral.plan.phases import Phase, Train
from choral.plan.walk import mapped, trainings

ENOUGH = 10_000
"""Steps of the longest training phase where the user does not say how long it is."""


@dataclass(frozen=True)
class Short:
    """A training phase that is shorter than its method needs.

    Attributes:
        epochs, steps: what it has.
        least_steps: what it needs.
    """

    epochs: int
    steps: int
    least_steps: int


def steps_of(phase: Train, points: int) -> int:
    """Return the steps of a training phase on so many points.

    >>> steps_of(Train(epochs=5, batch_size=32), 277)
    45
    """
    return phase.epochs * batches_in(points, phase.batch_size)


def short(plan: Phase, points: int) -> list[Short]:
    """Return the kinds of training phases that are shorter than they say they need, in the order they run.

    >>> short(Train(epochs=5, batch_size=32, least_steps=100), 277)
    [Short(epochs=5, steps=45, least_steps=100)]
    """
    phases = dict.fromkeys(trainings(plan))
    found = [Short(phase.epochs, steps_of(phase, points), phase.least_steps) for phase in phases if phase.epochs]
    return [one for one in found if one.steps < one.least_steps]


def raised(plan: Phase, points: int) -> Phase:
    """Return the plan with every training phase at least as long as it needs; phases that take no epoch stay.

    >>> raised(Train(epochs=5, batch_size=32, least_steps=100), 277).epochs
    12
    """

    def floor(phase: Train) -> Train:
        least = -(-phase.least_steps // batches_in(points, phase.batch_size))
        return replace(phase, epochs=least) if 0 < phase.epochs < least else phase

    return mapped(plan, floor)


def enough(plan: Phase, points: int) -> Phase:
    """Return a plan with as many epochs as so many points need: 10,000 steps in the longest phase, or its own epochs if they are fewer,
    and in every phase the steps that its method needs.

    >>> enough(Train(epochs=200, batch_size=128), 50_000).epochs, enough(Train(epochs=200, batch_size=32), 150).epochs
    (26, 200)
    """
    longest = max((steps_of(phase, points) for phase in trainings(plan)), default=0)
    factor = min(1.0, ENOUGH / max(longest, 1))
    return raised(mapped(plan, lambda phase: replace(phase, epochs=-int(-phase.epochs * factor // 1))), points)


def warning(plan: Phase, points: int) -> str:
    """Return a sentence if a budget is below what a plan needs on so many points, else nothing.

    >>> warning(Train(epochs=5, batch_size=32, least_steps=100), 277)
    'the budget is below what the method needs: a training of 5 epochs is 45 steps and should be 100; give a budget of at least 12 epochs'
    """
    found = short(plan, points)
    if not found:
        return ""
    worst = min(found, key=lambda one: one.steps / one.least_steps)
    return (
        f"the budget is below what the method needs: a training of {worst.epochs} epochs is {worst.steps} steps and should be "
        f"{worst.least_steps}; give a budget of at least {cost(raised(plan, points)).epochs:,} epochs"
        + (", or fewer members" if cost(plan).networks > 1 else "")
    )
