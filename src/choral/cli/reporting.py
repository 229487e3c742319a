"""The commands that measure and show: evaluate and report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError
from choral.cli.output import note, say, table, write_json

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]


def evaluate(
    ensemble: Annotated[Path, typer.Argument(help="A saved ensemble or a run folder.")],
    data: Annotated[str, typer.Argument(help="Labelled data: a built-in name, .npz, .csv or .parquet.")],
    ood: Annotated[str | None, typer.Option("--ood", help="Other data, to see whether it is told apart.")] = None,
    corruptions: Annotated[
        str | None, typer.Option("--corruptions", help="all, or names with commas; images only.")
    ] = None,
    holdout: Annotated[
        float,
        typer.Option("--holdout", min=0.01, max=0.9, help="As given to fit, for the same test rows of built-in data."),
    ] = 0.25,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the result in the run folder, for choral report.")] = False,
    json: Json = False,
) -> None:
    """Measure a saved ensemble on labelled data."""
    from choral.fit import load
    from choral.judging.judge import judge, row_of
    from choral.judging.judge import keep as write
    from choral.judging.trial import make_trial

    if keep and not ensemble.is_dir():
        raise InputError(f"--keep writes into a run folder, but {ensemble} is not one; leave it out.")
    loaded = load(ensemble)
    x, y, shape = _rows_of(loaded, data, holdout, targets=True)
    other = None if ood is None else _rows_of(loaded, ood, holdout, targets=False)[0]
    trial = make_trial(
        x, y, ood=other, ood_name=f"the inputs of {ood}", corruptions=corruptions or (), image_shape=shape
    )
    try:
        found = judge(loaded, trial)
    except RuntimeError as error:
        shapes = f"{data} {x.shape[1:]}" + ("" if other is None else f", {ood} {other.shape[1:]}")
        raise InputError(f"the ensemble cannot read rows of these shapes: {shapes}; give data like its own.") from error
    if keep:
        write(ensemble, loaded, found, trial)
    if json:
        write_json(row_of(loaded, found) | {"evaluation": found})
        return
    row = row_of(loaded, found)
    table(
        f"{ensemble} on {data}: {len(x)} rows",
        ["measure", "value"],
        [{"measure": k, "value": v} for k, v in row.items()],
    )
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
    if keep:
        say(f"kept in {ensemble / 'evaluation.json'}; show it with: choral report {ensemble}")


def _rows_of(loaded: Any, data: str, holdout: float, *, targets: bool) -> tuple[Any, Any, tuple[int, int] | None]:
    """Return inputs, targets (None if they are not wanted) and image shape of test data, encoded as the ensemble's own."""
    from choral.data.problems import load_problem
    from choral.data.tables import read_table

    if Path(data).suffix in (".csv", ".parquet"):
        if loaded.table is None:
            raise InputError(f"{data} is a table, but this ensemble was fitted on arrays; give an .npz file.")
        frame = read_table(Path(data))
        x = loaded.table.inputs(frame, path=data)
        return x, loaded.table.targets(frame, scaled=False, path=data) if targets else None, None
    problem = load_problem(data, holdout=holdout)
    return problem.x_test, problem.y_test, problem.image_shape


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison, or several runs.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write; the folder itself if left out.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: Json = False,
) -> None:
    """Write one HTML page with every table and figure of a run or comparison."""
    from choral.report import write_report

    page = write_report(folder, out=out)
    if json:
        write_json(
            {"report": str(page), "figures": str(page.parent / "figures"), "results": str(page.parent / "report.json")}
        )
    else:
        say(f"report: {page}")
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def measured(ensemble: Any, problem: Any, folder: Path) -> dict[str, Any]:
    """Return the row of a fitted ensemble, and keep the whole evaluation in its run folder."""
    from choral.judging.compare import trial_of
    from choral.judging.judge import judged, row_of

    return row_of(ensemble, judged(folder, ensemble, trial_of(problem)))


def report_of_comparison(folder: Path) -> str | None:
    """Write the report of a finished comparison, unless it is newer than the results; return its path.

    None is returned, with a note, where matplotlib is missing.
    """
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        note(
            "choral: no report was written because matplotlib is missing; pip install 'choral[plots]', then choral report."
        )
        return None
    from choral.report import write_report

    page, compared = folder / "report.html", folder / "comparison.json"
    if page.exists() and page.stat().st_mtime_ns >= compared.stat().st_mtime_ns:
        return str(page)
    return str(write_report(folder))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(evaluate)
    app.command()(report)
