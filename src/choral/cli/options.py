"""The options of the commands, each with its words for --help, and what they ask for: data, a network and training settings.

Options that several commands share together are one value.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError
from choral.cli.output import note, table

_SHOWN = 40  # columns of a table that are listed
_of_data, _of_optimizer, _of_validation, _of_processes, _of_run = (
    functools.partial(typer.Option, rich_help_panel=panel)
    for panel in ("The data", "The optimizer", "Validation", "Other processes and machines", "The run")
)

Data = Annotated[
    str, typer.Argument(help="digits, diabetes, wine, breast_cancer, or a .npz, .csv, .tsv, .parquet or .xlsx file.")
]
Saved = Annotated[Path, typer.Argument(help="A saved ensemble or a run folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, and not how columns are read.")]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress; only in a terminal if left out.")
]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Length of one training: of each member where members are trained apart; by the data if not given."
    ),
]
Budget = Annotated[
    int | None, typer.Option(min=1, help="Total of all members, in epochs of one network, instead of --epochs.")
]
Members = Annotated[int | None, typer.Option(min=1, help="Members, where the method has a choice.")]
OnCluster = Annotated[
    str | None,
    typer.Option(help="ray trains on all processors of this machine; auto or ray://host:10001 on a Ray cluster."),
]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How data is read, and by which network."""

    target: Annotated[str | None, _of_data(help="Column to predict, for a table.")] = None
    task: Annotated[str | None, _of_data(help="classification or regression; guessed if left out.")] = None
    likelihood: Annotated[
        str | None,
        _of_data(
            help="What the outputs mean: categorical, bernoulli, ordinal, gaussian, student_t, laplace, poisson, "
            "negative_binomial, quantiles; decided by the target if left out."
        ),
    ] = None
    drop: Annotated[list[str] | None, _of_data(help="Column that is no input; may be given several times.")] = None
    id: Annotated[
        list[str] | None,
        _of_data(help="Column that is no input but shown beside predictions; may be given several times."),
    ] = None
    order: Annotated[list[str] | None, _of_data(help="Order of a column's values: 'size=small<medium<large'.")] = None
    group: Annotated[str | None, _of_data(help="Column whose equal values are held out together.")] = None
    time: Annotated[str | None, _of_data(help="Column of dates or numbers; the last rows are held out.")] = None
    model: Annotated[
        str | None, _of_data(help="tabular, tabular_embedded, mlp, mlp_wide, lenet_s, lenet_m, lenet_l or resnet20.")
    ] = None
    holdout: Annotated[
        float,
        _of_data(min=0.01, max=0.9, help="Part of the rows kept for the scores that are printed; no member sees them."),
    ] = 0.25


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the optimizer."""

    lr: Annotated[float | None, _of_optimizer(help="Peak learning rate.")] = None
    optimizer: Annotated[str | None, _of_optimizer(help="sgd, adam or adamw.")] = None
    batch_size: Annotated[int | None, _of_optimizer(min=1, help="Points in a batch.")] = None
    schedule: Annotated[str | None, _of_optimizer(help="cosine, constant, steps or linear_drop.")] = None


@dataclass(frozen=True, kw_only=True)
class Watching:
    """Validation and early stopping."""

    validation: Annotated[
        float | None,
        _of_validation(help="Part of the training rows that members are not trained on and stop by; 0 for none."),
    ] = None
    patience: Annotated[
        int | None, _of_validation(min=1, help="Epochs without a better validation score before training stops.")
    ] = None
    cv: Annotated[
        int | None,
        _of_validation(min=2, help="Cross-validation instead of --validation: each member holds out another fold."),
    ] = None
    restore_best: Annotated[
        bool,
        _of_validation(
            "--restore-best/--keep-last", help="Keep each member's best weights on held-out rows, or its last."
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Whether, and how, a run is trained by other processes."""

    prepare: Annotated[
        bool, _of_processes("--prepare", help="Make the run folder without training; see choral leaves and run-leaf.")
    ] = False
    stack: Annotated[
        int | None, _of_processes(min=1, help="Networks a leaf trains together, at most, where they are stacked.")
    ] = None
    cluster: OnCluster = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a run goes, and what it shows."""

    seed: Annotated[int, _of_run(help="Root of every random draw.")] = 0
    executor: Annotated[str, _of_run(help="auto, sequential or vectorized.")] = "auto"
    device: Annotated[str, _of_run(help="auto (CUDA, MPS or the CPU), cpu, cuda, cuda:1, mps.")] = "auto"
    precision: Annotated[str, _of_run(help="fp32, or bf16 or fp16 by autocast.")] = "fp32"
    overwrite: Annotated[bool, _of_run("--overwrite", help="Start again where the folder holds another run.")] = False
    json: Json = False
    quiet: Quiet = False
    shown: Progress = None

    @property
    def on_existing(self) -> Any:
        """What happens to a run that the folder holds."""
        return "overwrite" if self.overwrite else "resume"


def given(*values: Any) -> list[str]:
    """Return the options that have a value, as they are typed.

    >>> given(Settings(batch_size=8), Watching())
    ['--batch-size']
    """
    found = [f.name for value in values for f in fields(value) if getattr(value, f.name) != f.default]
    return [f"--{name.replace('_', '-')}" for name in found]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, with an option for each field of the dataclasses that it takes."""
    own = inspect.signature(command).parameters.values()
    kinds: dict[str, Any] = {p.name: p.annotation for p in own if is_dataclass(p.annotation)}
    flat = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for p in own
        for name, annotation, default in (
            [(f.name, f.type, f.default) for f in fields(kinds[p.name])]
            if p.name in kinds
            else [(p.name, p.annotation, p.default)]
        )
    ]

    @functools.wraps(command)
    def call(**typed: Any) -> None:
        made = {name: kind(**{f.name: typed.pop(f.name) for f in fields(kind)}) for name, kind in kinds.items()}
        command(**typed, **made)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # what typer reads
    call.__annotations__ = {p.name: p.annotation for p in flat}
    return call


def columns_of(reading: Reading) -> Any:
    """Return what a user says about a table's columns."""
    from choral.tables.problems import Columns

    return Columns(
        target=reading.target,
        drop=tuple(reading.drop or ()),
        ids=tuple(reading.id or ()),
        orders=_orders(reading.order or []),
        group=reading.group,
        time=reading.time,
    )


def _orders(given: list[str]) -> dict[str, tuple[str, ...]]:
    """Return orders by column from texts such as 'size=small<medium<large'.

    >>> _orders(["size=small<medium<large"])
    {'size': ('small', 'medium', 'large')}
    """
    found = {}
    for text in given:
        name, sign, values = text.partition("=")
        steps = tuple(v.strip() for v in values.split("<"))
        if not sign or len(steps) < 2 or not all(steps) or len(set(steps)) < len(steps):
            raise InputError(f"--order is {text!r}; write it as COLUMN=first<second<third, every value once.")
        found[name.strip()] = steps
    return found


def prepare_fit(
    data: str,
    reading: Reading,
    settings: Settings,
    watching: Watching,
    *,
    quiet: bool,
    class_weights: str | None = None,
    **asked: Any,
) -> Any:
    """Return what `choral fit` does with some data, a `choral.tables.fit.Ready`; say how a table is read.

    Args:
        data, reading, settings, watching, class_weights: as typed.
        quiet: do not print how columns are read.
        asked: method, epochs, budget and members.
    """
    from choral.tables.fit import prepared

    problem = _problem(data, reading, quiet=quiet)
    if class_weights is not None:
        problem = _weighed(problem, class_weights)
    watched = asdict(watching)
    return prepared(problem, **asked, model=reading.model, folds=watched.pop("cv"), **watched, **asdict(settings))


def _weighed(problem: Any, asked: str) -> Any:
    """Return a problem whose rows count by their classes; say how."""
    from choral.data.problems import balanced

    found, each = balanced(problem, asked)
    shown = ", ".join(f"{name} {weight:.4g}" for name, weight in list(each.items())[:_SHOWN])
    note(
        f"choral: rows count by their classes: {shown}; probabilities are of classes as common as that, not as in the data."
    )
    return found


def prepare(data: str, reading: Reading, settings: Settings, *, quiet: bool) -> tuple[Any, Callable[[], Any], Any]:
    """Return the problem, the network's factory and the training settings of a comparison; say how a table is read."""
    from choral.tables.defaults import factory, training_for

    problem = _problem(data, reading, quiet=quiet)
    return problem, factory(problem, reading.model), training_for(problem, **asdict(settings))


def _problem(data: str, reading: Reading, *, quiet: bool) -> Any:
    """Return the data; say how a table is read."""
    from choral.tables.problems import load_problem

    columns, likelihood = columns_of(reading), reading.likelihood
    asked: dict[str, Any] = {"task": reading.task, "likelihood": likelihood, "holdout": reading.holdout}
    problem = load_problem(data, columns=columns, **asked)
    read = problem.table
    if read is not None and read.columns:
        note(f"choral: '{read.target}' is read as a {read.task} target ({read.reason}).")
        if read.classes and (likelihood == "ordinal" or read.target in columns.orders):
            note(f"choral: the classes of '{read.target}' are ordered as {' < '.join(read.classes)}.")
        if problem.repeated:
            note(
                f"choral: {problem.repeated:,} of {len(problem.x_test):,} held-out rows are equal to a training row, so scores on them flatter; "
                "remove repeated rows, or keep them together with --group."
            )
        if not quiet:
            rows = read.describe()
            table(f"{Path(data).name}: how its columns are read", ["column", "read_as", "detail"], rows[:_SHOWN])
            if len(rows) > _SHOWN:
                note(f"choral: {len(rows) - _SHOWN:,} more columns are listed with --json.")
    return problem


def baseline_note(found: dict[str, Any]) -> str | None:
    """Return a sentence if an ensemble is no better than naming the commonest class every time, else None."""
    classes = found.get("classes")
    if not classes or found["scores"].get("accuracy", 1.0) > classes["majority_accuracy"]:
        return None
    return (
        f"choral: accuracy {found['scores']['accuracy']:.4f} is no better than always saying "
        f"'{classes['names'][classes['majority']]}' ({classes['majority_accuracy']:.4f}); look at the recall of each class."
    )


def folds_note(info: dict[str, Any]) -> str:
    """Return a sentence on what out-of-fold predictions tell; nothing without folds."""
    found = info.get("out_of_fold")
    if not found:
        return ""
    named = [n for n in ("rmse", "accuracy", "pinball", "nll") if n in found["scores"]]
    scores = ", ".join(f"{n} {found['scores'][n]:.4g}" for n in named)
    covered = (
        f"; intervals or sets of {found['level']:.0%} cover {found['coverage']:.1%}" if "coverage" in found else ""
    )
    return f"choral: out of fold, over {found['rows']:,} training rows: {scores}{covered}."


def ended_note(info: dict[str, Any]) -> str:
    """Return a sentence on training that ended before its budget; nothing if none did.

    >>> ended_note({"stopped": [{"epoch": 8, "reason": "patience"}], "counted": {"epochs": 8}})
    'choral: 1 training stopped early, after 8 epochs; 8 epochs were taken in all.'
    """
    stopped = info.get("stopped", [])
    if info.get("ended") == "time_limit":
        return (
            f"choral: the time was up: {info['networks']} network(s) are kept, trained as far as they came; the same command with a larger "
            "--time-limit, or none, goes on."
        )
    if not stopped:
        return ""
    epochs = sorted(one["epoch"] for one in stopped)
    span = f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]} to {epochs[-1]}"
    trainings = "training" if len(stopped) == 1 else "trainings"
    return (
        f"choral: {len(stopped)} {trainings} stopped early, after {span} epochs; {info['counted']['epochs']:g} epochs were taken in "
        "all."
    )
