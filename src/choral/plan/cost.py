"""What a plan costs, known before it runs: epochs of one network, members kept, steps taken."""

from dataclasses import dataclass

from choral.plan.phases import Phase
from choral.plan.walk import Visitor, first, once, walk


@dataclass(frozen=True)
class Cost:
    """Counts of a plan.

    Attributes:
        epochs: passes over the training data, summed over all networks trained.
        networks: times a network is collected (times the structure's members = members).
        phases: training phases run.
    """

    epochs: int = 0
    networks: int = 0
    phases: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.epochs + other.epochs, self.networks + other.networks, self.phases + other.phases)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.epochs * times, self.networks * times, self.phases * times)


def cost(plan: Phase) -> Cost:
    """Return the cost of a plan.

    >>> from choral.plan.phases import Collect, Train, fork, seq
    >>> cost(fork(3, seq(Train(epochs=5), Collect())))
    Cost(epochs=15, networks=3, phases=3)
    """
    times, found = [1], [Cost()]  # of the combinators around a phase

    def add(one: Cost) -> None:
        found.append(one * times[-1])

    visitor = Visitor[None](
        enter=lambda node, place: times.append(times[-1] * node.runs),
        leave=lambda node, place: times.__delitem__(-1),
        train=lambda phase, place, _: add(Cost(phase.epochs, 0, 1)),
        collect=lambda phase, place, _: add(Cost(0, 1, 0)),
        rounds=once,
        branches=first,
    )
    walk(plan, None, visitor)
    return sum(found, Cost())


def begun(plan: Phase) -> int:
    """Return how many networks a plan begins: branches that start anew, not rounds that go on.

    >>> from choral.plan.operators import Reset
    >>> from choral.plan.phases import Collect, fork, repeat, seq
    >>> begun(fork(3, Reset(), Collect())), begun(seq(Reset(), repeat(4, Collect())))
    (3, 1)
    """
    found: list[int] = []
    walk(plan, None, Visitor[None](start=lambda phase, place, _: found.append(1)))
    return len(found)


def batches_in(points: int, batch_size: int) -> int:
    """Return the steps of one epoch: the last, smaller batch counts unless it is a single point.

    >>> batches_in(257, 128), batches_in(258, 128), batches_in(1, 128)
    (2, 3, 1)
    """
    full, rest = divmod(points, batch_size)
    return full + (1 if rest > 1 or (rest and not full) or (rest and batch_size == 1) else 0)
