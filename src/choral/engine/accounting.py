"""Counts, losses and divergence of a run, and the log they are written to.

What is wrong with a state that diverged: the loss of an epoch can be finite when its last update is not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from choral.engine.blueprint import Blueprint
from choral.engine.checkpoint import Branch
from choral.engine.store import Log
from choral.plan.state import State
from choral.plan.walk import Place


def unfinite(state: State, blueprint: Blueprint) -> str:
    """Return which weight or buffer of a state holds NaN or infinity, in a few words; nothing if all are finite.

    A buffer may hold infinities by design (a mask of attention): those that a newly built network holds too do not count.
    """
    for name, p in state.params.items():
        if not _is_finite(p):
            return f"{name} holds {_worst(p)}"
    odd = [name for name, b in state.buffers.items() if not _is_finite(b)]
    if odd:
        built = blueprint.fresh(0, "finite").buffers
        for name in odd:
            if name not in built or _is_finite(built[name]):
                return f"the buffer {name} holds {_worst(state.buffers[name])}"
    return ""


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _worst(tensor: Tensor) -> str:
    return "NaN" if bool(tensor.isnan().any()) else "infinity"


def _nothing() -> dict[str, float]:
    return {"epochs": 0, "steps": 0, "points": 0, "train_flops": 0, "train_seconds": 0.0}


@dataclass
class Ledger:
    """Counts of a run, its branches that diverged, each with a message, and those that stopped."""

    log: Log
    blueprint: Blueprint
    counted: dict[str, float] = field(default_factory=_nothing)
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
        """Return whether a state is finite, so that something can be made of it; a branch whose state is not is lost."""
        found = unfinite(state, self.blueprint)
        if found:
            self.lose(branch, suffix, f"the weights diverged: {found} at {branch.place + suffix}")
        return not found

    def note_losses(self, branches: Sequence[Branch], losses: Sequence[float], suffix: Place, epoch: int) -> None:
        """Lose the branches whose loss of an epoch is not finite."""
        for branch, loss in zip(branches, losses):
            if not math.isfinite(loss) and not self.is_lost(branch):
                place = branch.place + suffix
                self.lose(branch, suffix, f"the loss became {loss} at {place} in epoch {epoch + 1}")
