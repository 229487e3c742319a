"""Ready-made callbacks: progress bars, a table of losses, experiment trackers.

    choral.fit(..., callbacks=choral.callbacks.csv("losses.csv"))
    choral.fit(..., callbacks=[choral.callbacks.tensorboard(SummaryWriter()), my_own])

A callback is a function of an event (`choral.engine.events`). What it raises ends the run, which the same call resumes.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from csv import writer
from pathlib import Path
from typing import Any

from choral.base.errors import InputError
from choral.base.lettering import visible
from choral.engine.events import Callback

_COLUMNS = ("place", "epoch", "loss", "rate", "seconds")


def one_of(listeners: Callback | Sequence[Callback] | None) -> Callback | None:
    """Return one listener for what the user gave: a function, several, or nothing."""
    if listeners is None or callable(listeners):
        return listeners
    if not isinstance(listeners, Sequence) or not all(map(callable, listeners)):
        raise InputError(f"callbacks is {listeners!r}; give a function of an event, or a list of such functions.")
    several = tuple(listeners)

    def hear(event: dict[str, Any]) -> None:
        for listener in several:
            listener(event)

    return hear


def csv(path: str | Path) -> Callback:
    """Return a callback that adds a row to a table for each network and epoch: place, epoch, loss, rate, seconds."""
    file = Path(path)
    if not file.parent.is_dir():
        raise InputError(f"{file.parent} is not a folder, so {file.name} cannot be written there; make it first.")
    _check_own(file)

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] != "epoch":
            return
        text = io.StringIO()
        rows = writer(text, lineterminator="\n")
        if not file.exists() or not file.stat().st_size:
            rows.writerow(_COLUMNS)
        for place, loss in zip(event["places"], event["losses"]):
            rows.writerow((place, event["epoch"], loss, event["rate"], event["seconds"]))
        with open(file, "a", encoding="utf8") as handle:
            handle.write(text.getvalue())

    return hear


def _check_own(file: Path) -> None:
    """Refuse a file that is no table of ours: rows would be added to it."""
    if not file.exists():
        return
    try:
        with open(file, encoding="utf8") as handle:
            first = handle.readline(200).rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        first = "nothing that can be read as text"
    header = ",".join(_COLUMNS)
    if first not in ("", header):
        raise InputError(
            f"{file} exists and begins with {visible(first[:60])!r}, not with the header {header!r}, so rows of losses do not belong "
            "there; give another path."
        )


def tensorboard(summary: Any) -> Callback:
    """Return a callback for a `torch.utils.tensorboard.SummaryWriter` (or anything with `add_scalar(name, value, step)`)."""

    def send(values: dict[str, float], epoch: int) -> None:
        for name, value in values.items():
            summary.add_scalar(name, value, epoch)

    return _numbers(send)


def mlflow(module: Any) -> Callback:
    """Return a callback for MLflow: give the module `mlflow` itself, with a run begun (or anything with `log_metrics`)."""
    return _numbers(lambda values, epoch: module.log_metrics(values, step=epoch))


def wandb(run: Any) -> Callback:
    """Return a callback for Weights & Biases: give what `wandb.init()` returned (or anything with `log`)."""
    return _numbers(lambda values, epoch: run.log(values | {"epoch": epoch}))  # their steps may never go back, ours do


def _numbers(send: Callable[[dict[str, float], int], object]) -> Callback:
    """Return a callback that sends the numbers of each epoch: the loss of every network by its place, what validation says of it, and the rate."""

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "epoch":
            losses = {f"loss/{place}": loss for place, loss in zip(event["places"], event["losses"])}
            pairs = zip(event["places"], event.get("validation", ()))
            seen = {f"validation {event.get('measure')}/{place}": value for place, value in pairs if value is not None}
            send(losses | seen | {"rate": event["rate"]}, event["epoch"])

    return hear


@contextlib.contextmanager
def bars(*, drawn: bool, say: Callable[[str], object]) -> Iterator[Callable[[str, int], Callback]]:
    """Yield a function (name, epochs) -> listener that draws a bar with the time left.

    Args:
        drawn: whether to draw at all; warnings and resumptions are said anyway.
        say: gets those sentences.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    shown = Progress(
        TextColumn("{task.description:<20}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} epochs"),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not drawn,
    )

    def listener(name: str, epochs: int) -> Callback:
        task = shown.add_task(visible(name), total=epochs, loss=0.0)

        def hear(event: dict[str, Any]) -> None:
            if event["kind"] == "warning":
                say(f"choral: {event['message']}")
            elif event["kind"] == "epoch":
                loss = sum(event["losses"]) / len(event["losses"])
                shown.update(task, completed=event["counted"]["epochs"], loss=loss)
            elif event["kind"] == "resumed":
                shown.update(task, completed=event["counted"]["epochs"])
                say(f"choral: {name}: going on from a checkpoint after {event['counted']['epochs']:.0f} epochs")

        return hear

    with shown:
        yield listener


def somebody_watches() -> bool:
    """Return whether standard error is a terminal or this is a notebook, so that progress is worth drawing."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and type(running).__name__ == "ZMQInteractiveShell"


@contextlib.contextmanager
def watched(
    name: str, epochs: int, listener: Callback | Sequence[Callback] | None, progress: bool | None
) -> Iterator[Callback | None]:
    """Yield the listener of a run: what the user gave, and a bar if it is wanted or, by default, if somebody watches."""
    given = one_of(listener)
    if not (somebody_watches() if progress is None else progress):
        yield given
        return
    with bars(drawn=True, say=lambda text: sys.stderr.write(visible(text) + "\n")) as bar:
        yield one_of([bar(name, epochs)] + ([] if given is None else [given]))
