"""The commands that measure and show: evaluate and report."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError
from choral.cli.options import Json, Saved, baseline_note
from choral.cli.output import note, say, table, write_json
from choral.cli.prediction import check_kind, predicted

_LISTED = 40  # columns of a table of importance


def evaluate(
    ensemble: Saved,
    data: Annotated[str, typer.Argument(help="Labeled data: a built-in name, an .npz file or a table.")],
    ood: Annotated[str | None, typer.Option(help="Other data, to see whether it is told apart.")] = None,
    corruptions: Annotated[str | None, typer.Option(help="all, or names with commas; images only.")] = None,
    holdout: Annotated[
        float, typer.Option(min=0.01, max=0.9, help="Part of built-in data kept for testing, as given to fit.")
    ] = 0.25,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Score only the rows of a table that fit kept for testing (--holdout).")
    ] = False,
    importance: Annotated[
        bool,
        typer.Option("--importance", help="Show how much worse the scores get without each column, and what it does."),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the result in the run folder, for choral report.")] = False,
    json: Json = False,
) -> None:
    """Measure a saved ensemble on labeled data.

    Example: choral evaluate runs/houses-auto houses.csv --held-out
    """
    from choral.comparison.evaluation import judge, make_trial, row_of
    from choral.comparison.evaluation import keep as write
    from choral.comparison.importance import importance as weigh
    from choral.comparison.importance import parts_of
    from choral.fit import load

    if keep and not ensemble.is_dir():
        raise InputError(f"--keep writes into a run folder, but {ensemble} is not one; leave it out.")
    loaded = load(ensemble)
    x, y, shape = _rows_of(loaded, data, holdout, targets=True)
    x, y = _not_trained_on(loaded, data, x, y, alone=held_out)
    other = None if ood is None else _rows_of(loaded, ood, holdout, targets=False)[0]
    if other is not None:
        predicted(loaded, other[:1], str(ood))  # says what is wrong with them before anything is measured
    trial = make_trial(
        x, y, ood=other, ood_name=f"the inputs of {ood}", corruptions=corruptions or (), image_shape=shape
    )
    _check_labels(loaded, x, y, data)
    if importance:
        parts_of(loaded, x)  # refuses images before anything is measured
    found = judge(loaded, trial) | ({"importance": weigh(loaded, x, y)} if importance else {})
    if keep:
        write(ensemble, loaded, found, trial)
    worse = baseline_note(found)
    if worse:
        note(worse)
    if json:
        write_json(row_of(loaded, found) | {"evaluation": found})
        return
    _show(f"{ensemble} on {data}: {len(x)} rows", row_of(loaded, found), found, data, ood)
    if keep:
        say(f"kept in {ensemble / 'evaluation.json'}; show it with: choral report {ensemble}")


def _show(title: str, row: dict[str, Any], found: dict[str, Any], data: str, ood: str | None) -> None:
    """Print an evaluation as tables."""
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
        _show_importance(**found["importance"])
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


def _show_importance(measure: str, columns: list[dict[str, Any]], **_: Any) -> None:
    """Print what each column does for the scores; members are alike where lowest and highest are near each other."""
    others = [n for n in columns[0]["worse"] if n != measure]
    rows = [
        {"column": r["column"], f"{measure} worse by": r["worse"][measure], "error": r["error"][measure]}
        | {"lowest member": min(r["members"][measure]), "highest member": max(r["members"][measure])}
        | {f"{name} worse by": r["worse"][name] for name in others}
        for r in columns[:_LISTED]
    ]
    table("scores when the cells of one column are exchanged between rows", list(rows[0]), rows)
    if len(columns) > _LISTED:
        say(f"{len(columns) - _LISTED:,} more columns matter less; --json has them.")


def _rows_of(loaded: Any, data: str, holdout: float, *, targets: bool) -> tuple[Any, Any, tuple[int, int] | None]:
    """Return inputs, targets (None if they are not wanted) and image shape of test data, encoded as the ensemble's own."""
    from choral.data.problems import origin_of, read_inputs, read_labeled
    from choral.tables.problems import load_problem
    from choral.tables.reading import ending, read_table
    from choral.tables.table import with_target

    check_kind(loaded, data)
    if ending(Path(data)):
        frame = read_table(Path(data))
        if targets:
            frame = with_target(frame, loaded.table.target, data)
        x = loaded.table.inputs(frame, path=data)
        return x, loaded.table.targets(frame, path=data) if targets else None, None
    if Path(data).suffix.lower() == ".npz" and Path(data).exists():
        return *(read_labeled(Path(data)) if targets else (read_inputs(Path(data)), None)), None
    problem = load_problem(data, holdout=holdout)
    origin = loaded.table.origin if loaded.table is not None else ""
    if origin.startswith(f"{data} ") and origin != origin_of(data, holdout):
        raise InputError(
            f"this ensemble was fitted on {origin}, and --holdout {holdout:g} would scale the rows in another way and take "
            "rows it was trained on; give the same."
        )
    return problem.x_test, problem.y_test, problem.image_shape


def _not_trained_on(loaded: Any, data: str, x: Any, y: Any, *, alone: bool) -> tuple[Any, Any]:
    """Return the rows to measure, and say how many of them were trained on."""
    seen = loaded.table.seen if loaded.table is not None else None
    if seen is None:
        if alone:
            raise InputError("--held-out: the training rows of this ensemble are not known; leave it out.")
        return x, y
    known = seen.find(x, y)
    if alone:
        if known.all():
            raise InputError(
                f"--held-out: every row of {data} is one that was trained on (or equals one), so none is left to measure."
            )
        return x[~known], y[~known]
    if known.mean() > 1e-4:  # one in 70,000 is taken for known that is not
        rest = "" if known.all() else "; --held-out measures the others alone"
        note(f"choral: {known.sum():,} of {len(known):,} rows of {data} were trained on, so the scores flatter{rest}.")
    return x, y


def _check_labels(loaded: Any, x: Any, y: Any, data: str) -> None:
    """Raise InputError if targets are not of the kind that the ensemble predicts, or name classes it has not."""
    prediction = predicted(loaded, x[:1], data)
    real = getattr(y, "dtype", None) is not None and y.dtype.kind == "f"
    if loaded.task == "classification":
        classes = prediction.probs.shape[-1]
        if real or int(y.max()) >= classes:
            what = "real numbers" if real else f"the class {int(y.max())}"
            raise InputError(f"{data} holds {what} as targets, but the ensemble knows the classes 0 to {classes - 1}.")
    elif loaded.task == "regression" and not real:
        raise InputError(f"{data} holds classes as targets, but the ensemble predicts numbers; give data like its own.")
    prediction.targets(y[:1])


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison, or several runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write to; the folder itself if left out.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: Json = False,
) -> None:
    """Write one HTML page with every table and figure of a run or comparison.

    Example: choral report runs/houses-auto --open
    """
    from choral.report import write_report

    page = write_report(folder, out=out)
    if json:
        write_json({"report": page, "figures": page.parent / "figures", "results": page.parent / "report.json"})
    else:
        say(f"report: {page}")
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def measured(ensemble: Any, problem: Any, folder: Path, ends: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row of a fitted ensemble and the whole evaluation, which its run folder keeps.

    The importance of columns is left out if it would take longer than until `ends`, by time.perf_counter.
    """
    from choral.comparison.compare import trial_of
    from choral.comparison.evaluation import judged, keep, row_of
    from choral.comparison.importance import importance

    trial = trial_of(problem)
    found = judged(folder, ensemble, trial)
    columns = problem.table.columns if problem.table is not None else ()
    row = row_of(ensemble, found)
    if 0 < len(columns) <= _LISTED and len(problem.x_test) and "importance" not in found:
        # predictions of exchanges and curves; scores of members take as long
        predictions = 5 * len(columns) + 20 * min(len(columns), 6)
        if time.perf_counter() + 2 * predictions * row["predict_seconds"] < ends:
            found["importance"] = importance(ensemble, problem.x_test, problem.y_test)
            keep(folder, ensemble, found, trial)
        else:
            note("choral: no time is left for the importance of columns; choral evaluate --importance shows it.")
    return row, found


def report_of_comparison(folder: Path) -> str | None:
    """Write the report of a finished comparison, unless it is newer than the results; return its path.

    None is returned, with a note, where matplotlib is missing.
    """
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        note("choral: no report was written: matplotlib is missing; pip install 'choral[plots]', then choral report.")
        return None
    from choral.report import write_report

    page, compared = folder / "report.html", folder / "comparison.json"
    if page.exists() and page.stat().st_mtime_ns >= compared.stat().st_mtime_ns:
        return str(page)
    return str(write_report(folder))
