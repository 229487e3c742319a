"""From the words of a command to data, a network and training settings, and what is said about them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from choral.base.errors import InputError, did_you_mean
from choral.cli.output import note, table

_SHOWN = 40  # columns of a table that are listed


def columns_of(
    target: str | None,
    *,
    drop: list[str] | None,
    ids: list[str] | None,
    order: list[str] | None,
    group: str | None,
    time: str | None,
) -> Any:
    """Return what a user says about a table's columns."""
    from choral.data.problems import Columns
    from choral.data.recognition import orders_of

    return Columns(
        target=target,
        drop=tuple(drop or ()),
        ids=tuple(ids or ()),
        orders=orders_of(order or []),
        group=group,
        time=time,
    )


def prepare(
    data: str,
    columns: Any,
    *,
    task: str | None,
    likelihood: str | None = None,
    holdout: float,
    model: str | None,
    quiet: bool = False,
    **training: Any,
) -> tuple[Any, Callable[[], Any], Any]:
    """Return the problem, the network's factory and the training settings; say how a table is read."""
    from choral.data.problems import load_problem
    from choral.judging.defaults import factory, training_for

    problem = load_problem(data, task=task, holdout=holdout, columns=columns, likelihood=likelihood)  # type: ignore[arg-type]  # checked there
    read = problem.table
    if read is not None and read.columns:
        note(f"choral: '{read.target}' is read as a {read.task} target ({read.reason}).")
        if not quiet:
            show_columns(data, read)
    return problem, factory(problem, model), training_for(problem, **training)


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
