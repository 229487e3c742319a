"""From the words of a command to data, a network and training settings, and what is said about them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from choral.base.errors import InputError, did_you_mean
from choral.cli.options import Reading, Settings, Watching
from choral.cli.output import note, table

METHOD = "deep_ensemble"
"""What fit does where no method is named."""
_SHOWN = 40  # columns of a table that are listed


def columns_of(reading: Reading) -> Any:
    """Return what a user says about a table's columns."""
    from choral.data.problems import Columns
    from choral.data.recognition import orders_of

    return Columns(
        target=reading.target,
        drop=tuple(reading.drop or ()),
        ids=tuple(reading.id or ()),
        orders=orders_of(reading.order or []),
        group=reading.group,
        time=reading.time,
    )


@dataclass(frozen=True)
class Ready:
    """Everything that one fit needs."""

    problem: Any
    build: Callable[[], Any]
    recipe: Any
    training: Any
    validation: float | None
    stop: Any


def prepare_fit(
    data: str,
    reading: Reading,
    settings: Settings,
    watching: Watching,
    *,
    method: str | None,
    epochs: int | None,
    members: int | None,
    quiet: bool,
) -> Ready:
    """Return what `choral fit` does with some data: what was said, and the usual where nothing was; `--validation 0` holds nothing out."""
    from choral.judging.compare import recipes_for
    from choral.judging.defaults import default_model, factory, training_for, usual
    from choral.plan import EarlyStop
    from choral.recipes import make

    asked = None if method in (None, METHOD) else make(method)
    validation, patience = watching.validation, watching.patience
    problem = _problem(data, reading, quiet=quiet)
    watched = validation != 0 and not (asked is not None and asked.structure.widens_input)
    name = reading.model or default_model(problem, validated=watched)
    training = training_for(problem, model=name if watched else None, **asdict(settings))
    found = usual(problem, None if asked is None else asked.plan, training, model=name if watched else "mlp")
    if epochs is None and members is None:
        members = found.members
    share, wait = validation or None, patience
    if validation is None and patience is None:
        share, wait = found.validation, found.patience
    elif validation is None:
        share = found.validation
    (recipe,) = recipes_for([method or METHOD], epochs=epochs or found.epochs, members=members, training=training)
    stop = None if wait is None else EarlyStop(patience=wait)
    return Ready(problem, factory(problem, name), recipe, training, share, stop)


def prepare(data: str, reading: Reading, settings: Settings, *, quiet: bool) -> tuple[Any, Callable[[], Any], Any]:
    """Return the problem, the network's factory and the training settings of a comparison; say how a table is read."""
    from choral.judging.defaults import factory, training_for

    problem = _problem(data, reading, quiet=quiet)
    return problem, factory(problem, reading.model), training_for(problem, **asdict(settings))


def _problem(data: str, reading: Reading, *, quiet: bool) -> Any:
    """Return the data; say how a table is read."""
    from choral.data.problems import load_problem

    columns, likelihood = columns_of(reading), reading.likelihood
    asked: dict[str, Any] = {"task": reading.task, "likelihood": likelihood, "holdout": reading.holdout}
    problem = load_problem(data, columns=columns, **asked)
    read = problem.table
    if read is not None and read.columns:
        note(f"choral: '{read.target}' is read as a {read.task} target ({read.reason}).")
        if read.classes and (likelihood == "ordinal" or read.target in columns.orders):
            note(f"choral: the classes of '{read.target}' are ordered as {' < '.join(read.classes)}.")
        if not quiet:
            show_columns(data, read)
    return problem


def show_columns(data: str, read: Any) -> None:
    """Print how each column of a table is read."""
    rows = read.describe()
    table(f"{Path(data).name}: how its columns are read", ["column", "read_as", "detail"], rows[:_SHOWN])
    if len(rows) > _SHOWN:
        note(f"choral: {len(rows) - _SHOWN:,} more columns are listed with --json.")


def check_executor(name: str) -> None:
    """Raise InputError for an executor there is not, before a folder is made."""
    from choral.engine.executors import Executor

    known = get_args(Executor)
    if name not in known:
        raise InputError(f"--executor is {name!r}; give {', '.join(known)}.{did_you_mean(name, known)}")


def check_members(method: str, members: int | None) -> None:
    """Raise InputError if members are asked of a method that has no choice of them."""
    from choral.recipes import METHODS

    if members is None or members == 1:
        return
    option = METHODS[method].options.get("members")
    if option is None or option.default == 1:
        raise InputError(
            f"--members is {members}, but {method} trains one network and has no choice; leave it out, or take a method "
            "with members such as deep_ensemble."
        )


def baseline_note(found: dict[str, Any]) -> str | None:
    """Return a sentence if an ensemble is no better than naming the commonest class every time, else None."""
    classes = found.get("classes")
    if not classes or found["scores"].get("accuracy", 1.0) > classes["majority_accuracy"]:
        return None
    return (
        f"choral: accuracy {found['scores']['accuracy']:.4f} is no better than always saying "
        f"'{classes['names'][classes['majority']]}' ({classes['majority_accuracy']:.4f}); look at the recall of each class."
    )


def ended_note(info: dict[str, Any]) -> str:
    """Return a sentence on training that ended before its budget; nothing if none did.

    >>> ended_note({"stopped": [{"epoch": 8, "reason": "patience"}], "counted": {"epochs": 8}})
    'choral: 1 training stopped early, after 8 epochs; 8 epochs were taken in all.'
    """
    stopped = info.get("stopped", [])
    if info.get("ended") == "time_limit":
        return f"choral: the time was up: {info['networks']} network(s) are kept, trained as far as they came."
    if not stopped:
        return ""
    epochs = sorted(one["epoch"] for one in stopped)
    span = f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]} to {epochs[-1]}"
    trainings = "training" if len(stopped) == 1 else "trainings"
    return (
        f"choral: {len(stopped)} {trainings} stopped early, after {span} epochs; {info['counted']['epochs']:g} epochs were taken in "
        "all."
    )
