"""A small run with early stopping that is killed again and again: FOLDER EXECUTOR BY; prints what happened as JSON.

Runs are children of this process, which has loaded torch already, so that ten kills cost as much as one start of Python.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from choral import Compute
from choral.fit import fit
from choral.plan import Adam, EarlyStopping
from choral.recipes import make
from choral.recipes.training import Training

EVENTS = (2, 3, 4)  # at which the child kills itself, counted from where it began
DELAYS = (0.0, 0.004, 0.012, 0.03)  # seconds after its first event at which the parent kills it


def build() -> nn.Module:
    """Return a network with what a checkpoint must not forget: running statistics and keyed draws."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def train(folder: Path, executor: Any, by: str, listener: Any = None) -> None:
    """Fit four members that stop after different numbers of epochs."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=draw)
    y = (x[:, 0] + 0.7 * torch.randn(90, generator=draw) > 0).long()
    training = Training(lr=0.01, optimizer=Adam(), batch_size=16, schedule="constant")
    recipe = make("deep_ensemble", budget=160, members=4, training=training)
    stop = EarlyStopping(patience=5, by=by)  # type: ignore[arg-type]  # one of two words
    options: dict[str, Any] = {
        "compute": Compute(executor=executor, checkpoint_seconds=0),
        "callbacks": listener,
        "progress": False,
    }
    fit(build, (x, y), recipe, run_dir=folder, validation=0.3, early_stopping=stop, **options)


class Fuse:
    """A listener that kills its process without warning: at an event by number, or in the epoch after a member stopped."""

    def __init__(self, at: int | None):
        self.at, self.seen, self.stopped = at, 0, False

    def __call__(self, event: dict[str, Any]) -> None:
        self.seen += 1
        late = self.at is None and self.stopped and event["kind"] == "epoch"
        self.stopped |= event["kind"] == "stopped"
        if self.seen == self.at or late:
            os.kill(os.getpid(), signal.SIGKILL)


def child(folder: Path, executor: str, by: str, listener: Any = None, delay: float | None = None) -> bool:
    """Run in a process of its own, killed after some seconds if it is told; return whether it was killed."""
    number = os.fork()
    if not number:
        code = 1
        try:
            train(folder, executor, by, listener)
            code = 0
        finally:
            os._exit(code)
    log = folder / "log.jsonl"
    size = log.stat().st_size if log.exists() else 0
    if delay is not None:
        limit = time.monotonic() + 60
        while time.monotonic() < limit and not (log.exists() and log.stat().st_size > size):
            if os.waitpid(number, os.WNOHANG)[0]:
                return False
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(number, signal.SIGKILL)
    status = os.waitpid(number, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"a run ended with {status}"
    return os.WIFSIGNALED(status)


def members(folder: Path) -> dict[str, str]:
    """Return the members of a run as text."""
    return {path.name: path.read_bytes().hex() for path in sorted((folder / "members").iterdir())}


def main(place: str, executor: str, by: str) -> None:
    """Train one setting whole and killed, and print what came of it."""
    torch.set_num_threads(1)
    whole, broken = (Path(place) / kind for kind in ("whole", "broken"))
    train(whole, executor, by)
    kills = [child(broken, executor, by, Fuse(at)) for at in EVENTS]
    kills += [child(broken, executor, by, delay=delay) for delay in DELAYS]
    late = by == "member" and child(broken, executor, by, Fuse(None))
    kills += [late, *(child(broken, executor, by, Fuse(2)) for _ in range(2))]
    train(broken, executor, by)
    events = [json.loads(line) for line in (whole / "log.jsonl").read_text().splitlines()]
    found = {
        "kills": sum(kills),
        "while_some_had_stopped": late,
        "stopped_after": [e["epoch"] for e in events if e["kind"] == "stopped"],
        "same": members(whole) == members(broken),
        "members": len(members(whole)),
    }
    print(json.dumps(found))  # noqa: T201  # what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
