"""The commands methods, plan, fit and compare; others are in modules of their own. Each imports what it needs when it runs."""

import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from choral import __version__
from choral.base.errors import InputError
from choral.cli import cluster_runs, deployment, prediction, reports
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
    baseline_note,
    ended_note,
    folds_note,
    given,
    prepare,
    prepare_fit,
    spread,
)
from choral.cli.output import note, progress, say, show_comparison, table, write_json
from choral.cli.process import joined

app = typer.Typer(
    name="choral",
    help="Turn one network into a calibrated ensemble for about the price of training it once.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"choral {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Turn one network into a calibrated ensemble for about the price of training it once."""
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(2)


@app.command()
def methods(json: Json = False) -> None:
    """List every method: its family, what it does and its paper.

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
    data: Annotated[
        str | None, typer.Argument(help="Data as for fit: what fit would do with it, and what it costs.")
    ] = None,
    *,
    epochs: Epochs = None,
    budget: Budget = None,
    members: Members = None,
    watching: Watching,
    reading: Reading,
    settings: Settings,
    json: Json = False,
) -> None:
    """Show what a method would do with a budget, before any training; with DATA, exactly what fit would do.

    Example: choral plan snapshot houses.csv --target price --budget 60
    """
    from choral.plan import EarlyStopping
    from choral.preview import show
    from choral.recipes import make
    from choral.tables.fit import AUTO, METHOD, check_members

    known = make(METHOD if name == AUTO and data is not None else name)
    check_members(known.name, members)
    if data is None:
        stop = None if watching.patience is None else EarlyStopping(patience=watching.patience)
        typed = given(replace(reading, holdout=Reading.holdout), settings, Watching(cv=watching.cv))
        if typed:
            raise InputError(f"{typed[0]} changes what fit does with data; add the data, or leave it out.")
        recipe = make(known.name, epochs=epochs, budget=budget, members=None if members == 1 else members)
        stops = {} if stop is None else {"early_stopping": stop.to_dict()}
        write_json(recipe.describe() | stops) if json else say(show(recipe, early_stopping=stop))
        return
    asked: dict[str, Any] = {"method": name, "epochs": epochs, "budget": budget, "members": members}
    _show_plan(prepare_fit(data, reading, settings, watching, quiet=json, **asked), reading.likelihood, json=json)


def _show_plan(ready: Any, likelihood: str | None, *, json: bool) -> None:
    """Print the plan of a fit, and what is known of its data and network."""
    from choral.preview import show

    problem = ready.problem
    trained, held = problem.validating(ready.validation) if ready.shares else (problem, ready.validation)
    points = (trained.x_train, trained.y_train)
    text = show(
        ready.planned, ready.build, points, early_stopping=ready.early_stopping, validation=held, likelihood=likelihood
    )
    if json:
        read = problem.table.describe() if problem.table else []
        about = {"training": ready.training.to_dict(), "columns": read, "text": text}
        if ready.early_stopping is not None:
            about |= {"early_stopping": ready.early_stopping.to_dict(), "validation": ready.validation}
        write_json(ready.planned.describe() | about)
        return
    say(f"{problem.name}: {len(problem.x_train)} training rows, {len(problem.x_test)} held out, {problem.task}")
    if isinstance(ready.validation, float):
        say(f"validation: {ready.validation:.0%} of the training rows watch the training; members stop by themselves")
    if ready.folds:
        say(f"cv: every member holds out one of {ready.folds} parts of the training rows, by which it stops by itself")
    say(f"network: {_network(ready.build())}")
    for candidate in ready.candidates:
        say(f"candidate: {candidate.name}: {candidate.why}")
    say(text)


def _network(network: Any) -> str:
    from choral import models

    spec = models.spec_of(network)
    if spec is None:
        return type(network).__name__
    shown = {k: str(v) if len(str(v)) <= 40 else f"{len(v)} of them" for k, v in spec["arguments"].items()}
    return f"{spec['name']}({', '.join(f'{k}={v}' for k, v in shown.items())})"


@app.command()
@spread
def fit(
    context: typer.Context,
    data: Data,
    *,
    reading: Reading,
    method: Annotated[
        str | None,
        typer.Option(
            help="The method (see choral methods), or auto, which chooses by rows held out: the default of tables."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Run folder or URL; the same command resumes. Default: runs/DATA-METHOD.")
    ] = None,
    epochs: Epochs = None,
    budget: Budget = None,
    members: Members = None,
    settings: Settings,
    watching: Watching,
    class_weight: Annotated[
        str | None, typer.Option(help="What rows of each class count in training: balanced, or 'yes=5,no=1'.")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds of wall time for all of it; auto uses them, and training ends with what is there."),
    ] = None,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Parts of each batch, taken one after the other for less memory.")
    ] = 1,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add members to the run in the folder: --members, and --epochs by as much.")
    ] = False,
    apart: Apart,
    running: Running,
) -> None:
    """Train one ensemble and save it.

    Example: choral fit houses.csv --target price
    """
    started = context.obj or time.perf_counter()
    from choral.engine import validation
    from choral.engine.compute import Compute, is_far
    from choral.tables.fit import AUTO, METHOD, check_one_process

    _check_method(METHOD if method in (None, AUTO) else method, members)
    made: dict[str, Any] = {"executor": running.executor, "precision": running.precision, "accumulate": accumulate}
    limit = None if time_limit is None else validation.Limit.of(time_limit, started)
    compute = Compute(**made, device=running.device, time_limit=limit)
    cluster_runs.check_apart(apart, time_limit, extend=extend, overwrite=running.overwrite)
    silent = running.json or running.quiet
    shared = joined()
    apart_or_far = apart.prepare or apart.cluster is not None or extend or shared.several or is_far(out or "")
    method = METHOD if method is None and apart_or_far else method  # what is chosen is chosen within one process
    asked = {"method": method, "epochs": epochs, "budget": budget, "members": members, "class_weights": class_weight}
    words = cluster_runs.Words(data, reading, settings, watching, asked, running.seed, made)
    ready = words.understood(quiet=silent)
    problem = ready.problem
    validation.rules_of(ready.validation, ready.early_stopping, time_limit, ready.folds)
    place, folder = cluster_runs.places(out, Path("runs") / f"{_stem(data)}-{ready.name}")
    if ready.candidates:
        check_one_process(apart.prepare or shared.several or is_far(place))
    if apart.prepare:
        cluster_runs.tell_prepared(words, ready, place, apart, running)
        return

    with progress(silent or not shared.speaks, running.shown) as bar, cluster_runs.results_only(apart.cluster):
        ensemble = ready.run(
            run_dir=place,
            seed=running.seed,
            hearing=bar,
            progress=False,
            on_existing="extend" if extend else running.on_existing,
            compute=replace(compute, data_parallel=shared.several, cluster=cluster_runs.cluster_of(apart.cluster)),
        )
    if shared.speaks:
        ends = math.inf if time_limit is None else started + time_limit
        _tell(ensemble, problem, folder, ends, told=bar.is_seen, quiet=silent, json=running.json)


def _check_method(name: str, members: int | None = None) -> None:
    """Refuse a method that there is not, or members that it has not, before data is read."""
    from choral.recipes import METHODS, make
    from choral.tables.fit import check_members

    if name not in METHODS:
        make(name)  # raises
    check_members(name, members)


def _tell(ensemble: Any, problem: Any, folder: Path, ends: float, *, told: bool, quiet: bool, json: bool) -> None:
    """Save an ensemble beside its run, measure it on the rows held out, and say what came out, by `ends` of time.perf_counter.

    What came of each candidate is not said again where the progress `told` it.
    """
    from choral.ensemble.ensemble import understood_by

    if not quiet:
        note(f"choral: understood as {ensemble.task}: {understood_by(ensemble)}.")
    ended = ended_note(ensemble.info)
    if ended:
        note(ended)
    saved = folder / "ensemble.choral"
    ensemble.save(saved)
    row, found = reports.measured(ensemble, problem, folder, ends)
    auto = ensemble.info.get("auto", {"reasons": [], "tried": []})
    reasons = auto["reasons"][len(auto["tried"]) * told :]
    for line in (baseline_note(found), folds_note(ensemble.info), *(f"choral: {reason}." for reason in reasons)):
        if line:
            note(line)
    if json:
        read = {"columns": problem.table.describe()} if problem.table and problem.table.columns else {}
        classes = {"classes": found["classes"]} if "classes" in found else {}
        write_json(row | {"run_dir": str(folder), "saved": str(saved), "task": problem.task} | read | classes)
        return
    title = f"{problem.name}: {len(problem.x_test)} rows held out"
    costs = ("parameters", "train_flops", "train_seconds", "predict_seconds")
    table(title, ["method", "members", "epochs", *ensemble.likelihood.prediction.shown, *costs], [row])
    say(f"saved {saved}; predict with: choral predict {saved} NEW.csv; look at it with: choral report {folder}")


def _stem(data: str) -> str:
    """Return a data file's name without its ending.

    >>> _stem("a/houses.csv.gz"), _stem("digits")
    ('houses', 'digits')
    """
    name = Path(data).name
    return name.split(".")[0] or name


@app.command()
@spread
def compare(
    data: Data = "digits",
    *,
    methods: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    budget: Annotated[int, typer.Option(min=1, help="Of each method, in epochs of one network.")] = 60,
    equal: Annotated[
        str, typer.Option(help="What is the same for all methods: operations of training, or epochs.")
    ] = "operations",
    members: Members = None,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Seeds, counted from --seed: means, spread, and what is noise.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of the comparison and its report; the same command resumes. Default: none."),
    ] = None,
    reading: Reading,
    settings: Settings,
    cluster: OnCluster = None,
    running: Running,
) -> None:
    """Train several methods with the same budget and print one table.

    Example: choral compare houses.csv --target price --methods single,deep_ensemble,snapshot
    """
    from choral.comparison.compare import compared, recipes_for, spending_of
    from choral.engine.compute import Compute

    names = _named(methods)
    if cluster is not None and out is None:
        raise InputError("--cluster needs --out, a folder that all its machines see; give one.")
    compute = Compute(
        executor=running.executor,  # type: ignore[arg-type]  # checked by Compute
        device=running.device,
        precision=running.precision,  # type: ignore[arg-type]  # checked by Compute
        cluster=cluster_runs.cluster_of(cluster),
    )
    silent = running.json or running.quiet
    problem, build, training = prepare(data, reading, settings, quiet=silent)
    spending = spending_of(build, problem, {"likelihood": reading.likelihood}, equal=equal)
    recipes = recipes_for(names, budget=budget, members=members, training=training, spending=spending)
    known = {recipe.name: recipe for recipe in recipes}
    with progress(silent, running.shown) as bar, cluster_runs.results_only(cluster):
        comparison = compared(
            build,
            problem,
            recipes,
            budget=budget,
            equal=equal,  # type: ignore[arg-type]  # checked by spending_of
            members=members,
            training=training,
            run_dir=out,
            seed=running.seed if seeds is None else range(running.seed, running.seed + seeds),
            options={"likelihood": reading.likelihood, "on_existing": running.on_existing, "compute": compute},
            hearing=lambda name: bar(name, known[name].epochs, known[name].length),
        )
    if running.json:
        write_json(comparison.to_dict() | {"findings": comparison.findings})
    else:
        rows = f"{len(problem.x_train)} training rows, {len(problem.x_test)} test rows"
        title = f"{problem.name}: {rows}, each with the {equal} of {budget} epoch{'' if budget == 1 else 's'} of one network"
        show_comparison(title, comparison)
    if out is not None:
        page = reports.report_of_comparison(Path(out))
        if not running.json:
            say(f"everything is in {out}" + (f"; the report is {page}" if page else ""))


def _named(methods: str) -> list[str]:
    """Return the methods that a text names with commas."""
    from choral.recipes import METHODS

    if methods.strip() == "all":
        return list(METHODS)
    names = [m.strip() for m in methods.split(",") if m.strip()]
    twice = sorted({n for n in names if names.count(n) > 1})
    if not names or twice:
        what = f"{twice[0]} twice" if twice else "no method"
        raise InputError(f"--methods names {what}; give each once, such as single,deep_ensemble, or all.")
    for name in names:
        _check_method(name)
    return names


for command in (
    prediction.predict,
    reports.evaluate,
    reports.report,
    deployment.export,
    deployment.serve,
    cluster_runs.leaves,
    cluster_runs.run_leaf,
):
    app.command()(command)
