"""What files may hold: a report reads whatever lies in a folder, so each part is checked before it is drawn.

A check yields the places at which something is wrong, which is nothing for a sound part. Single numbers of tables are not
checked here: a wrong one is shown as a dash. A picture needs all of its numbers, so a part with a wrong one is left out.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from choral.engine import files

Check = Callable[[Any, str], Iterator[str]]


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether something can be shown, sorted and drawn as a number.

    >>> is_number(0.5), is_number(True), is_number(float("nan")), is_number("0.5"), is_number(10**400)
    (True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # NaN is not below


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the dict in a file, None if there is no file; raises RunError for one that is damaged."""
    return files.read_json(path, advice="run the command that made it again")


def numeric(value: Any, place: str) -> Iterator[str]:
    """Check a number."""
    if not is_number(value):
        yield place


def words(value: Any, place: str) -> Iterator[str]:
    """Check a text."""
    if not isinstance(value, str):
        yield place


def mapping(value: Any, place: str) -> Iterator[str]:
    """Check a dict, whatever it holds."""
    if not isinstance(value, dict):
        yield place


def many(check: Check, least: int = 0) -> Check:
    """Return the check of a list."""

    def run(value: Any, place: str) -> Iterator[str]:
        if not isinstance(value, list) or len(value) < least:
            yield place
        else:
            for i, item in enumerate(value):
                yield from check(item, f"{place}[{i}]")

    return run


def every(check: Check) -> Check:
    """Return the check of a dict with any names."""

    def run(value: Any, place: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield place
        else:
            for name, item in value.items():
                yield from check(item, f"{place}.{name}")

    return run


def fields(**checks: Check) -> Check:
    """Return the check of a dict that must have some names; a check of None's kind is `optional`."""

    def run(value: Any, place: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield place
        else:
            for name, check in checks.items():
                yield from check(value.get(name), f"{place}.{name}")

    return run


def optional(check: Check) -> Check:
    """Return a check that also takes None."""
    return lambda value, place: iter(()) if value is None else check(value, place)


def also(check: Check, test: Callable[[Any], bool]) -> Check:
    """Return a check with a further test of a part that is sound otherwise."""

    def run(value: Any, place: str) -> Iterator[str]:
        wrong = list(check(value, place))
        yield from wrong if wrong or test(value) else [place]

    return run


NUMBERS = many(numeric)
POINTS = many(also(NUMBERS, lambda p: len(p) == 2), least=1)
_SHARES = also(NUMBERS, lambda s: len(s) >= 2)


def _binned(shown: dict[str, Any]) -> bool:
    bins = len(shown["edges"]) - 1
    rises = all(a < b for a, b in zip(shown["edges"], shown["edges"][1:]))
    return bins > 0 and rises and all(len(shown[n]) == bins for n in ("in", "out") if n in shown)


def _reachable(found: dict[str, Any]) -> bool:
    members = range(len(found["points"]["members"]))
    return all(isinstance(i, int) and i in members for path in found["chains"] for i in path)


def _as_many(told: dict[str, Any]) -> bool:
    """Return whether a class report says as much of every class."""
    each = (told.get(n) for n in ("counts", "recall", "precision", "average_precision", "curves"))
    return all(held is None or len(held) == len(told["names"]) for held in each)


def _weighed(found: dict[str, Any]) -> bool:
    """Return whether every column has the same measures, and every curve a point for each value and output."""
    measures = [set(row[n]) for row in found["columns"] for n in ("worse", "error", "members")]
    shaped = all(
        len(rows) == len(d["values"]) and all(len(r) == len(d["outputs"]) for r in rows)
        for d in found["dependence"]
        for rows in (d["mean"], *d["members"])
    )
    placed = all(d["at"] is None or len(d["at"]) == len(d["values"]) for d in found["dependence"])
    return all(found["measure"] in m and m == measures[0] for m in measures) and shaped and placed


_MEASURES = every(numeric)
PARTS: dict[str, Check] = {
    "classes": also(
        fields(
            names=many(words, least=1),
            counts=NUMBERS,
            recall=many(optional(numeric)),
            precision=many(optional(numeric)),
            average_precision=optional(many(optional(numeric))),
            curves=optional(many(many(also(NUMBERS, lambda p: len(p) == 2)))),
        ),
        _as_many,
    ),
    "importance": also(
        fields(
            measure=words,
            columns=many(
                fields(column=words, worse=_MEASURES, error=_MEASURES, members=every(many(numeric, least=1))), least=1
            ),
            dependence=many(
                fields(
                    column=words,
                    values=many(words, least=1),
                    at=optional(NUMBERS),
                    outputs=many(words, least=1),
                    mean=many(NUMBERS, least=1),
                    members=many(many(NUMBERS, least=1), least=1),
                )
            ),
        ),
        _weighed,
    ),
    "sizes": also(
        many(also(every(numeric), lambda row: "members" in row and len(row) > 1), least=1),
        lambda rows: all(row.keys() == rows[0].keys() for row in rows),
    ),
    "map": also(
        fields(chains=many(many(numeric, least=1)), points=fields(members=POINTS), explained=_SHARES), _reachable
    ),
    "reliability": also(
        fields(edges=NUMBERS, counts=NUMBERS, confidence=NUMBERS, accuracy=NUMBERS),
        lambda t: len(t["edges"]) > 1 and sum(t["counts"]) > 0 and min(map(len, t.values())) > 0,
    ),
    "diversity": also(
        fields(measure=words, matrix=many(NUMBERS)), lambda d: all(len(r) == len(d["matrix"]) for r in d["matrix"])
    ),
    "histograms": also(fields(of=words, edges=NUMBERS, **{"in": NUMBERS}, out=optional(NUMBERS)), _binned),
    "ood": fields(name=words, scores=every(mapping)),
    "corruptions": fields(
        table=mapping,
        means=mapping,
        by_corruption=mapping,
        levels=many(fields(severity=numeric, accuracy=numeric, nll=numeric, ece=numeric), least=1),
    ),
    "coverage": many(fields(level=numeric, coverage=numeric), least=1),
    "intervals": fields(
        level=numeric, rows=many(fields(low=numeric, high=numeric, mean=numeric, target=numeric), least=1)
    ),
}
_HEAD = fields(task=words, scores=mapping, cost=mapping)
TOGETHER: dict[str, Check] = {
    "map": fields(pca=fields(points=every(POINTS), explained=_SHARES), tsne=optional(fields(points=every(POINTS)))),
    "corruption_errors": fields(baseline=words),
}


def sound(found: Any, place: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the parts of an evaluation that can be shown (None if not even its scores can), and the wrong places."""
    wrong = list(_HEAD(found, place))
    return (None, wrong[:1]) if wrong else _checked(found, PARTS, place)


def sound_together(results: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the results without parts about all methods that cannot be shown, and the wrong places."""
    return _checked({n: v for n, v in results.items() if v is not None or n not in TOGETHER}, TOGETHER, "")


def _checked(held: dict[str, Any], checks: dict[str, Check], place: str) -> tuple[dict[str, Any], list[str]]:
    kept, left = dict(held), []
    for name in [n for n in checks if n in held]:
        wrong = next(checks[name](held[name], f"{place}.{name}".lstrip(".")), None)
        if wrong is not None:
            del kept[name]
            left.append(wrong)
    return kept, left
