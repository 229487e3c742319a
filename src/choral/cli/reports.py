"""The commands evaluate and report, and the scores printed at the end of fit."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError
from choral.base.text import number
from choral.cli.options import Json, Saved
from choral.cli.output import note, say, table, write_json
from choral.cli.prediction import called, read_rows

_LISTED = 40  # columns of a table of importance


def evaluate(
    ensemble: Saved,
    data: Annotated[str, typer.Argument(help="Labeled data: a built-in name, an .npz file or a table.")],
    ood: Annotated[str | None, typer.Option(help="Out-of-distribution data, to score their detection.")] = None,
    corruptions: Annotated[str | None, typer.Option(help="all, or comma-separated names; images only.")] = None,
    holdout: Annotated[float, typer.Option(min=0.01, max=0.9, help="For built-in data: the same as in fit.")] = 0.25,
    held_out: Annotated[bool, typer.Option("--held-out", help="Score only rows that were not trained on.")] = False,
    importance: Annotated[
        bool, typer.Option("--importance", help="Show the permutation importance of columns.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the result in the run folder, for choral report.")] = False,
    json: Json = False,
) -> None:
    """Score a saved ensemble on labeled data.

    Example: choral evaluate runs/houses-auto houses.csv --held-out
    """
    from choral.comparison import evaluation
    from choral.comparison import importance as columns
    from choral.data.sources import as_targets
    from choral.fit import load

    if keep and not ensemble.is_dir():
        raise InputError(f"--keep writes into a run folder, but {ensemble} is not one; leave it out.")
    loaded = load(ensemble)
    x, y, shape, labels = _rows_of(loaded, data, holdout, targets=True)
    x, y, labels = _not_trained_on(loaded, data, x, y, labels, alone=held_out)
    other = None if ood is None else _rows_of(loaded, ood, holdout, targets=False)[0]
    with called(data):
        loaded.likelihood.check_judged(as_targets(y), tuple(loaded.outputs(x[:1]).shape[2:]))
    if other is not None:
        with called(ood):
            loaded.outputs(other[:1])  # says what is wrong with them before anything is measured
    strange: dict[str, Any] = {"ood": other, "ood_name": f"the inputs of {ood}"}
    trial = evaluation.make_trial(x, y, **strange, corruptions=corruptions or (), image_shape=shape, labels=labels)
    found = evaluation.judge(loaded, trial) | {"data": Path(data).name}
    found |= {"importance": columns.importance(loaded, x, y)} if importance else {}
    if keep:
        evaluation.keep(ensemble, loaded, found, trial)
    _note_baseline(found)
    row = evaluation.row_of(loaded, found)
    if json:
        write_json(row | {"evaluation": found})
        return
    _show(f"{ensemble} on {data}: {len(x)} rows", row, found, data, ood)
    if keep:
        say(f"saved in {ensemble / 'evaluation.json'}; show it with: choral report {ensemble}")


def _show(title: str, row: dict[str, Any], found: dict[str, Any], data: str, ood: str | None) -> None:
    table(title, ["measure", "value"], [{"measure": k, "value": v} for k, v in row.items()])
    if "classes" in found:
        held = found["classes"]
        rows = [
            {"class": name, "rows": held["counts"][i], "recall": held["recall"][i], "precision": held["precision"][i]}
            | ({"average_precision": held["average_precision"][i]} if "average_precision" in held else {})
            | {f"said {n}": k for n, k in zip(held["names"], held["confusion"][i]) if len(held["names"]) <= 6}
            for i, name in enumerate(held["names"][:50])
        ]
        table("by class", list(rows[0]), rows)
    if "importance" in found:
        measure, columns = found["importance"]["measure"], found["importance"]["columns"]
        rows = [
            {"column": r["column"], f"{measure} worse by": r["worse"][measure], "error": r["error"][measure]}
            | {"lowest member": min(r["members"][measure]), "highest member": max(r["members"][measure])}
            | {f"{name} worse by": value for name, value in r["worse"].items() if name != measure}
            for r in columns[:_LISTED]
        ]
        table("permutation importance of columns", list(rows[0]), rows)
        if len(columns) > _LISTED:
            say(f"{len(columns) - _LISTED:,} less important columns are in --json.")
    if "ood" in found:
        rows = [{"score": name} | values for name, values in found["ood"]["scores"].items()]
        table(f"{data} against {ood}", list(rows[0]), rows)
    if "corruptions" in found:
        rows = [
            {"corruption": name, "severity": s, **cell}
            for name, cells in found["corruptions"]["table"].items()
            for s, cell in zip(found["corruptions"]["severities"], cells)
        ]
        table(f"corruptions of {found['corruptions']['rows']} rows", list(rows[0]), rows)


def _rows_of(loaded: Any, data: str, holdout: float, *, targets: bool) -> tuple[Any, ...]:
    """Return inputs, targets (None if they are not wanted), image shape and labels of test rows."""
    from choral.data.problems import BUILT_IN, origin_of
    from choral.tables.problems import load_problem

    if data not in BUILT_IN:
        x, y, frame = read_rows(loaded, Path(data), targets=targets)
        return x, y, None, None if frame is None else loaded.table.labels(frame)
    problem = load_problem(data, holdout=holdout)
    origin = loaded.table.origin if loaded.table is not None else ""
    if origin.startswith(f"{data} ") and origin != origin_of(data, holdout):
        raise InputError(
            f"this ensemble was fitted on {origin}, and --holdout {holdout:g} would score rows that "
            "it was trained on; give the same."
        )
    return problem.x_test, problem.y_test, problem.image_shape, None


def _not_trained_on(loaded: Any, data: str, x: Any, y: Any, labels: Any, *, alone: bool) -> tuple[Any, Any, Any]:
    """Return the rows to measure, and print how many of them were trained on."""
    seen = loaded.table.seen if loaded.table is not None else None
    if seen is None and not alone:
        return x, y, labels
    known: Any = None if seen is None else seen.find(x, y)
    if alone:
        if known is None or known.all():
            why = "the training rows are not known" if known is None else f"every row of {data} was trained on"
            raise InputError(f"--held-out: {why}, so no row is left to score; leave it out.")
        return x[~known], y[~known], labels and [label for label, old in zip(labels, known) if not old]
    if known.mean() > 1e-4:  # one in 70,000 is taken for known that is not
        rest = "" if known.all() else "; --held-out scores only the others"
        note(
            f"choral: {known.sum():,} of {len(known):,} rows of {data} were trained on, so the scores are too good{rest}."
        )
    return x, y, labels


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison, or several runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write to; by default the same folder.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: Json = False,
) -> None:
    """Write one HTML page with all tables and figures of a run or comparison.

    Example: choral report runs/houses-auto --open
    """
    from choral.report import write_report

    page = write_report(folder, out=out)
    if json:
        write_json({"report": page, "figures": page.parent / "figures", "results": page.parent / "report.json"})
    else:
        say(f"report: {page}")
    if show:
        typer.launch(str(page.resolve()))


def told(
    ensemble: Any, problem: Any, folder: Path, ends: float | None, *, heard: bool, quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Score a fitted ensemble on the held-out rows and print the result; return its row, and what --json adds.

    The run folder stores the evaluation. Importance of columns is skipped if it would not be done by `ends`, a time.perf_counter. Results
    of candidates are not printed again if the progress showed them (`heard`).
    """
    from choral.comparison.compare import trial_of
    from choral.comparison.evaluation import judged, keep, row_of
    from choral.comparison.importance import importance
    from choral.ensemble.ensemble import understood_by

    if not quiet:
        note(f"choral: task {ensemble.task}: {understood_by(ensemble)}.")
    auto = ensemble.info.get("auto", {"reasons": [], "tried": []})
    for line in (*endings(ensemble.info), *(f"{one}." for one in auto["reasons"][len(auto["tried"]) * heard :])):
        note(f"choral: {line}")
    trial, read = trial_of(problem), problem.table
    found = judged(folder, ensemble, trial)
    row, count = row_of(ensemble, found), len(read.columns)
    if 0 < count <= _LISTED and len(problem.x_test) and "importance" not in found:
        # predictions of exchanges and curves; scores of members take as long
        seconds = 2 * (5 * count + 20 * min(count, 6)) * row["predict_seconds"]
        if ends is not None and time.perf_counter() + seconds >= ends:
            note("choral: no time is left for the importance of columns; choral evaluate --importance shows it.")
        else:
            found["importance"] = importance(ensemble, problem.x_test, problem.y_test)
            keep(folder, ensemble, found, trial)
    _note_baseline(found)
    more = {"task": problem.task} | ({"columns": read.describe()} if count else {})
    return row, more | ({"classes": found["classes"]} if "classes" in found else {})


def _note_baseline(found: dict[str, Any]) -> None:
    """Print a note if an ensemble is no better than always predicting the most frequent class."""
    classes, accuracy = found.get("classes"), found["scores"].get("accuracy", 1.0)
    if classes and accuracy <= classes["majority_accuracy"]:
        note(
            f"choral: accuracy {accuracy:.4f} is no better than always predicting '{classes['names'][classes['majority']]}' "
            f"({classes['majority_accuracy']:.4f}); look at the recall of each class."
        )


def endings(info: dict[str, Any]) -> list[str]:
    """Return sentences on trainings that ended early, and on out-of-fold scores.

    >>> endings({"stopped": [{"epoch": 8, "reason": "patience"}], "counted": {"epochs": 8}})
    ['1 training stopped early, after 8 epochs; 8 epochs were taken in all.']
    """
    said, stopped, held = [], sorted(one["epoch"] for one in info.get("stopped", [])), info.get("out_of_fold")
    if info.get("ended") == "time_limit":
        said.append(
            f"the time limit was reached: {info['networks']} network(s) are kept as they are; the same command with a larger "
            "--time-limit, or none, continues."
        )
    elif stopped:
        span = f"{stopped[0]}" if stopped[0] == stopped[-1] else f"{stopped[0]} to {stopped[-1]}"
        trainings = "training" if len(stopped) == 1 else "trainings"
        all_of = f"{info['counted']['epochs']:g} epochs were taken in all"
        said.append(f"{len(stopped)} {trainings} stopped early, after {span} epochs; {all_of}.")
    if held:
        scores = [
            f"{n} {number(held['scores'][n])}" for n in ("rmse", "accuracy", "pinball", "nll") if n in held["scores"]
        ]
        covered = "coverage" in held and f"; intervals or sets of {held['level']:.0%} cover {held['coverage']:.1%}"
        said.append(f"out of fold, over {held['rows']:,} training rows: {', '.join(scores)}{covered or ''}.")
    return said
