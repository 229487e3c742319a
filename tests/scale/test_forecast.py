"""The time of a run on a cluster, against a simulation of a thousand machines that fail."""

import heapq
import random

import pytest

from choral.recipes import make
from choral.scale.cutting import cut
from choral.scale.forecast import Conditions, expected_seconds, makespan, steps_of


def simulated(leaves, workers, points, given, seed):
    """Return when the last leaf is done, second by second of what workers go through."""
    chance = random.Random(seed)

    def seconds(leaf):
        """One leaf: trained up to a failure, back to the last checkpoint, and on after a while."""
        left, taken = steps_of(leaf, points) * given.step_seconds, 0.0
        while left > 0:
            until = chance.expovariate(1 / given.failure_seconds)
            if until >= left:
                return taken + left
            kept = until - until % given.interval_seconds
            left -= kept
            taken += until + given.restart_seconds
        return taken

    behind: dict = {}
    for leaf in leaves:
        behind.setdefault(leaf.after, []).append(leaf)
    free, last, number = [0.0] * workers, 0.0, 0
    ready = [(0.0, i, leaf) for i, leaf in enumerate(behind[None])]
    while ready:
        since, _, leaf = heapq.heappop(ready)
        end = max(heapq.heappop(free), since) + seconds(leaf)
        last = max(last, end)
        heapq.heappush(free, end)
        for other in behind.get(leaf.path, ()):
            number += 1
            heapq.heappush(ready, (end, number, other))
    return given.start_seconds + last


@pytest.mark.parametrize(
    ("method", "options", "workers"),
    [
        ("deep_ensemble", {"members": 1000, "budget": 10_000}, 1000),
        ("deep_ensemble", {"members": 1000, "budget": 10_000}, 200),
        ("prune_and_tune", {"members": 1000, "epochs": 6000, "parent_epochs": 20}, 1000),
        ("sequential_anchored", {"members": 1200, "chains": 300, "epochs": 9600}, 1000),
    ],
)
@pytest.mark.parametrize("failure_hours", [1.0, 24.0])
def test_it_is_that_of_a_simulation_of_a_thousand_machines(method, options, workers, failure_hours):
    leaves = cut(make(method, **options, training="paper").plan, 1)
    given = Conditions(
        step_seconds=0.4, interval_seconds=60.0, failure_seconds=failure_hours * 3600, restart_seconds=120.0
    )
    found = [simulated(leaves, workers, 12_800, given, seed) for seed in range(5)]
    expected = expected_seconds(leaves, workers, 12_800, given)
    assert expected == pytest.approx(sum(found) / len(found), rel=0.1)


def test_without_failures_it_is_counted():
    leaves = cut(make("prune_and_tune", members=6, budget=24, parent_epochs=12, training="paper").plan, 1)
    assert makespan(leaves, 1, lambda leaf: leaf.epochs) == 24
    assert makespan(leaves, 2, lambda leaf: leaf.epochs) == 12 + 3 * 2
    assert makespan(leaves, 100, lambda leaf: leaf.epochs) == 12 + 2
    given = Conditions(step_seconds=0.5, start_seconds=3.0)
    assert expected_seconds(leaves, 2, 256, given) == 3.0 + 18 * 2 * 0.5
