"""What a report shows, read from a folder: every number ends up in one dict of plain types, `results`.

Three kinds of folders are understood: a comparison (its results.json has rows), one run (plan.json), and a folder of
runs. The page and the figures are made from `results` alone, and it is written beside the page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.engine import files
from choral.engine.folder import folder_name
from choral.errors import RunError
from choral.report.history import history_of
from choral.report.ranking import ranking

COSTS = {"train_flops": "training operations", "predict_flops": "operations of one prediction"}


@dataclass(frozen=True)
class Content:
    """Everything on the page.

    Attributes:
        title: what the page is called.
        results: rows, settings, ranking, evaluation, history and plans by method, map, corruption_errors.
    """

    title: str
    results: dict[str, Any]

    @property
    def methods(self) -> list[str]:
        """Names of the methods, best first."""
        return [entry["method"] for entry in self.results["ranking"]]

    @property
    def task(self) -> str | None:
        """'classification' or 'regression'; None if nothing was evaluated."""
        return next((e["task"] for e in self.results["evaluation"].values()), None)

    def evaluated(self, part: str) -> list[str]:
        """Return the methods, best first, whose evaluation has some part."""
        return [m for m in self.methods if part in self.results["evaluation"].get(m, {})]

    def evaluation(self, method: str) -> dict[str, Any]:
        """Return a method's evaluation."""
        return dict(self.results["evaluation"][method])

    def row(self, method: str) -> dict[str, Any]:
        """Return a method's row."""
        return next(dict(r) for r in self.results["rows"] if r["method"] == method)


def collect(folder: Path) -> Content:
    """Return the content of a run, comparison or folder of runs."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of a run or of a comparison.")
    results = read_json(folder / "results.json") or {}
    if "settings" in results and "rows" in results and not (folder / "plan.json").exists():
        return _finished(folder, results, {r["method"]: folder / folder_name(r["method"]) for r in results["rows"]})
    if (folder / "plan.json").exists():
        return _finished(folder, _with_rows({}, {_name(folder): folder}), {_name(folder): folder})
    runs = {p.parent.name: p.parent for p in sorted(folder.glob("*/plan.json"))}
    if not runs:
        raise RunError(
            f"{folder} holds no run (plan.json) and no comparison (results.json with rows); give the folder that choral fit "
            "or choral compare wrote."
        )
    return _finished(folder, _with_rows({}, runs), runs)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the dict in a file, None if there is no file; raises RunError for one that is damaged."""
    return files.read_json(path, advice="run the command that made it again")


def _name(folder: Path) -> str:
    plan = read_json(folder / "plan.json")
    assert plan is not None
    return str(plan["describe"]["name"])


def _with_rows(results: dict[str, Any], runs: dict[str, Path]) -> dict[str, Any]:
    """Return results with a row and the evaluation of every run, from the runs' own results."""
    rows, evaluations = [], {}
    for name, folder in runs.items():
        plan, own = read_json(folder / "plan.json") or {}, read_json(folder / "results.json") or {}
        described = plan["describe"]
        row: dict[str, Any] = {"method": name, "members": described["members"], "epochs": described["epochs"]}
        counted = own.get("counted", {})
        row |= {"parameters": own.get("parameters"), "predict_flops": own.get("predict_flops")}
        row |= {n: counted.get(n) for n in ("train_flops", "train_seconds")}
        for found in own.get("evaluation", {}).values():
            evaluations[name] = found
            row |= found["scores"] | found["cost"] | found.get("corruptions", {}).get("means", {})
            if "ood" in found:
                best = "entropy" if found["task"] == "classification" else "variance"
                row["ood_auroc"] = found["ood"]["scores"][best]["auroc"]
        rows.append(row)
    seeds = {str((read_json(f / "plan.json") or {})["identity"]["seed"]) for f in runs.values()}
    settings = {"runs": len(runs), "seed": ", ".join(sorted(seeds))}
    return results | {"rows": rows, "settings": settings, "evaluation": evaluations}


def _finished(folder: Path, results: dict[str, Any], runs: dict[str, Path]) -> Content:
    results = {"evaluation": {}} | results
    plans, histories = {}, {}
    for name, run in runs.items():
        plan = read_json(run / "plan.json")
        if plan is None:
            continue
        plans[name] = plan["describe"] | {"executor": plan["executor"], "environment": plan["environment"]}
        histories[name] = history_of(plan["identity"]["recipe"], run / "log.jsonl")
    results |= {"plans": plans, "history": histories, "ranking": ranking(results["rows"], costs=list(COSTS))}
    data = results["settings"].get("data")
    title = f"{data}: {len(runs)} methods compared" if data else folder.resolve().name
    if not data and len(runs) == 1:
        title = f"{next(iter(runs))} in {title}"
    return Content(title, results)
