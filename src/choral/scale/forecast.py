"""How long a run takes on a cluster, before any training: leaves dealt out to workers, and what failures add.

Without failures the time is counted leaf by leaf: whoever is free takes the next leaf that is ready. A worker fails once in `failure_seconds` on
average; then what it trained since its last checkpoint is lost, half an interval on average, and it is away for `restart_seconds`. A leaf of
t seconds meets t / failure_seconds failures on average, so it takes t (1 + (interval / 2 + restart) / failure_seconds).
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from choral.plan.cost import batches_in
from choral.scale.cutting import Leaf


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is known of a cluster.

    Args:
        step_seconds: of one training step of one network.
        start_seconds: until a worker has loaded what it needs; each does so once.
        interval_seconds: between two checkpoints.
        failure_seconds: between two failures of one worker, on average; infinity for none.
        restart_seconds: until another worker goes on in its place.
    """

    step_seconds: float
    start_seconds: float = 5.0
    interval_seconds: float = 5.0
    failure_seconds: float = math.inf
    restart_seconds: float = 30.0

    @property
    def slower(self) -> float:
        """How much longer a leaf takes because of failures."""
        return 1.0 + (self.interval_seconds / 2 + self.restart_seconds) / self.failure_seconds


def steps_of(leaf: Leaf, points: int) -> int:
    """Return the training steps of a leaf's networks, each on so many points."""
    return len(leaf.branches) * sum(phase.epochs * batches_in(points, phase.batch_size) for phase in leaf.trainings)


def makespan(leaves: Sequence[Leaf], workers: int, seconds: Callable[[Leaf], float]) -> float:
    """Return when the last leaf is done: a free worker takes the first leaf that is ready.

    >>> from choral.recipes import deep_ensemble
    >>> from choral.scale.cutting import cut
    >>> makespan(cut(deep_ensemble(epochs=15, members=5).plan, 1), 2, lambda leaf: 10.0)
    30.0
    """
    behind: dict[str | None, list[int]] = {}
    for number, leaf in enumerate(leaves):
        behind.setdefault(leaf.after, []).append(number)
    ready, running, now = list(behind.get(None, ())), list[tuple[float, int]](), 0.0
    heapq.heapify(ready)
    while ready or running:
        while ready and len(running) < workers:
            number = heapq.heappop(ready)
            heapq.heappush(running, (now + seconds(leaves[number]), number))
        now, number = heapq.heappop(running)
        for other in behind.get(leaves[number].path, ()):
            heapq.heappush(ready, other)
    return now


def expected_seconds(leaves: Sequence[Leaf], workers: int, points: int, given: Conditions) -> float:
    """Return the time of a run on so many workers, on average.

    Failures do not fall on all leaves alike, and a run ends with its last one: with few leaves for each worker the unluckiest leaf tells,
    so the longest chain gets the failures of one in as many leaves as there are, by the Poisson law.
    """
    each = given.step_seconds

    def plain(leaf: Leaf) -> float:
        return steps_of(leaf, points) * each

    mean = makespan(leaves, workers, lambda leaf: plain(leaf) * given.slower)
    longest = max(map(plain, leaves), default=0.0)
    rate = longest / given.failure_seconds
    unlucky = _quantile(rate, 1 - 0.5 / max(1, len(leaves)))
    extra = (unlucky - rate) * (given.interval_seconds / 2 + given.restart_seconds)
    return given.start_seconds + mean + max(0.0, extra)


def _quantile(mean: float, share: float) -> int:
    """Return the least number that a Poisson variable stays at or below with some probability."""
    number, chance = 0, math.exp(-mean)
    total = chance
    while total < share and number < 10_000:
        number += 1
        chance *= mean / number
        total += chance
    return number
