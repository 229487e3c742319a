"""What happened over a run: the learning rate its plan asks for, and the losses, operations and sparsity it logged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from choral import objectives, plan, recipes, structures
from choral.base.values import from_dict
from choral.plan.phases import Fork, Phase, Train
from choral.plan.walk import Place, Visitor, first, walk
from choral.report.reading import fields, is_number, many, numeric, optional

__all__ = ["events", "history_of", "schedule"]
_KNOWN = (objectives, plan, recipes, structures)  # loading them makes their kinds readable
_POINTS = 40  # of one training phase, at most
_PHASES = 5000  # drawn, at most
_SCHEDULE = fields(rate=many(many(many(numeric))), collected=many(numeric), forks=many(many(numeric)))
_EPOCH = fields(  # an epoch's event; its losses may be infinite
    epoch=numeric,
    counted=fields(epochs=numeric, train_flops=numeric),
    losses=many(lambda value, place: iter(())),
    remaining=optional(many(fields(parameters=numeric, flops=numeric))),
    validation=optional(many(lambda value, place: iter(()))),
)


def history_of(recipe: dict[str, Any], log: Path) -> dict[str, Any]:
    """Return the curves of a run as lists of [epochs, value].

    Keys: rate (segments along one branch of the plan), collected (epochs at which a member is kept on that branch), forks
    ([epochs, branches]), loss (segments), validation (segments, of the measure named by `measure`), flops (of one epoch), sparsity, working (share of the operations still at work in
    networks that close nodes). Epochs of the logged curves are counted over all networks in the order they were trained.

    Args:
        recipe: the recipe as a dict, from plan.json.
        log: the log file; it may be missing.
    """
    try:
        found = schedule(from_dict(recipe).plan)
    except Exception:  # a part is the user's own class and not loaded here, or the file is damaged in any way
        found = {}
    if next(_SCHEDULE(found, ""), None) is not None:
        found = {"rate": [], "collected": [], "forks": []}
    return found | _logged(log)


def schedule(node: Phase) -> dict[str, Any]:
    """Return the learning rate along the first branch of a plan.

    >>> from choral.plan import Collect, Constant, Train, fork, seq
    >>> schedule(fork(3, seq(Train(epochs=2, schedule=Constant(0.1)), Collect())))
    {'rate': [[[0.0, 0.1], [2.0, 0.1]]], 'collected': [2], 'forks': [[0, 3]]}
    """
    segments: list[list[list[float]]] = []
    collected: list[float] = []
    forks: list[list[float]] = []
    epochs = 0

    def train(phase: Train, place: Place, _: None) -> None:
        nonlocal epochs
        if phase.epochs:
            segments.append([[epochs + part * phase.epochs, rate] for part, rate in _samples(phase)])
            epochs += phase.epochs

    def branches(node: Fork, place: Place, _: None) -> Iterator[tuple[Place, None]]:
        forks.append([epochs, node.branches])
        return first(node, place, None)

    visitor = Visitor[None](
        train=train,
        collect=lambda phase, place, _: collected.append(epochs),
        rounds=lambda node: range(min(node.times, _PHASES - len(segments))),
        branches=branches,
    )
    walk(node, None, visitor)
    return {"rate": segments, "collected": collected, "forks": forks}


def _samples(phase: Train) -> Iterator[tuple[float, float]]:
    if not phase.schedule.by_progress:
        return
    values = [(i / _POINTS, float(f"{phase.schedule.at(min(i / _POINTS, 1 - 1e-9)):.6g}")) for i in range(_POINTS + 1)]
    if all(v == values[0][1] for _, v in values):
        values = [values[0], values[-1]]
    yield from values


def events(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log; lines that were cut short or damaged are passed over."""
    if not log.exists():
        return
    with open(log, encoding="utf8", errors="replace") as handle:
        for line in handle:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def _logged(log: Path) -> dict[str, Any]:
    losses: list[list[list[float]]] = []
    seen: list[list[list[float]]] = []
    measure = ""
    flops: list[list[float]] = []
    sparsity: list[list[float]] = []
    working: list[list[float]] = []
    epochs = operations = 0.0
    for event in events(log):
        density = event.get("density")
        if is_number(density):
            sparsity += [[epochs, sparsity[-1][1] if sparsity else 0.0], [epochs, round(1 - density, 6)]]  # a step
        if event.get("kind") != "epoch" or next(_EPOCH(event, ""), None) is not None:
            continue
        counted, left = event["counted"], event.get("remaining")
        if left:
            shares = {n: sum(part[n] for part in left) / len(left) for n in ("parameters", "flops")}
            sparsity.append([counted["epochs"], round(1 - shares["parameters"], 6)])
            working.append([counted["epochs"], round(shares["flops"], 6)])
        finite = [v for v in event["losses"] if is_number(v)]
        before, epochs = epochs, counted["epochs"]
        spent, operations = counted["train_flops"] - operations, counted["train_flops"]
        if epochs > before:
            flops.append([epochs, float(f"{spent / (epochs - before):.6g}")])
        if event["epoch"] == 1 or not losses:
            losses.append([])
            seen.append([])
        if finite:
            losses[-1].append([epochs, _mean(finite)])
        measured = [v for v in event.get("validation") or () if is_number(v)]
        if measured:
            measure = str(event.get("measure"))
            seen[-1].append([epochs, _mean(measured)])
    if sparsity and not working:
        sparsity = [[0.0, 0.0], *sparsity, [epochs, sparsity[-1][1]]]
    sparsity = [point for i, point in enumerate(sparsity) if not i or point != sparsity[i - 1]]
    curves = {"loss": [s for s in losses if s], "validation": [s for s in seen if s], "measure": measure}
    return curves | {"flops": flops, "sparsity": sparsity, "working": working}


def _mean(values: list[float]) -> float:
    return float(f"{sum(values) / len(values):.6g}")
