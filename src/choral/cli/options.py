"""The options of the commands with their help texts, and the data, network and training that they describe.

Options that several commands share are one dataclass.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from choral.base.errors import InputError
from choral.base.text import number
from choral.cli.output import note, table

_SHOWN = 40  # columns of a table that are listed
_of_data, _of_optimizer, _of_validation, _of_processes, _of_run = (
    functools.partial(typer.Option, rich_help_panel=panel)
    for panel in ("The data", "The optimizer", "Validation", "Other processes and machines", "The run")
)

Data = Annotated[str, typer.Argument(help="A table, an .npz file, or digits, diabetes, wine or breast_cancer.")]
Saved = Annotated[Path, typer.Argument(help="A saved ensemble or a run folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress or how columns are read.")]
Progress = Annotated[bool | None, typer.Option("--progress/--no-progress", help="Show progress bars.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Length of each training; chosen for the data by default.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Total in epochs of one network, instead of --epochs.")]
Members = Annotated[int | None, typer.Option(min=1, help="Number of members, if the method has a choice.")]
OnCluster = Annotated[
    str | None,
    typer.Option(help="ray trains on all processors of this machine; auto or ray://host:10001 on a Ray cluster."),
]
_LIKELIHOODS = "categorical, bernoulli, ordinal, gaussian, student_t, laplace, poisson, negative_binomial, quantiles"
_MODELS = "tabular, tabular_narrow, tabular_embedded, mlp, mlp_wide, lenet_s, lenet_m, lenet_l or resnet20"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of the data and the network."""

    target: Annotated[str | None, _of_data(help="Column to predict, for a table.")] = None
    task: Annotated[
        Literal["classification", "regression"] | None, _of_data(help="Task; by default inferred from the target.")
    ] = None
    likelihood: Annotated[str | None, _of_data(help=f"By default inferred from the target: {_LIKELIHOODS}.")] = None
    drop: Annotated[list[str] | None, _of_data(help="Column that is not an input; may be repeated.")] = None
    id: Annotated[list[str] | None, _of_data(help="Like --drop, but shown next to predictions; may be repeated.")] = (
        None
    )
    order: Annotated[list[str] | None, _of_data(help="Order of a column's values: 'size=small<medium<large'.")] = None
    group: Annotated[str | None, _of_data(help="Column of groups; a group is held out as a whole.")] = None
    time: Annotated[str | None, _of_data(help="Column of dates or numbers; the last rows are held out.")] = None
    model: Annotated[str | None, _of_data(help=f"The network: {_MODELS}; chosen for the data by default.")] = None
    holdout: Annotated[float, _of_data(min=0.01, max=0.9, help="Share of the rows held out for testing.")] = 0.25


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of the optimizer."""

    lr: Annotated[float | None, _of_optimizer(help="Peak learning rate.")] = None
    optimizer: Annotated[str | None, _of_optimizer(help="sgd, adam or adamw.")] = None
    batch_size: Annotated[int | None, _of_optimizer(min=1, help="Rows in a batch.")] = None
    schedule: Annotated[str | None, _of_optimizer(help="cosine, constant, steps or linear_drop.")] = None


@dataclass(frozen=True, kw_only=True)
class Watching:
    """Options of validation and early stopping."""

    validation: Annotated[
        float | None, _of_validation(help="Share of the training rows held out for early stopping; 0 for none.")
    ] = None
    patience: Annotated[
        int | None, _of_validation(min=1, help="Epochs without a better score before a training stops.")
    ] = None
    cv: Annotated[
        int | None, _of_validation(min=2, help="Number of folds instead; each member holds out another fold.")
    ] = None
    restore_best: Annotated[
        bool,
        _of_validation(
            "--restore-best/--keep-last", help="Keep the weights with the best validation score, or the last."
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Options of runs trained by other processes."""

    prepare: Annotated[
        bool, _of_processes("--prepare", help="Create the run folder without training; see choral leaves and run-leaf.")
    ] = False
    stack: Annotated[
        int | None, _of_processes(min=1, help="Maximum number of networks that a leaf trains together.")
    ] = None
    cluster: OnCluster = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """Options of the run and its output."""

    seed: Annotated[int, _of_run(help="Seed of all random draws.")] = 0
    executor: Annotated[str, _of_run(help="auto, sequential or vectorized.")] = "auto"
    device: Annotated[str, _of_run(help="auto (CUDA, MPS or the CPU), cpu, cuda, cuda:1, mps.")] = "auto"
    precision: Annotated[str, _of_run(help="fp32, or bf16 by autocast.")] = "fp32"
    overwrite: Annotated[bool, _of_run("--overwrite", help="Start again if the folder contains another run.")] = False
    json: Json = False
    quiet: Quiet = False
    shown: Progress = None

    @property
    def silent(self) -> bool:
        """Whether neither progress nor the reading of columns is shown."""
        return self.json or self.quiet

    @property
    def on_existing(self) -> Any:
        """What to do with an existing run in the folder."""
        return "overwrite" if self.overwrite else "resume"


def given(*values: Any) -> list[str]:
    """Return the options that have a value, as they are typed.

    >>> given(Settings(batch_size=8), Watching())
    ['--batch-size']
    """
    found = [f.name for value in values for f in fields(value) if getattr(value, f.name) != f.default]
    return [f"--{name.replace('_', '-')}" for name in found]


def taken(kind: Any, typed: dict[str, Any]) -> Any:
    """Return a dataclass made from those of the options that are its fields."""
    return kind(**{f.name: typed[f.name] for f in fields(kind)})


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, with an option for each field of its dataclass arguments."""
    own = {p.name: p.annotation for p in inspect.signature(command).parameters.values()}
    flat = []
    for p in inspect.signature(command).parameters.values():
        each = [(f.name, f.type, f.default) for f in fields(p.annotation)] if is_dataclass(p.annotation) else []
        for name, kind, default in each or [(p.name, p.annotation, p.default)]:
            flat.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default))

    @functools.wraps(command)
    def call(**typed: Any) -> None:
        command(**{n: taken(kind, typed) if is_dataclass(kind) else typed[n] for n, kind in own.items()})

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # what typer reads
    call.__annotations__ = {p.name: p.annotation for p in flat}
    return call


def _orders(given: list[str]) -> dict[str, tuple[str, ...]]:
    """Return orders by column from texts such as 'size=small<medium<large'.

    >>> _orders(["size=small<medium<large"])
    {'size': ('small', 'medium', 'large')}
    """
    found = {}
    for text in given:
        name, _, values = text.partition("=")
        steps = tuple(v.strip() for v in values.split("<"))
        if len(steps) < 2 or not all(steps) or len(set(steps)) < len(steps):
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
    class_weight: str | None = None,
    **asked: Any,
) -> Any:
    """Return the prepared fit (`choral.tables.fit.Ready`) for some data; print how a table is read, unless `quiet`."""
    from choral.data.problems import balanced
    from choral.tables.fit import prepared

    problem = read_problem(data, reading, quiet=quiet)
    if class_weight is not None:
        problem, each = balanced(problem, class_weight)
        shown = ", ".join(f"{name} {number(weight)}" for name, weight in list(each.items())[:_SHOWN])
        note(f"choral: rows are weighted by class: {shown}; probabilities refer to the weighted classes.")
    watched = asdict(watching)
    return prepared(problem, **asked, model=reading.model, folds=watched.pop("cv"), **watched, **asdict(settings))


def read_problem(data: str, reading: Reading, *, quiet: bool) -> Any:
    """Return the data, and print how a table is read."""
    from choral.tables.problems import Columns, load_problem

    named: dict[str, Any] = {name: getattr(reading, name) for name in ("target", "group", "time")}
    named |= {"drop": reading.drop or (), "ids": reading.id or (), "orders": _orders(reading.order or [])}
    columns = Columns(**named)
    asked: dict[str, Any] = {"task": reading.task, "likelihood": reading.likelihood, "holdout": reading.holdout}
    problem = load_problem(data, columns=columns, **asked)
    read = problem.table
    if read is None or not read.columns:
        return problem
    note(f"choral: '{read.target}' is read as a {read.task} target ({read.reason}).")
    if read.classes and (reading.likelihood == "ordinal" or read.target in columns.orders):
        note(f"choral: the classes of '{read.target}' are ordered as {' < '.join(read.classes)}.")
    if problem.repeated:
        note(
            f"choral: {problem.repeated:,} of {len(problem.x_test):,} held-out rows are equal to a training row, so scores are too good; "
            "remove duplicate rows, or keep them together with --group."
        )
    if not quiet:
        rows = read.describe()
        table(f"{Path(data).name}: how its columns are read", ["column", "read_as", "detail"], rows[:_SHOWN])
        if len(rows) > _SHOWN:
            note(f"choral: {len(rows) - _SHOWN:,} more columns are listed with --json.")
    return problem
