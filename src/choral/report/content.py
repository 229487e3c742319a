"""What a report shows, read from a folder: every number ends up in one dict of plain types, `results`.

Four kinds of folders are understood: a comparison (comparison.json), one run (plan.json), a folder of
runs, and that of a search among methods, which says what it chose (choice.json). The page and the figures are made from `results` alone, and it is written beside the page.

What happened over a run: the learning rate its plan asks for, and the losses, operations and sparsity it logged.

The order of methods and who is on the Pareto front of cost against loss.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral import objectives, plan, recipes, structures
from choral.base.errors import RunError
from choral.base.text import short
from choral.base.values import from_dict
from choral.plan.phases import Fork, Phase, Train
from choral.plan.walk import Place, Visitor, first, walk
from choral.report.reading import (
    Check,
    fields,
    is_number,
    many,
    mapping,
    numeric,
    optional,
    read_json,
    sound,
    sound_together,
    words,
)

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


SCORES = ("nll", "pinball", "loss")  # that methods are ranked by, smaller is better
COSTS = {"train_flops": "training operations", "predict_flops": "operations of one prediction"}


@dataclass(frozen=True)
class Content:
    """Everything on the page.

    Attributes:
        title: what the page is called.
        results: rows, settings, ranking, evaluation, history and plans by method, map, corruption_errors.
        evaluations: by method, the parts that can be shown.
        left_out: places in the files that hold something else than they should.
    """

    title: str
    results: dict[str, Any]
    evaluations: dict[str, dict[str, Any]]
    left_out: tuple[str, ...] = ()

    @property
    def methods(self) -> list[str]:
        """Names of the methods, best first."""
        return [entry["method"] for entry in self.results["ranking"]]

    @property
    def task(self) -> str | None:
        """'classification' or 'regression'; None if nothing was evaluated."""
        return next((e["task"] for e in self.evaluations.values()), None)

    @property
    def score(self) -> str:
        """The score that methods are ranked by, smaller is better."""
        return score_of(self.evaluations)

    def evaluated(self, part: str) -> list[str]:
        """Return the methods, best first, whose evaluation has some part."""
        return [m for m in self.methods if part in self.evaluations.get(m, {})]

    def evaluation(self, method: str) -> dict[str, Any]:
        """Return a method's evaluation."""
        return dict(self.evaluations[method])

    def row(self, method: str) -> dict[str, Any]:
        """Return a method's row."""
        return next(dict(r) for r in self.results["rows"] if r["method"] == method)


def score_of(evaluations: Any) -> str:
    """Return the score that evaluations name, nll if they name none of those there are."""
    held = evaluations.values() if isinstance(evaluations, dict) else ()
    return next((e["score"] for e in held if isinstance(e, dict) and e.get("score") in SCORES), SCORES[0])


def collect(folder: Path) -> Content:
    """Return the content of a run, comparison or folder of runs."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of a run or of a comparison.")
    results = _compared(folder)
    if results is not None:
        return _finished(folder, results, _runs_of(folder, [r["method"] for r in results["rows"]]))
    if (folder / "plan.json").exists():
        runs = {str(_plan(folder)["describe"]["name"]): folder}
        return _finished(folder, _with_rows(runs), runs)
    runs = {p.parent.name: p.parent for p in sorted(folder.glob("*/plan.json"))}
    if not runs:
        raise RunError(
            f"{folder} holds no run (plan.json) and no comparison (comparison.json); give the folder that choral fit "
            "or choral compare wrote."
        )
    results = _with_rows(runs)
    choice = read_json(folder / "choice.json")
    return _finished(folder, results if choice is None else _with_choice(results, choice, folder), runs)


def _with_choice(results: dict[str, Any], choice: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the results of a search's candidates with what was chosen of them, its evaluation, and why."""
    _require(choice, _CHOICE, folder / "choice.json")
    row, held = dict(choice["row"]), (read_json(folder / "evaluation.json") or {}).get("evaluation")
    for found in held.values() if isinstance(held, dict) else ():
        results["evaluation"][row["method"]] = found
        row |= _measured(sound(found, row["method"])[0] or {})
    return results | {"rows": [row, *results["rows"]], "findings": choice["findings"], "chosen": row["method"]}


def _compared(folder: Path) -> dict[str, Any] | None:
    """Return what a comparison found, None if the folder is no comparison's."""
    path = folder / "comparison.json"
    results = read_json(path)
    if results is not None:
        _require(results, _COMPARISON, path)
    return results


def _node(value: Any, place: str) -> Iterator[str]:
    yield from fields(label=words, children=many(_node))(value, place)


_COMPARISON = fields(rows=many(fields(method=words), least=1), settings=mapping)
_CHOICE = fields(row=fields(method=words), findings=many(words, least=1))
_PLAN = fields(describe=fields(tree=_node), identity=fields(recipe=mapping), environment=mapping)


def _require(held: dict[str, Any], check: Check, path: Path) -> None:
    wrong = next(check(held, ""), None)
    if wrong is not None:
        raise RunError(
            f"{path} holds something else than choral writes at {short(wrong.lstrip('.'))}; run the command that made "
            "it again."
        )


def _runs_of(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the run folders of a comparison: those of its methods whose name is that of a folder right inside it."""
    inside = {p.parent.name: p.parent for p in folder.glob("*/plan.json")}
    return {name: inside.get(name, folder / "no run") for name in names}


def _plan(folder: Path) -> dict[str, Any]:
    plan = read_json(folder / "plan.json") or {}
    _require(plan, _PLAN, folder / "plan.json")
    return plan


def _with_rows(runs: dict[str, Path]) -> dict[str, Any]:
    """Return results with a row and the evaluation of every run, from the runs' own results."""
    rows, evaluations = [], {}
    for name, folder in runs.items():
        own, described = read_json(folder / "results.json") or {}, _plan(folder)["describe"]
        row: dict[str, Any] = {"method": name, "members": described.get("members"), "epochs": described.get("epochs")}
        counted = own.get("counted")
        counted = counted if isinstance(counted, dict) else {}
        row |= {"parameters": own.get("parameters"), "predict_flops": own.get("predict_flops")}
        row |= {n: counted.get(n) for n in ("train_flops", "train_seconds")}
        held = (read_json(folder / "evaluation.json") or {}).get("evaluation")
        for found in held.values() if isinstance(held, dict) else ():
            evaluations[name] = found
            row |= _measured(sound(found, name)[0] or {})
        rows.append(row)
    seeds = {str(_plan(f)["identity"].get("seed")) for f in runs.values()}
    settings = {"runs": len(runs), "seed": ", ".join(sorted(seeds))}
    return {"rows": rows, "settings": settings, "evaluation": evaluations}


def _measured(found: dict[str, Any]) -> dict[str, Any]:
    """Return the scalars of an evaluation that belong into a row."""
    row = found.get("scores", {}) | found.get("cost", {}) | found.get("corruptions", {}).get("means", {})
    if "ood" in found:
        best = found["ood"].get("best")
        row["ood_auroc"] = found["ood"]["scores"].get(best, {}).get("auroc")
    return {name: value for name, value in row.items() if name != "method"}


def _finished(folder: Path, results: dict[str, Any], runs: dict[str, Path]) -> Content:
    results = {"evaluation": {}} | results
    plans, histories = {}, {}
    for name, run in runs.items():
        if (run / "plan.json").exists():
            plan = _plan(run)
            plans[name] = plan["describe"] | {"executor": plan.get("executor"), "environment": plan["environment"]}
            histories[name] = history_of(plan["identity"]["recipe"], run / "log.jsonl")
    results |= {
        "plans": plans,
        "history": histories,
        "ranking": ranking(results["rows"], costs=list(COSTS), loss=score_of(results["evaluation"])),
    }
    data = results["settings"].get("data")
    title = f"{data}: {len(runs)} methods compared" if data else folder.resolve().name
    if "chosen" in results:
        title = f"{results['chosen']} in {title}"
    elif not data and len(runs) == 1:
        title = f"{next(iter(runs))} in {title}"
    return _checked(title, results)


def _checked(title: str, results: dict[str, Any]) -> Content:
    """Return the content with only those parts of evaluations that can be shown."""
    results, left = sound_together(results)
    evaluations = {}
    held = results["evaluation"]
    if not isinstance(held, dict):
        held, left = {}, [*left, "evaluation"]
    for name, found in held.items():
        kept, wrong = sound(found, f"evaluation.{name}")
        left += wrong
        if kept is not None:
            evaluations[name] = kept
    return Content(title, results, evaluations, tuple(left))
