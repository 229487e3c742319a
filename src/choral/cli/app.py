"""The commands. Each imports what it needs when it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError
from choral.cli import reporting
from choral.cli.output import note, progress, say, table, write_csv, write_json

app = typer.Typer(
    name="choral",
    help="Turn one network into a calibrated ensemble for about the price of training it once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Data = Annotated[
    str, typer.Option("--data", help="digits, diabetes, wine, breast_cancer, or a .npz, .csv or .parquet file.")
]
Target = Annotated[str | None, typer.Option("--target", help="Column to predict, for a table.")]
Task = Annotated[str | None, typer.Option("--task", help="classification or regression; guessed if left out.")]
Model = Annotated[str | None, typer.Option("--model", help="mlp, mlp_wide, lenet_s, lenet_m, lenet_l or resnet20.")]
Epochs = Annotated[int, typer.Option("--epochs", min=1, help="Total budget in epochs of one network.")]
Members = Annotated[int | None, typer.Option("--members", min=1, help="Members, where the method has a choice.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Peak learning rate.")]
Optimiser = Annotated[str | None, typer.Option("--optimiser", help="sgd, adam or adamw.")]
Batch = Annotated[int | None, typer.Option("--batch-size", min=1, help="Points in a batch.")]
Schedule = Annotated[str | None, typer.Option("--schedule", help="cosine, constant, steps or linear_drop.")]
Seed = Annotated[int, typer.Option("--seed", help="Root of every random draw.")]
Holdout = Annotated[float, typer.Option("--holdout", min=0.01, max=0.9, help="Part of the rows kept for testing.")]
Exec = Annotated[str, typer.Option("--executor", help="auto, sequential or vectorised.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def methods(json: Json = False) -> None:
    """List every method: its family, what it does and its paper."""
    from choral.recipes import METHODS

    rows = [{"name": n, "family": m.family, "summary": m.summary, "paper": m.paper} for n, m in METHODS.items()]
    if json:
        write_json(rows)
    else:
        table("Methods", ["name", "family", "summary"], rows)
        say("choral plan NAME shows what a method does; papers are in choral methods --json.")


@app.command()
def plan(
    name: Annotated[str, typer.Argument(help="The method.")],
    epochs: Epochs = 200,
    members: Members = None,
    json: Json = False,
) -> None:
    """Show what a method would do with a budget, before any training."""
    from choral.recipes import make

    recipe = make(name, epochs=epochs, members=members)
    write_json(recipe.describe()) if json else say(str(recipe))


def _prepare(data, target, task, holdout, model, rate, optimiser, batch_size, schedule):  # type: ignore[no-untyped-def]  # glue of two commands
    from choral.data.problems import load_problem
    from choral.judging.defaults import factory, training_for

    problem = load_problem(data, target=target, task=task, holdout=holdout)
    if problem.table and problem.table.reason:
        note(f"choral: '{target}' is read as a {problem.task} target ({problem.table.reason}).")
    settings = training_for(problem, rate=rate, optimiser=optimiser, batch_size=batch_size, schedule=schedule)
    return problem, factory(problem, model), settings


def _columns(scores: Sequence[str]) -> list[str]:
    return ["method", "members", "epochs", *scores, "parameters", "train_flops", "train_seconds", "predict_seconds"]


@app.command()
def fit(
    data: Annotated[
        str, typer.Argument(help="digits, diabetes, wine, breast_cancer, or a .npz, .csv or .parquet file.")
    ],
    target: Target = None,
    method: Annotated[str, typer.Option("--method", help="The method; see choral methods.")] = "deep_ensemble",
    out: Annotated[Path | None, typer.Option("--out", help="Run folder; the same command resumes.")] = None,
    epochs: Epochs = 60,
    members: Members = None,
    task: Task = None,
    model: Model = None,
    rate: Rate = None,
    optimiser: Optimiser = None,
    batch_size: Batch = None,
    schedule: Schedule = None,
    holdout: Holdout = 0.25,
    seed: Seed = 0,
    executor: Exec = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one ensemble and save it."""
    from choral.fit import fit as run
    from choral.judging.compare import recipes_for
    from choral.recipes import METHODS, make

    if method not in METHODS:
        make(method)
    problem, build, training = _prepare(data, target, task, holdout, model, rate, optimiser, batch_size, schedule)
    (recipe,) = recipes_for([method], epochs=epochs, members=members, training=training)
    folder = out or Path("runs") / f"{Path(data).stem}-{method}"
    with progress(json or quiet) as bar:
        ensemble = run(
            build,
            (problem.x_train, problem.y_train),
            recipe,
            run_dir=folder,
            seed=seed,
            executor=executor,  # type: ignore[arg-type]  # checked by fit
            table=problem.table,
            listener=bar(method, recipe.epochs),
            progress=False,
        )
    saved = folder / "ensemble.choral"
    ensemble.save(saved)
    row = reporting.measured(ensemble, problem, folder)
    if json:
        write_json(row | {"run_dir": str(folder), "saved": str(saved), "task": problem.task})
    else:
        table(
            f"{problem.name}: {len(problem.x_test)} rows held out",
            _columns(ensemble.likelihood.prediction.shown),
            [row],
        )
        say(f"saved {saved}; predict with: choral predict {saved} NEW.csv; look at it with: choral report {folder}")


@app.command()
def compare(
    data: Data = "digits",
    methods: Annotated[str, typer.Option("--methods", help="Names with commas, or all.")] = "all",
    epochs: Epochs = 60,
    members: Members = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the comparison; the same command resumes.")
    ] = None,
    target: Target = None,
    task: Task = None,
    model: Model = None,
    rate: Rate = None,
    optimiser: Optimiser = None,
    batch_size: Batch = None,
    schedule: Schedule = None,
    holdout: Holdout = 0.25,
    seed: Seed = 0,
    executor: Exec = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train several methods with the same budget and print one table."""
    from choral.judging.compare import compare as run
    from choral.judging.compare import recipes_for
    from choral.recipes import METHODS, make

    names = list(METHODS) if methods == "all" else [m.strip() for m in methods.split(",") if m.strip()]
    for name in names:
        if name not in METHODS:
            make(name)
    problem, build, training = _prepare(data, target, task, holdout, model, rate, optimiser, batch_size, schedule)
    recipes = recipes_for(names, epochs=epochs, members=members, training=training)
    length = {r.name: r.epochs for r in recipes}
    with progress(json or quiet) as bar:
        comparison = run(
            build,
            problem,
            names,
            epochs=epochs,
            members=members,
            training=training,
            run_dir=out,
            seed=seed,
            executor=executor,
            listener=lambda name: bar(name, length.get(name, epochs)),
        )
    if json:
        write_json(comparison.to_dict())
    else:
        title = f"{problem.name}: {len(problem.x_train)} training rows, {len(problem.x_test)} test rows, {epochs} epochs each"
        table(title, _columns(comparison.shown), comparison.rows)
    if out is not None:
        page = reporting.report_of_comparison(out)
        if not json:
            say(f"everything is in {out}" + (f"; the report is {page}" if page else ""))


Saved = Annotated[Path, typer.Argument(help="A saved ensemble or a run folder.")]


@app.command()
def predict(
    ensemble: Saved,
    data: Annotated[Path, typer.Argument(help="A .csv or .parquet table, or an .npz with x.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="A .csv file for the predictions; printed if left out.")
    ] = None,
    json: Json = False,
) -> None:
    """Predict with a saved ensemble: one line for each row, with how sure it is."""
    import contextlib
    import sys

    from choral.fit import load

    loaded = load(ensemble)
    rows = _predictions(loaded, _unlabelled(loaded, data))
    if json:
        write_json(rows)
        return
    with contextlib.nullcontext(sys.stdout) if out is None else out.open("w", newline="") as handle:
        write_csv(handle, rows)
    if out is not None:
        note(f"choral: {len(rows)} predictions written to {out}")


def _unlabelled(loaded: Any, data: Path) -> Any:
    from choral.data.arrays import read_arrays
    from choral.data.tables import read_table

    if data.suffix == ".npz":
        held = read_arrays(data)
        for name in ("x", "x_test"):
            if name in held:
                return held[name]
        raise InputError(f"{data} holds {', '.join(held)}; give the inputs as x.")
    if loaded.table is None:
        raise InputError(f"{data} is a table, but this ensemble was fitted on arrays; give an .npz file with x.")
    return loaded.table.inputs(read_table(data), path=str(data))


def _predictions(loaded: Any, x: Any) -> list[dict[str, Any]]:
    columns = loaded.predict(x).columns()
    return [{"row": i} | {name: values[i] for name, values in columns.items()} for i in range(len(x))]


reporting.register(app)
