"""What a plan costs, known before it runs: epochs of one network, members kept, steps taken."""

from dataclasses import dataclass

from choral.plan.phases import Collect, Fork, Phase, Repeat, Seq, Train


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

    >>> from choral.plan.phases import fork, seq
    >>> cost(fork(3, seq(Train(epochs=5), Collect())))
    Cost(epochs=15, networks=3, phases=3)
    """
    if isinstance(plan, Seq):
        return sum((cost(p) for p in plan.phases), Cost())
    if isinstance(plan, Repeat):
        return cost(plan.body) * plan.times
    if isinstance(plan, Fork):
        return cost(plan.body) * plan.branches
    if isinstance(plan, Train):
        return Cost(plan.epochs, 0, 1)
    if isinstance(plan, Collect):
        return Cost(0, 1, 0)
    return Cost()


def batches_in(points: int, batch_size: int) -> int:
    """Return the steps of one epoch: the last, smaller batch counts unless it is a single point.

    >>> batches_in(257, 128), batches_in(258, 128), batches_in(1, 128)
    (2, 3, 1)
    """
    full, rest = divmod(points, batch_size)
    return full + (1 if rest > 1 or (rest and not full) or (rest and batch_size == 1) else 0)
