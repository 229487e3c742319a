"""Callbacks: progress bars, a CSV file of losses, experiment trackers.

    choral.fit(..., callbacks=choral.callbacks.csv("losses.csv"))
    choral.fit(..., callbacks=[choral.callbacks.tensorboard(SummaryWriter()), my_own])

A callback is a function of an event, a dict (`choral.engine.events`). An exception in a callback ends the run; the same call resumes it.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from csv import writer
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

from choral.base.errors import InputError
from choral.base.text import visible
from choral.engine.events import Callback

_COLUMNS = ("place", "epoch", "loss", "rate", "seconds")


def csv(path: str | Path) -> Callback:
    """Return a callback that appends a line to a CSV file for each network and epoch: place, epoch, loss, learning rate, seconds."""
    file = Path(path)
    if not file.parent.is_dir():
        raise InputError(f"{file.parent} is not a folder, so {file.name} cannot be written there; create it first.")
    header = ",".join(_COLUMNS)
    if file.exists() and file.read_bytes()[: len(header)] not in (b"", header.encode()):
        raise InputError(f"{file} does not begin with {header!r}, so it is another table; give another path.")

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


def tensorboard(summary: Any) -> Callback:
    """Return a callback for a `torch.utils.tensorboard.SummaryWriter` (or any object with `add_scalar(name, value, step)`)."""

    def send(values: dict[str, float], epoch: int) -> None:
        for name, value in values.items():
            summary.add_scalar(name, value, epoch)

    return _numbers(send)


def mlflow(module: Any) -> Callback:
    """Return a callback for MLflow: pass the module `mlflow`, with an active run (or any object with `log_metrics`)."""
    return _numbers(lambda values, epoch: module.log_metrics(values, step=epoch))


def wandb(run: Any) -> Callback:
    """Return a callback for Weights & Biases: pass the result of `wandb.init()` (or any object with `log`)."""
    return _numbers(lambda values, epoch: run.log(values | {"epoch": epoch}))  # their steps may never go back, ours do


def _numbers(send: Callable[[dict[str, float], int], object]) -> Callback:
    """Return a callback that logs the loss and validation score of each network, and the learning rate, after each epoch."""

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "epoch":
            losses = {f"loss/{place}": loss for place, loss in zip(event["places"], event["losses"])}
            pairs = zip(event["places"], event.get("validation", ()))
            seen = {f"validation {event.get('measure')}/{place}": value for place, value in pairs if value is not None}
            send(losses | seen | {"rate": event["rate"]}, event["epoch"])

    return hear


class Bars:
    """Progress bars of runs and searches.

    Args:
        shown: the progress display of rich.
        say: prints warnings and the message that a run resumes.
        told: whether to print a line for every tenth of a run, for output that is not a terminal.
    """

    def __init__(self, shown: Any, say: Callable[[str], object], *, told: bool):
        self.shown, self.say, self.told = shown, say, told

    def __call__(self, name: str, epochs: int, length: str = "") -> Callback:
        """Return a callback that draws the bar of one run, below a line with its members and epochs."""
        if length and not self.shown.disable:
            self.shown.console.print(f"{visible(name)}: {length}", markup=False, highlight=False)
        task, told = self.shown.add_task(visible(name), total=epochs, about="", left=""), 0

        def hear(event: dict[str, Any]) -> None:
            nonlocal told
            if event["kind"] == "warning":
                self.say(f"choral: {event['message']}")
            elif event["kind"] == "resumed":
                self.draw(task, event["counted"]["epochs"], "")
                self.say(f"choral: {name}: resuming from a checkpoint after {event['counted']['epochs']:.0f} epochs")
            elif event["kind"] == "epoch":
                done, loss = event["counted"]["epochs"], sum(event["losses"]) / len(event["losses"])
                self.draw(task, done, f"{done:.0f}/{epochs} epochs, loss {loss:.3f}")
                if self.told and int(10 * done / max(epochs, 1)) > told:
                    told = int(10 * done / max(epochs, 1))
                    self.say(f"choral: {name}: {done:.0f} of {epochs} epochs, loss {loss:.4g}")

        return hear

    @property
    def is_seen(self) -> bool:
        """Whether anything but warnings is printed."""
        return self.told or not self.shown.disable

    def search(self, count: int, time_limit: float | None = None) -> "SearchLine":
        """Return the single progress line of a search among `count` candidates."""
        return SearchLine(self, count, time_limit)

    def draw(self, task: Any, done: float, about: str, ends: float | None = None, **changes: Any) -> None:
        """Update a line and its remaining time: until `ends` (time.perf_counter), or extrapolated from the progress so far."""
        self.shown.update(task, completed=done, about=about, **changes)
        now = self.shown.tasks[self.shown.task_ids.index(task)]
        if ends is not None or (done and now.elapsed is not None):
            seconds = now.elapsed * (now.total - done) / done if ends is None else max(ends - perf_counter(), 0.0)
            self.shown.update(task, left=f"left {timedelta(seconds=round(seconds))}")

    def finish(self) -> None:
        """Complete all bars: training may have stopped before its last epoch."""
        for task in self.shown.tasks:
            self.shown.update(task.id, completed=task.total, left="")


class SearchLine:
    """One progress line for a whole search: the candidate, its finished members, and the time left; results are printed above it.

    Args:
        bars: draws the line.
        count: number of candidates.
        time_limit: seconds for all of them; candidates are repeated with other seeds while time is left.
    """

    def __init__(self, bars: Bars, count: int, time_limit: float | None):
        self.bars, self.count = bars, count
        self.ends = None if time_limit is None else getattr(time_limit, "started", perf_counter()) + time_limit
        self.number, self.task = 0, bars.shown.add_task("search", total=count, about="", left="")

    def of(self, name: str, members: int, epochs: int) -> Callback:
        """Return the callback of the next candidate: its name, its number of members, and the largest number of epochs of all of them."""
        done, before, bars = set[str](), self.number, self.bars
        self.count = max(self.count, before + 1)
        self._show(before, f"0/{members} members", f"{before + 1} of {self.count}: {name}")

        def hear(event: dict[str, Any]) -> None:
            if event["kind"] == "warning":
                bars.say(f"choral: {event['message']}")
            elif event["kind"] in ("stopped", "collected"):
                done.add(event["place"].rpartition("/")[0])  # its branch
            elif event["kind"] == "epoch":
                part = max(len(done) / members, event["counted"]["epochs"] / epochs)
                self._show(before + min(part, 1.0), f"epoch {event['epoch']}, {len(done)}/{members} members")

        return hear

    def tell(self, line: str) -> None:
        """Print the result of the candidate."""
        self.number += 1
        if self.bars.told:
            self.bars.say(f"choral: {line}")
        elif not self.bars.shown.disable:
            self.bars.shown.console.print(visible(line), markup=False, highlight=False)
        self._show(self.number, "choosing" if self.number == self.count else "")

    def end(self) -> None:
        """Show that the search is finished."""
        self._show(self.count, "done", f"{self.number} candidates")

    def _show(self, done: float, about: str, name: str | None = None) -> None:
        named = {} if name is None else {"description": visible(name)}
        self.bars.draw(self.task, done, about, self.ends, total=self.count, **named)


@contextlib.contextmanager
def bars(*, drawn: bool, say: Callable[[str], object], told: bool = False) -> Iterator[Bars]:
    """Yield the `Bars` of a call, with its `say` and `told`; `drawn` is whether bars are drawn at all."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    shown = Progress(
        TextColumn("{task.description:<20}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[about]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        disable=not drawn,
    )
    with shown:
        found = Bars(shown, say, told=told)
        yield found
        found.finish()


def write_line(text: str) -> None:
    """Write a line on standard error."""
    sys.stderr.write(visible(text) + "\n")


def somebody_watches() -> bool:
    """Return whether standard error is a terminal, or this is a notebook."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and type(running).__name__ == "ZMQInteractiveShell"
