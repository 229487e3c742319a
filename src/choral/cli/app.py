"""The commands methods, plan, fit and compare. Each imports what it needs when it runs."""

import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from choral import __version__
from choral.base.errors import InputError
from choral.cli import cluster_runs
from choral.cli.options import (
    Apart,
    Budget,
    Data,
    Epochs,
    Json,
    Members,
    OnCluster,
    Reading,
    Running,
    Settings,
    Watching,
    given,
    prepare_fit,
    read_problem,
    spread,
)
from choral.cli.output import note, progress, say, show_comparison, table, write_json
from choral.cli.prediction import export, predict, serve
from choral.cli.process import place
from choral.cli.reports import evaluate, report, told

app = typer.Typer(
    name="choral",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Turn one network into a calibrated ensemble for about the cost of training it once.

    Example: choral fit houses.csv --target price
    """
    if version or context.invoked_subcommand is None:
        say(f"choral {__version__}" if version else context.get_help())
        raise typer.Exit(0 if version else 2)


@app.command()
def methods(json: Json = False) -> None:
    """List all methods: family, summary and paper.

    Example: choral methods
    """
    from choral.recipes import METHODS

    rows = [{"name": n, "family": m.family, "summary": m.summary, "paper": m.paper} for n, m in METHODS.items()]
    if json:
        write_json(rows)
    else:
        brief = [row | {"paper": re.sub(r'"[^"]*", ', "", row["paper"]).split(";")[0].split(" (")[0]} for row in rows]
        table("Methods", ["name", "family", "summary", "paper"], brief)
        say("choral plan NAME shows what a method does; choral methods --json has the papers in full.")


@app.command()
@spread
def plan(
    name: Annotated[str, typer.Argument(help="The method, or auto.", metavar="METHOD")],
    data: Annotated[str | None, typer.Argument(help="Data as for fit, for exact costs.")] = None,
    *,
    epochs: Epochs = None,
    budget: Budget = None,
    members: Members = None,
    watching: Watching,
    reading: Reading,
    settings: Settings,
    json: Json = False,
) -> None:
    """Show the plan of a method and its cost before training; with DATA, exactly what fit would do.

    Example: choral plan snapshot houses.csv --target price --budget 60
    """
    from choral.plan import EarlyStopping
    from choral.preview import show
    from choral.recipes import make
    from choral.tables.fit import AUTO, METHOD, check_members

    known = make(METHOD if name == AUTO and data is not None else name)
    check_members(known.name, members)
    if data is not None:
        asked: dict[str, Any] = {"method": name, "epochs": epochs, "budget": budget, "members": members}
        ready = prepare_fit(data, reading, settings, watching, quiet=json, **asked)
        _show_plan(ready, reading.likelihood, json=json)
        return
    typed = given(replace(reading, holdout=Reading.holdout), settings, Watching(cv=watching.cv))
    if typed:
        raise InputError(f"{typed[0]} changes what fit does with data; add the data, or leave it out.")
    stop = None if watching.patience is None else EarlyStopping(patience=watching.patience)
    recipe = make(known.name, epochs=epochs, budget=budget, members=None if members == 1 else members)
    if json:
        write_json(recipe.describe() | ({} if stop is None else {"early_stopping": stop.to_dict()}))
    else:
        say(show(recipe, early_stopping=stop))


def _show_plan(ready: Any, likelihood: str | None, *, json: bool) -> None:
    from choral import models
    from choral.preview import show

    problem, stop = ready.problem, ready.early_stopping
    trained, held = problem.validating(ready.validation) if ready.shares else (problem, ready.validation)
    points = (trained.x_train, trained.y_train)
    text = show(ready.planned, ready.build, points, early_stopping=stop, validation=held, likelihood=likelihood)
    if json:
        about = {"training": ready.training.to_dict(), "columns": problem.table.describe(), "text": text}
        if stop is not None:
            about |= {"early_stopping": stop.to_dict(), "validation": ready.validation}
        write_json(ready.planned.describe() | about)
        return
    say(f"{problem.name}: {len(problem.x_train)} training rows, {len(problem.x_test)} held out, {problem.task}")
    if ready.folds:
        say(f"cv: every member holds out another of {ready.folds} folds, and stops by its score on it")
    elif ready.shares and ready.validation:
        say(
            f"validation: {ready.validation:.0%} of the training rows are held out; each member stops by its score on them"
        )
    spec = models.spec_of(ready.build()) or {}
    shown = {k: str(v) if len(str(v)) <= 40 else f"{len(v)} of them" for k, v in spec["arguments"].items()}
    say(f"network: {spec['name']}({', '.join(f'{k}={v}' for k, v in shown.items())})")
    for candidate in ready.candidates:
        say(f"candidate: {candidate.name}: {candidate.why}")
    say(text)


@app.command()
@spread
def fit(
    context: typer.Context,
    data: Data,
    *,
    reading: Reading,
    method: Annotated[
        str | None,
        typer.Option(help="A method (choral methods lists them), or auto, a search (default for tables)."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Run folder or URL; resumes a run there. Default: runs/DATA-METHOD.")
    ] = None,
    epochs: Epochs = None,
    budget: Budget = None,
    members: Members = None,
    settings: Settings,
    watching: Watching,
    class_weight: Annotated[str | None, typer.Option(help="Weights of classes: balanced, or 'yes=5,no=1'.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds of wall time for the whole command.")] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Accumulate gradients over parts of each batch.")] = 1,
    extend: Annotated[bool, typer.Option("--extend", help="Add members to the run in the folder.")] = False,
    apart: Apart,
    running: Running,
) -> None:
    """Train an ensemble and save it.

    Example: choral fit houses.csv --target price
    """
    started = context.obj or time.perf_counter()
    from choral.engine.compute import Compute, is_far
    from choral.engine.validation import Limit
    from choral.tables.fit import METHOD, check_one_process

    limit = None if time_limit is None else Limit.of(time_limit, started)
    made: dict[str, Any] = {"executor": running.executor, "precision": running.precision, "accumulate": accumulate}
    compute = Compute(**made, device=running.device, time_limit=limit)
    cluster_runs.check_apart(apart, time_limit, extend=extend, overwrite=running.overwrite)
    (rank, processes), far = place(), is_far(out or "")
    if method is None and (apart.prepare or apart.cluster is not None or extend or processes > 1 or far):
        method = METHOD  # what is chosen is chosen within one process
    typed = context.params | {"method": method}
    ready = cluster_runs.understood(typed, quiet=running.silent)
    usual = Path("runs") / f"{Path(data).name.split('.')[0] or Path(data).name}-{ready.name}"
    folder = usual if far or out is None else Path(out)  # of this machine, for what is made of the run
    where = out if out is not None and far else folder
    if ready.candidates:
        check_one_process(apart.prepare or processes > 1 or far)
    if apart.prepare:
        cluster_runs.tell_prepared(typed, ready, where, apart, running)
        return
    compute = replace(compute, data_parallel=processes > 1, cluster=cluster_runs.cluster_of(apart.cluster))
    on_existing = "extend" if extend else running.on_existing
    silent = running.silent or rank > 0
    with progress(silent, running.shown) as bar, cluster_runs.results_only(apart.cluster):
        run: dict[str, Any] = {"run_dir": where, "on_existing": on_existing, "compute": compute}
        ensemble = ready.run(seed=running.seed, **run, callbacks=bar, progress=False)
    if rank:
        return
    saved = folder / "ensemble.choral"
    ensemble.save(saved)
    ends = None if time_limit is None else started + time_limit
    row, found = told(ensemble, ready.problem, folder, ends, heard=bar.is_seen, quiet=running.silent)
    if running.json:
        write_json(row | {"run_dir": str(folder), "saved": str(saved)} | found)
    else:
        title = f"{ready.problem.name}: {len(ready.problem.x_test)} rows held out"
        costs = ("parameters", "train_flops", "train_seconds", "predict_seconds")
        table(title, ["method", "members", "epochs", *ensemble.likelihood.prediction.shown, *costs], [row])
        say(f"saved {saved}; predict with: choral predict {saved} NEW.csv; look at it with: choral report {folder}")


@app.command()
@spread
def compare(
    data: Data = "digits",
    *,
    methods: Annotated[str, typer.Option(help="Comma-separated names, or all.")] = "all",
    budget: Annotated[int, typer.Option(min=1, help="Budget of each method, in epochs of one network.")] = 60,
    equal: Annotated[
        Literal["operations", "epochs"], typer.Option(help="Give all methods equal FLOPs or equal epochs.")
    ] = "operations",
    members: Members = None,
    seeds: Annotated[int | None, typer.Option(min=2, help="Number of seeds, starting at --seed.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the comparison and its report; resumes one there.")] = None,
    reading: Reading,
    settings: Settings,
    cluster: OnCluster = None,
    running: Running,
) -> None:
    """Train several methods with the same budget and compare them in one table.

    Example: choral compare houses.csv --target price --methods single,deep_ensemble,snapshot
    """
    from choral.comparison.compare import compare as run
    from choral.engine.compute import Compute
    from choral.recipes import make
    from choral.report import write_report
    from choral.tables.defaults import factory, training_for

    names: Any = [make(n.strip()).name for n in methods.split(",") if n.strip()] if methods != "all" else "all"
    if cluster is not None and out is None:
        raise InputError("--cluster needs --out, a folder that all its machines see; give one.")
    made: dict[str, Any] = {"executor": running.executor, "precision": running.precision, "device": running.device}
    compute = Compute(**made, cluster=cluster_runs.cluster_of(cluster))
    problem = read_problem(data, reading, quiet=running.silent)
    with progress(running.silent, running.shown) as bar, cluster_runs.results_only(cluster):
        comparison = run(
            factory(problem, reading.model),
            problem,
            names,
            budget=budget,
            equal=equal,
            members=members,
            training=training_for(problem, **asdict(settings)),
            run_dir=out,
            seed=running.seed if seeds is None else range(running.seed, running.seed + seeds),
            likelihood=reading.likelihood,
            on_existing=running.on_existing,
            compute=compute,
            callbacks=bar,
            progress=False,
        )
    if running.json:
        write_json(comparison.to_dict() | {"findings": comparison.findings})
    else:
        rows = f"{len(problem.x_train)} training rows, {len(problem.x_test)} test rows"
        title = f"{problem.name}: {rows}, each with the {equal} of {budget} epoch{'' if budget == 1 else 's'} of one network"
        show_comparison(title, comparison)
    if out is not None:
        try:
            page = f"; the report is {write_report(out)}"
        except InputError as error:  # matplotlib is missing
            page = ""
            note(f"choral: no report was written: {error}")
        if not running.json:
            say(f"everything is in {out}{page}")


for command in (predict, evaluate, report, export, serve):
    app.command()(command)
app.command(rich_help_panel="Commands for clusters")(cluster_runs.leaves)
app.command(rich_help_panel="Commands for clusters")(cluster_runs.run_leaf)
