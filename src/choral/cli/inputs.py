"""From the words of a command to data, a network and training settings, and what is said about them."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from choral.base.errors import InputError
from choral.cli.options import Reading, Settings, Watching
from choral.cli.output import note, table

_SHOWN = 40  # columns of a table that are listed


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
