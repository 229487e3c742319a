"""Events of a run: their types, the log, and the counts of a run.

Callbacks get every event, and `log.jsonl` stores it. A place is the path of a phase in the plan, as text.
"""

import contextlib
import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choral.engine.blueprint import Blueprint
from choral.engine.checkpoint import Branch
from choral.engine.files import open_kept
from choral.plan.state import State
from choral.plan.walk import Place

EVENTS: dict[str, dict[str, Any]] = {
    # an epoch of one network, or of several that are trained as one stack, has ended; counts are of all networks so far
    "epoch": {
        "places": list[str],
        "epoch": int,
        "epochs": int,
        "losses": list[float],
        "rate": float,
        "seconds": float,
        "counted": dict[str, float],
        "remaining?": list[dict[str, float]],
        "validation?": list[float | None],
        "measure?": str,
    },
    # an operator has changed a state
    "operator": {"name": str, "place": str, "density?": float},
    # a network has become a member
    "collected": {"place": str},
    # a run continues from a checkpoint
    "resumed": {"position": int, "epoch": int, "counted": dict[str, float]},
    # a branch was lost; the others continue
    "diverged": {"place": str, "message": str},
    # a branch stopped before its budget ('patience', 'time_limit', 'selection' or 'diverged')
    "stopped": {"place": str, "epoch": int, "epochs": int, "best_epoch": int, "best": float | None, "reason": str},
    # something was repaired or passed over
    "warning": {"message": str},
}
"""The fields of every kind of event, with their types; '?' marks those that may be missing. New kinds and fields may come."""

Callback = Callable[[dict[str, Any]], None]


def one_of(listeners: Callback | Sequence[Callback] | None) -> Callback | None:
    """Return one function that calls all given callbacks, or None if there are none."""
    if listeners is None or callable(listeners):
        return listeners
    several = tuple(listeners)

    def hear(event: dict[str, Any]) -> None:
        for listener in several:
            listener(event)

    return hear


class Log:
    """Events as lines of JSON in a file, and to a listener (the progress display)."""

    def __init__(self, path: Path | None = None, listener: Callback | None = None):
        self.path, self.listener = path, listener
        self._handle = None if path is None else os.fdopen(open_kept(path, os.O_APPEND), "a", encoding="utf8")

    def event(self, **content: Any) -> None:
        """Write one event."""
        if self.listener is not None:
            self.listener(copy.deepcopy(content))  # which may be changed there
        if self._handle is not None:
            self._handle.write(json.dumps({"time": round(time.time(), 3), **content}) + "\n")
            self._handle.flush()

    def sync(self) -> int:
        """Force the log to disk and return its size in bytes."""
        if self._handle is None:
            return 0
        self._handle.flush()
        os.fsync(self._handle.fileno())
        return self._handle.tell()

    def rewind(self, size: int) -> None:
        """Remove events after a checkpoint, so that a resumed run does not repeat them."""
        if self._handle is not None:
            self._handle.seek(0, os.SEEK_END)
            if self._handle.tell() > size:
                self._handle.truncate(size)
                self._handle.seek(size)

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        if self._handle is not None:
            self._handle.close()


def recalled(log: Path | None) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the counts in a log up to its last epoch, and the branches that stopped early."""
    counted, stopped = _COUNTED.copy(), list[dict[str, Any]]()
    for event in events_in(log.read_bytes() if log is not None and log.exists() else b""):
        if event.get("kind") == "epoch" and isinstance(event.get("counted"), dict):
            counted = event["counted"]
        if event.get("kind") == "stopped":
            stopped.append({name: event.get(name) for name in EVENTS["stopped"]})
    return counted, stopped


def events_in(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of a log; truncated or damaged lines are skipped."""
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def unfinite(state: State, blueprint: Blueprint) -> str:
    """Return which weight or buffer holds NaN or infinity, in a few words; infinities that a new network holds too do not count."""
    held = state.params | state.buffers
    odd = [name for name, tensor in held.items() if not tensor.isfinite().all()]
    new = blueprint.fresh(0, "finite").buffers if any(name in state.buffers for name in odd) else {}
    for name in odd:
        if name not in new or new[name].isfinite().all():
            what = "NaN" if bool(held[name].isnan().any()) else "infinity"
            return f"{'the buffer ' if name in state.buffers else ''}{name} holds {what}"
    return ""


_COUNTED: dict[str, float] = {"epochs": 0, "steps": 0, "points": 0, "train_flops": 0, "train_seconds": 0.0}


@dataclass
class Ledger:
    """Counts of a run, its branches that diverged, each with a message, and those that stopped."""

    log: Log
    blueprint: Blueprint
    counted: dict[str, float] = field(default_factory=_COUNTED.copy)
    failed: dict[Place, str] = field(default_factory=dict)
    stopped: list[dict[str, Any]] = field(default_factory=list)  # training that ended before its budget

    def count(self, **amounts: float) -> None:
        """Add to the counts."""
        for name, amount in amounts.items():
            self.counted[name] = self.counted.get(name, 0) + amount

    def lose(self, branch: Branch, suffix: Place, message: str) -> None:
        """Note that a branch diverged."""
        self.failed[branch.place] = message
        self.log.event(kind="diverged", place=str(branch.place + suffix), message=message)

    def stop(self, place: Place, **about: Any) -> None:
        """Note that a branch stopped in its training phase."""
        self.stopped.append({"place": str(place), **about})
        self.log.event(kind="stopped", **self.stopped[-1])

    def is_lost(self, branch: Branch) -> bool:
        """Return whether a branch diverged, or the parent it comes from."""
        return any(place.holds(branch.place) for place in self.failed)

    def is_sound(self, branch: Branch, state: State, suffix: Place) -> bool:
        """Return whether a state is finite; otherwise the branch is recorded as lost."""
        found = unfinite(state, self.blueprint)
        if found:
            self.lose(branch, suffix, f"the weights diverged: {found} at {branch.place + suffix}")
        return not found
