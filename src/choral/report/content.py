"""What a report shows, read from a folder: every number is in one dict of plain types, `results`.

A folder holds a comparison (comparison.json), one run (plan.json), several runs, or a search (choice.json). It may come from anywhere, so
each part of it is checked before it is drawn: a part that is damaged is left out and named, and a wrong single number is a dash.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from choral.base.errors import ChoralError, RunError
from choral.base.text import short
from choral.engine import files
from choral.plots import history
from choral.tables.table import table_from

SCORES = ("nll", "pinball", "loss")  # methods are ranked by the one they have; smaller is better
_COSTS = ("train_flops", "train_seconds")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether something can be shown, sorted and drawn as a number.

    >>> is_number(0.5), is_number(True), is_number(float("nan")), is_number("0.5"), is_number(10**400)
    (True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # NaN is not below


@dataclass(frozen=True)
class Such:
    """A shape whose values must also pass a test."""

    shape: Any
    test: Callable[[Any], bool]


def misfit(value: Any, shape: Any, place: str = "") -> str | None:
    """Return the first place at which a value has another shape; None if it fits.

    Args:
        value: what a file holds.
        shape: a type (float is any number), [shape] for a list, {str: shape} for a dict with any keys, {"name": shape} for one with
            these keys ("name?" may be missing or None), `Such`.
        place: where the value stands.

    >>> misfit({"a": [1, "x"]}, {"a": [float], "b?": str}), misfit({"a": []}, {"a": [float]})
    ('.a[1]', None)
    """
    if isinstance(shape, Such):
        return misfit(value, shape.shape, place) or (None if shape.test(value) else place)
    if isinstance(shape, type):
        return None if (is_number(value) if shape is float else isinstance(value, shape)) else place
    if not isinstance(value, type(shape)):
        return place
    if isinstance(shape, list):
        inner = [(item, shape[0], f"{place}[{i}]") for i, item in enumerate(value)]
    elif str in shape:
        inner = [(item, shape[str], f"{place}.{name}") for name, item in value.items()]
    else:
        asked = {name.removesuffix("?"): inside for name, inside in shape.items()}
        free = {name for name in asked if f"{name}?" in shape and value.get(name) is None}
        inner = [(value.get(n), inside, f"{place}.{n}") for n, inside in asked.items() if n not in free]
    return next(filter(None, (misfit(*part) for part in inner)), None)


def _equal(*names: str, more: int = 0) -> Callable[[Any], bool]:
    """Return a test that lists have the same length, the first `more` elements more, and are not empty."""
    return lambda held: {len(held[n]) for n in names[1:] if held.get(n)} == {len(held[names[0]]) - more} - {0}


def _weighed(found: dict[str, Any]) -> bool:
    """Return whether every column has the same measures, and every curve a point for each value and output."""
    measures = [set(row[n]) for row in found["columns"] for n in ("worse", "members")]
    shaped = all(
        len(d["values"]) == len(rows) == len(d.get("at") or rows) and all(len(r) == len(d["outputs"]) for r in rows)
        for d in found["dependence"]
        for rows in (d["mean"], *d["members"])
    )
    return bool(measures) and all(found["measure"] in m and m == measures[0] for m in measures) and shaped


_FEW: Any = Such([float], lambda held: len(held) > 0)
_CURVE = {"column": str, "values": [str], "at?": [float], "outputs": [str], "mean": [[float]], "members": [[[float]]]}
_INTERVAL = {"target": float, "mean": float, "low": float, "high": float}
_SHARES = {"names": [str], "counts": [float], "recall": list, "precision": list}
_PARTS: dict[str, Any] = {
    "reliability": Such(
        {n: [float] for n in ("edges", "counts", "confidence", "accuracy")},
        lambda t: _equal("edges", "counts", "confidence", "accuracy", more=1)(t) and sum(t["counts"]) > 0,
    ),
    "classes": Such(
        _SHARES | {"average_precision?": list, "confusion?": [[float]]},
        lambda told: (
            _equal("names", "counts", "recall", "precision", "average_precision", "confusion")(told)
            and all(len(row) == len(told["names"]) for row in told.get("confusion") or ())
        ),
    ),
    "importance": Such(
        {
            "measure": str,
            "columns": [{"column": str, "worse": {str: float}, "members": {str: _FEW}}],
            "dependence": [_CURVE],
        },
        _weighed,
    ),
    "sizes": Such(
        [{str: float}],
        lambda rows: bool(rows) and "members" in rows[0] and all(row.keys() == rows[0].keys() for row in rows),
    ),
    "diversity": Such(
        {"measure": str, "matrix": [[float]]}, lambda d: all(len(r) == len(d["matrix"]) for r in d["matrix"])
    ),
    "histograms": Such(
        {"of": str, "edges": [float], "in": [float], "out?": [float]},
        lambda h: (
            _equal("edges", "in", "out", more=1)(h) and h["edges"][0] > 0 and sorted(set(h["edges"])) == h["edges"]
        ),
    ),
    "ood": {"name": str, "scores": {str: dict}},
    "corruptions": {
        "means": dict,
        "by_corruption": dict,
        "levels": Such([{"severity": float, "accuracy": float, "nll": float, "ece": float}], bool),
    },
    "coverage": Such([{"level": float, "coverage": float}], bool),
    "intervals": {"level": float, "rows": Such([_INTERVAL], bool)},
    "risk": Such({"of": str, "kept": [float], "risk": [float]}, _equal("kept", "risk")),
    "pit": _FEW,
    "worst": [dict],
    "baseline": {str: float},
}
_HEAD = {"task": str, "scores": dict, "cost": dict}
_COMPARISON = {"rows": Such([{"method": str}], bool), "settings": dict}
_CHOICE = {"row": {"method": str}, "findings": Such([str], bool)}
_NODE: dict[str, Any] = {"label": str}
_NODE["children"] = [_NODE]
_PLAN = {"describe": {"tree": _NODE}, "identity": dict, "environment": dict}


@dataclass(frozen=True)
class Content:
    """Everything on the page.

    Attributes:
        title: what the page is called.
        results: rows, settings, evaluation, findings, plans and history by method, columns.
        evaluations: by method, the parts of its evaluation that can be shown; of the first seed.
        left_out: places in the files that hold something else than they should.
        others: by method, the evaluations of further seeds.
    """

    title: str
    results: dict[str, Any]
    evaluations: dict[str, dict[str, Any]]
    left_out: tuple[str, ...] = ()
    others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def score(self) -> str:
        """The score that methods are ranked by, smaller is better."""
        return next((e["score"] for e in self.evaluations.values() if e.get("score") in SCORES), SCORES[0])

    @property
    def methods(self) -> list[str]:
        """Names of the methods, best first; those without a score last."""
        rows, score = self.results["rows"], self.score
        return [r["method"] for r in sorted(rows, key=lambda r: r[score] if is_number(r.get(score)) else float("inf"))]

    @property
    def task(self) -> str | None:
        """What is predicted; None if nothing was evaluated."""
        return next((e["task"] for e in self.evaluations.values()), None)

    @property
    def alone(self) -> str | None:
        """The method that a page about one ensemble is about; None on a page that compares."""
        return self.results.get("chosen") or (self.methods[0] if len(self.methods) == 1 else None)

    def parts(self, method: str, name: str) -> list[Any]:
        """Return a part of a method's evaluation, for each seed that has it."""
        held = [self.evaluations.get(method, {}), *self.others.get(method, [])]
        return [found[name] for found in held if name in found]

    def evaluated(self, name: str) -> list[str]:
        """Return the methods, best first, whose evaluation has some part."""
        return [m for m in self.methods if name in self.evaluations.get(m, {})]

    def row(self, method: str) -> dict[str, Any]:
        """Return a method's row."""
        return next(dict(r) for r in self.results["rows"] if r["method"] == method)


def collect(folder: Path) -> Content:
    """Return the content of a run, a comparison, a search or a folder of runs."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of a run or of a comparison.")
    if (folder / "comparison.json").exists():
        results = _read(folder / "comparison.json", _COMPARISON) or {}
        found = sorted(
            [*folder.glob("*/plan.json"), *folder.glob("seed-*/*/plan.json")]
        )  # a name is no way out of the folder
        runs = {r["method"]: [p.parent for p in found if p.parent.name == r["method"]] for r in results["rows"]}
        return _finished(f"{results['settings'].get('data')}: {len(runs)} methods compared", results, runs)
    if (folder / "plan.json").exists():
        runs = {str(_plan(folder)["describe"].get("name")): [folder]}
    else:
        runs = {p.parent.name: [p.parent] for p in sorted(folder.glob("*/plan.json"))}
    if not runs:
        raise RunError(
            f"{folder} holds no run (plan.json) and no comparison (comparison.json); give the folder that choral fit "
            "or choral compare wrote."
        )
    results, choice = _of_runs(runs), _read(folder / "choice.json", _CHOICE)
    if choice is not None:
        chosen = choice["row"]["method"]
        found = _evaluation(folder)
        results["evaluation"] |= {} if found is None else {chosen: found}
        rows = [choice["row"] | _measured(found), *results["rows"]]
        results |= {"rows": rows, "findings": choice["findings"], "chosen": chosen}
    alone = results.get("chosen") or (next(iter(runs)) if len(runs) == 1 else None)
    return _finished(f"{alone} in {folder.resolve().name}" if alone else folder.resolve().name, results, runs)


def _read(path: Path, shape: Any = None) -> dict[str, Any] | None:
    """Return the dict in a file, None if there is no file; RunError if it is damaged or has another shape."""
    held = files.read_json(path, advice="run the command that made it again")
    place = None if held is None or shape is None else misfit(held, shape)
    if place is not None:
        raise RunError(
            f"{path} holds something else than choral writes at {short(place.lstrip('.'))}; run the command that made it again."
        )
    return held


def _plan(folder: Path) -> dict[str, Any]:
    return _read(folder / "plan.json", _PLAN) or {}


def _evaluation(folder: Path) -> Any:
    """Return the evaluation that a run's folder keeps, whatever it is; None if there is none."""
    held = (_read(folder / "evaluation.json") or {}).get("evaluation")
    return next(iter(held.values()), None) if isinstance(held, dict) else None


def _of_runs(runs: dict[str, list[Path]]) -> dict[str, Any]:
    """Return results with a row and the evaluation of every run, from the runs' own files."""
    rows: list[dict[str, Any]] = []
    evaluations: dict[str, Any] = {}
    for name, (folder,) in runs.items():
        own, plan, found = _read(folder / "results.json") or {}, _plan(folder), _evaluation(folder)
        counted = own["counted"] if isinstance(own.get("counted"), dict) else {}
        row = {"method": name} | {n: plan["describe"].get(n) for n in ("members", "epochs")}
        row |= {n: own.get(n) for n in ("parameters", "predict_flops")} | {n: counted.get(n) for n in _COSTS}
        evaluations |= {} if found is None else {name: found}
        rows.append(row | _measured(found))
    seeds = sorted({str(_plan(f)["identity"].get("seed")) for (f,) in runs.values()})
    return {"rows": rows, "settings": {"seed": ", ".join(seeds)}, "evaluation": evaluations}


def _measured(found: Any) -> dict[str, Any]:
    """Return the scalars of an evaluation that belong into a row."""
    sound, _ = _sound(found, "")
    row = sound.get("scores", {}) | sound.get("cost", {}) | sound.get("corruptions", {}).get("means", {})
    if "ood" in sound:
        row["ood_auroc"] = sound["ood"]["scores"].get(sound["ood"].get("best"), {}).get("auroc")
    return {name: value for name, value in row.items() if name != "method"}


def _sound(found: Any, place: str) -> tuple[dict[str, Any], list[str]]:
    """Return the parts of an evaluation that can be shown (none if not even its scores can), and the wrong places."""
    wrong = misfit(found, _HEAD, place)
    if wrong is not None:
        return {}, [wrong]
    left = [misfit(found[name], shape, f"{place}.{name}") for name, shape in _PARTS.items() if name in found]
    places = [p for p in left if p is not None]
    lost = {p.removeprefix(f"{place}.").split(".")[0].split("[")[0] for p in places}
    return {n: v for n, v in found.items() if n not in lost}, places


def _finished(title: str, results: dict[str, Any], runs: dict[str, list[Path]]) -> Content:
    """Return the content with the plans and logs of the runs, one for each seed, and only what can be shown of evaluations."""
    results = {"evaluation": {}, "plans": {}, "history": {}} | results
    others = {name: [_sound(_evaluation(run), "")[0] for run in own[1:]] for name, own in runs.items()}
    for name, own in runs.items():
        if own:
            plan = _plan(own[0])
            results["plans"][name] = plan["describe"] | {n: plan.get(n) for n in ("environment", "made")}
            results["history"][name] = history(own[0])
            results.setdefault("table", _table(own[0]))
    evaluations: dict[str, dict[str, Any]] = {}
    left: list[str] = []
    if not isinstance(results["evaluation"], dict):
        left.append("evaluation")
    for name, found in results["evaluation"].items() if not left else ():
        evaluations[name], wrong = _sound(found, f"evaluation.{name}")
        left += wrong
    return Content(title, results, {n: e for n, e in evaluations.items() if e}, tuple(left), others)


def _table(run: Path) -> dict[str, Any] | None:
    """Return the target, its unit and how each column was read; None of arrays."""
    try:
        table = table_from(_read(run / "table.json"), str(run / "table.json"))
    except ChoralError:
        return None
    if table is None or not table.columns:
        return None
    return {"target": table.target, "unit": table.unit, "columns": table.describe()}
