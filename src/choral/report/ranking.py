"""The order of methods and who is on the Pareto front of cost against loss."""

import math
from collections.abc import Sequence
from typing import Any

from choral.report.reading import is_number


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each (cost, loss) whether no other point is at least as good in both and better in one.

    >>> front([(1, 3), (2, 2), (2, 4), (3, 1), (3, 1)])
    [True, True, False, True, True]
    """

    def beaten(a: tuple[float, float]) -> bool:
        return any(b[0] <= a[0] and b[1] <= a[1] and b != a for b in points)

    return [not beaten(p) for p in points]


def ranking(rows: Sequence[dict[str, Any]], *, costs: Sequence[str], loss: str = "nll") -> list[dict[str, Any]]:
    """Return one entry for each method, best first: rank by loss, and the costs for which it is on the Pareto front.

    Args:
        rows: one for each method.
        costs: names of costs; rows without a cost are not on its front.
        loss: what is ranked by, smaller is better; rows without it come last, without a rank.
    """
    order = sorted(rows, key=lambda r: (_number(r.get(loss)), r["method"]))
    entries = [
        {"method": r["method"], "rank": i + 1 if math.isfinite(_number(r.get(loss))) else None, "pareto": []}
        for i, r in enumerate(order)
    ]
    for cost in costs:
        usable = [i for i, r in enumerate(order) if math.isfinite(_number(r.get(cost)) + _number(r.get(loss)))]
        for i, kept in zip(usable, front([(order[i][cost], order[i][loss]) for i in usable])):
            if kept:
                entries[i]["pareto"].append(cost)
    return entries


def _number(value: Any) -> float:
    return float(value) if is_number(value) else math.inf
