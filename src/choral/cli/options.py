"""The options that several commands share, each with its words for --help, and those that go together as one value."""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Data = Annotated[
    str,
    typer.Argument(help="digits, diabetes, wine, breast_cancer, or a .npz, .csv, .tsv, .parquet or .xlsx file."),
]
Given = Annotated[
    str, typer.Argument(help="digits, diabetes, wine, breast_cancer, or a .npz, .csv, .tsv, .parquet or .xlsx file.")
]
Target = Annotated[str | None, typer.Option("--target", help="Column to predict, for a table.")]
Task = Annotated[str | None, typer.Option("--task", help="classification or regression; guessed if left out.")]
Outputs = Annotated[
    str | None,
    typer.Option(
        "--likelihood",
        help="What the outputs mean: categorical, bernoulli, ordinal, gaussian, student_t, laplace, poisson, "
        "negative_binomial, quantiles; decided by the target if left out.",
    ),
]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="Column that is no input; may be given several times.")]
Id = Annotated[
    list[str] | None,
    typer.Option("--id", help="Column that is no input but shown beside predictions; may be given several times."),
]
Order = Annotated[
    list[str] | None, typer.Option("--order", help="Order of a column's values: 'size=small<medium<large'.")
]
Group = Annotated[str | None, typer.Option("--group", help="Column whose equal values are held out together.")]
Time = Annotated[str | None, typer.Option("--time", help="Column of dates or numbers; the last rows are held out.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="tabular, tabular_embedded, mlp, mlp_wide, lenet_s, lenet_m, lenet_l or resnet20."),
]
Budget = Annotated[
    int | None,
    typer.Option("--budget", min=1, help="Total of all members, in epochs of one network, instead of --epochs."),
]
Equal = Annotated[
    str,
    typer.Option("--equal", help="What is the same for all methods: operations of training, or epochs."),
]
Bound = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        min=1,
        help="Length of one training: of each member where members are trained apart; by the data if not given.",
    ),
]
Members = Annotated[int | None, typer.Option("--members", min=1, help="Members, where the method has a choice.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Peak learning rate.")]
Optimizer = Annotated[str | None, typer.Option("--optimizer", help="sgd, adam or adamw.")]
Batch = Annotated[int | None, typer.Option("--batch-size", min=1, help="Points in a batch.")]
Schedule = Annotated[str | None, typer.Option("--schedule", help="cosine, constant, steps or linear_drop.")]
Seed = Annotated[int, typer.Option("--seed", help="Root of every random draw.")]
Holdout = Annotated[
    float,
    typer.Option(
        "--holdout",
        min=0.01,
        max=0.9,
        help="Part of the rows kept for the scores that are printed; no member sees them.",
    ),
]
Share = Annotated[
    float | None,
    typer.Option(
        "--validation", help="Part of the training rows that members are not trained on and stop by; 0 for none."
    ),
]
Patience = Annotated[
    int | None,
    typer.Option("--patience", min=1, help="Epochs without a better validation score before training stops."),
]
Folded = Annotated[
    int | None,
    typer.Option("--cv", min=2, help="Cross-validation instead of --validation: each member holds out another fold."),
]
RestoreBest = Annotated[
    bool,
    typer.Option("--restore-best/--keep-last", help="Keep each member's best weights on held-out rows, or its last."),
]
Limit = Annotated[
    float | None,
    typer.Option("--time-limit", help="Seconds of wall time after which training ends with what is there."),
]
Accumulate = Annotated[
    int, typer.Option("--accumulate", min=1, help="Parts of each batch, taken one after the other for less memory.")
]
Weighing = Annotated[
    str | None,
    typer.Option("--class-weight", help="What rows of each class count in training: balanced, or 'yes=5,no=1'."),
]
Exec = Annotated[str, typer.Option("--executor", help="auto, sequential or vectorized.")]
Device = Annotated[str, typer.Option("--device", help="auto (CUDA, MPS or the CPU), cpu, cuda, cuda:1, mps.")]
Precision = Annotated[str, typer.Option("--precision", help="fp32, or bf16 or fp16 by autocast.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, and not how columns are read.")]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress; only in a terminal if left out.")
]
Prepared = Annotated[
    bool, typer.Option("--prepare", help="Make the run folder without training; see choral leaves and run-leaf.")
]
Stacked = Annotated[
    int | None,
    typer.Option("--stack", min=1, help="Networks a leaf trains together, at most, where they are stacked."),
]
OnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="ray trains on all processors of this machine; auto or ray://host:10001 on a Ray cluster."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start again where the folder holds another run.")]
Extend = Annotated[
    bool, typer.Option("--extend", help="Add members to the run in the folder: --members, and --epochs by as much.")
]
Saved = Annotated[Path, typer.Argument(help="A saved ensemble or a run folder.")]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How data is read, and by which network."""

    PANEL: ClassVar = "The data"
    target: Target = None
    task: Task = None
    likelihood: Outputs = None
    drop: Drop = None
    id: Id = None
    order: Order = None
    group: Group = None
    time: Time = None
    model: Model = None
    holdout: Holdout = 0.25


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is said of the optimizer."""

    PANEL: ClassVar = "The optimizer"
    lr: Rate = None
    optimizer: Optimizer = None
    batch_size: Batch = None
    schedule: Schedule = None


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What is said of the rows that training is watched by."""

    PANEL: ClassVar = "Validation"
    validation: Share = None
    patience: Patience = None
    cv: Folded = None
    restore_best: RestoreBest = True


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Whether, and how, a run is trained by other processes."""

    PANEL: ClassVar = "Other processes and machines"
    prepare: Prepared = False
    stack: Stacked = None
    cluster: OnCluster = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a run goes, and what it shows."""

    PANEL: ClassVar = "The run"
    seed: Seed = 0
    executor: Exec = "auto"
    device: Device = "auto"
    precision: Precision = "fp32"
    overwrite: Overwrite = False
    json: Json = False
    quiet: Quiet = False
    shown: Progress = None

    @property
    def on_existing(self) -> Any:
        """What happens to a run that the folder holds."""
        return "overwrite" if self.overwrite else "resume"


def given(*values: Any) -> dict[str, Any]:
    """Return the options with a value, as they are typed.

    >>> given(Settings(batch_size=8), Watching())
    {'--batch-size': 8}
    """
    said = {
        f.name: getattr(options, f.name)
        for options in values
        for f in fields(options)
        if getattr(options, f.name) != f.default
    }
    return {f"--{name.replace('_', '-')}": value for name, value in said.items()}


def _shown_on(panel: str, annotation: Any) -> Any:
    """Return an option that --help shows on a panel, among those it goes together with."""
    kind, option = get_args(annotation)
    option = copy.copy(option)
    option.rich_help_panel = panel
    return Annotated[kind, option]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for the shell, where each option of the values that it takes stands for itself."""
    own = inspect.signature(command).parameters.values()
    kinds: dict[str, Any] = {p.name: p.annotation for p in own if is_dataclass(p.annotation)}
    flat: list[inspect.Parameter] = []
    for p in own:
        kind = kinds.get(p.name)
        several = [(f.name, _shown_on(kind.PANEL, f.type), f.default) for f in fields(kind)] if kind else []
        for name, annotation, default in several or [(p.name, p.annotation, p.default)]:
            flat.append(inspect.Parameter(name, p.KEYWORD_ONLY, annotation=annotation, default=default))

    @functools.wraps(command)
    def call(**typed: Any) -> None:
        made = {name: kind(**{f.name: typed.pop(f.name) for f in fields(kind)}) for name, kind in kinds.items()}
        command(**typed, **made)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # what typer reads
    call.__annotations__ = {p.name: p.annotation for p in flat}
    return call
