"""The content of a report, read from a folder as one dict of plain types, `results`.

A folder contains a comparison (comparison.json), one run (plan.json), several runs, or a search (choice.json). Files may be damaged: a
section that cannot be made is omitted and named, and an invalid number is a dash.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choral.base.errors import ChoralError, RunError
from choral.base.values import of_kind
from choral.comparison.comparison import is_number
from choral.comparison.evaluation import flat
from choral.engine import files
from choral.plots import history
from choral.tables.table import Table

SCORES = ("nll", "pinball", "loss")  # methods are ranked by the one they have; smaller is better
_COSTS = ("train_flops", "train_seconds")


WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of a file that holds something else


@dataclass(frozen=True)
class Content:
    """The content of the page.

    Attributes:
        title: the title of the page.
        results: rows, settings, evaluation, findings, plans and history by method, columns.
        evaluations: evaluations of the first seed, by method.
        left_out: sections that cannot be shown because files are damaged.
        others: evaluations of further seeds, by method.
    """

    title: str
    results: dict[str, Any]
    evaluations: dict[str, dict[str, Any]]
    left_out: list[str] = field(default_factory=list)
    others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def score(self) -> str:
        """The score by which methods are ranked, smaller is better."""
        return next((e["score"] for e in self.evaluations.values() if e.get("score") in SCORES), SCORES[0])

    @property
    def methods(self) -> list[str]:
        """Names of the methods, best first; those without a score last."""
        rows, score = self.results["rows"], self.score
        return [r["method"] for r in sorted(rows, key=lambda r: r[score] if is_number(r.get(score)) else float("inf"))]

    @property
    def alone(self) -> str | None:
        """The method of a page about one ensemble; None for a comparison."""
        return self.results.get("chosen") or (self.methods[0] if len(self.methods) == 1 else None)

    def parts(self, method: str, name: str) -> list[Any]:
        """Return a part of a method's evaluation, for each seed that has it."""
        held = [self.evaluations.get(method, {}), *self.others.get(method, [])]
        return [found[name] for found in held if name in found]

    def row(self, method: str) -> dict[str, Any]:
        """Return a method's row."""
        return next(dict(r) for r in self.results["rows"] if r["method"] == method)


def collect(folder: Path) -> Content:
    """Return the content of a run, a comparison, a search or a folder of runs."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of a run or of a comparison.")
    try:
        content = _collected(folder)
        assert content.methods  # can be ranked
        return content
    except ChoralError:
        raise
    except WRONG as error:
        raise RunError(
            f"{folder} holds something else than choral writes ({error!r}); run the command that made it again."
        ) from error


def _collected(folder: Path) -> Content:
    if (folder / "comparison.json").exists():
        results = _read(folder / "comparison.json") or {}
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
    results, choice = _of_runs(runs), _read(folder / "choice.json")
    if choice is not None:
        chosen = choice["row"]["method"]
        found = _evaluation(folder)
        results["evaluation"] |= {} if found is None else {chosen: found}
        rows = [choice["row"] | (flat(found) if found else {}) | {"method": chosen}, *results["rows"]]
        results |= {"rows": rows, "findings": choice["findings"], "chosen": chosen}
    alone = results.get("chosen") or (next(iter(runs)) if len(runs) == 1 else None)
    return _finished(f"{alone} in {folder.resolve().name}" if alone else folder.resolve().name, results, runs)


def _read(path: Path) -> dict[str, Any] | None:
    """Return the dict in a file, None if there is no file; RunError if it is damaged."""
    return files.read_json(path, advice="run the command that made it again")


def _plan(folder: Path) -> dict[str, Any]:
    return _read(folder / "plan.json") or {}


def _evaluation(folder: Path) -> Any:
    return next(iter((_read(folder / "evaluation.json") or {}).get("evaluation", {}).values()), None)


def _of_runs(runs: dict[str, list[Path]]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    evaluations: dict[str, Any] = {}
    for name, (folder,) in runs.items():
        own, plan, found = _read(folder / "results.json") or {}, _plan(folder), _evaluation(folder)
        counted = own.get("counted", {})
        planned = plan["describe"]
        row = {"method": name, "members": planned.get("members")}
        row["epochs"] = counted.get("epochs", planned.get("epochs"))  # training may have stopped early
        row |= {n: own.get(n) for n in ("parameters", "predict_flops")} | {n: counted.get(n) for n in _COSTS}
        evaluations |= {} if found is None else {name: found}
        rows.append(row | (flat(found) if found else {}) | {"method": name})
    seeds = sorted({str(_plan(f)["identity"].get("seed")) for (f,) in runs.values()})
    return {"rows": rows, "settings": {"seed": ", ".join(seeds)}, "evaluation": evaluations}


def _finished(title: str, results: dict[str, Any], runs: dict[str, list[Path]]) -> Content:
    results = {"evaluation": {}, "plans": {}, "history": {}} | results
    others = {name: [_evaluation(run) or {} for run in own[1:]] for name, own in runs.items()}
    for name, own in runs.items():
        if own:
            plan = _plan(own[0])
            results["plans"][name] = plan["describe"] | {n: plan.get(n) for n in ("environment", "made")}
            results["history"][name] = history(own[0])
            results.setdefault("table", _table(own[0]))
    return Content(title, results, {n: e for n, e in results["evaluation"].items() if e}, others=others)


def _table(run: Path) -> dict[str, Any] | None:
    """Return the target, its unit and how each column was read; None for arrays."""
    content = _plan(run).get("table")
    try:
        table = None if content is None else of_kind(Table, content, str(run))
    except ChoralError:
        return None
    if table is None or not table.columns:
        return None
    return {"target": table.target, "unit": table.unit, "columns": table.describe()}
