"""The running choice of a stack's networks: rebuilt after every epoch from what they are and what was chosen before."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from choral.calibration.members import greedy_selection
from choral.engine.checkpoint import Branch, Watch
from choral.engine.validation import Validation
from choral.plan.early_stopping import SHARE, Select
from choral.plan.state import State, slot

_OUTPUTS = slot("held-out outputs")  # of a chosen state, kept with it so that a resumed run chooses by the same bits
_GAIN = 1e-9  # of the score; less is rounding


class _Candidate(NamedTuple):
    """A network at some time: its branch, its state, its outputs (member * draws, batch, ...) for held-out points."""

    branch: Branch
    state: State
    outputs: Tensor
    is_held: bool


def choose(
    select: Select, validation: Validation, branches: Sequence[Branch], now: dict[int, Tensor], epoch: int
) -> None:
    """Choose anew among the sound networks of a phase; what comes of it is noted in their watches.

    `now` holds the outputs of those that were trained in this epoch, by their place in `branches`.
    """
    pool = list(_candidates(branches, now))
    if not pool:
        return
    values, loss = validation.blended(torch.stack([c.outputs for c in pool]))
    weights = validation.weights

    def cost(counts: Sequence[int]) -> float:
        shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        rows = loss(torch.einsum("m,m...->...", shares, values.double()).unsqueeze(0))[0]
        return float(rows.mean() if weights is None else (rows * weights).sum() / weights.sum())

    first = _one_each(pool, greedy_selection(values, loss, picks=select.picks, weights=weights).counts)
    kept = [i for i, count in enumerate(first) if count]
    again = greedy_selection(values[kept], loss, picks=select.picks, weights=weights).counts
    counts = tuple(again[kept.index(i)] if i in kept else 0 for i in range(len(pool)))
    before = [c.branch.watch.count if c.is_held else 0 for c in pool]
    gained = not sum(before) or cost(counts) < (old := cost(before)) - _GAIN * (1 + abs(old))
    _note(pool, counts if gained else before, now, epoch if gained else None)


def _candidates(branches: Sequence[Branch], now: dict[int, Tensor]) -> "list[_Candidate]":
    found = []
    for i, branch in enumerate(branches):
        held = branch.watch.held
        if held is not None:
            kept = held.slots[_OUTPUTS]["outputs"]
            found.append(_Candidate(branch, held, kept, True))
        if i in now and bool(torch.isfinite(now[i]).all()):
            found.append(_Candidate(branch, branch.reached, now[i], False))
    return found


def _one_each(pool: Sequence[_Candidate], counts: Sequence[int]) -> list[int]:
    """Return counts in which each branch has one time left, the one that was chosen more often."""
    most: dict[str, int] = {}
    for i, (candidate, count) in enumerate(zip(pool, counts)):
        name = str(candidate.branch.place)
        if count and (name not in most or count > counts[most[name]]):
            most[name] = i
    return [count if most.get(str(c.branch.place)) == i else 0 for i, (c, count) in enumerate(zip(pool, counts))]


def _note(pool: Sequence[_Candidate], counts: Sequence[int], now: dict[int, Tensor], gained: int | None) -> None:
    """Write a choice into the watches; a network that is not chosen is held as it was when it was best."""
    chosen = {str(c.branch.place) for c, count in zip(pool, counts) if count}
    for candidate, count in zip(pool, counts):
        watch, place = candidate.branch.watch, str(candidate.branch.place)
        if gained is not None:
            watch.gained = gained
        if place in chosen:
            if count:
                watch.count = count
                watch.held = _held(candidate)
        elif candidate.is_held:
            watch.count = 0
        else:
            watch.count = 0
            if watch.held is None or watch.state is candidate.branch.state:  # it is at its best now
                watch.held = _held(candidate)


def _held(candidate: _Candidate) -> State:
    if candidate.is_held:
        return candidate.state
    slots = {**candidate.state.slots, _OUTPUTS: {"outputs": candidate.outputs}}
    return candidate.state.having(memory={}, slots=slots)


def sound(watch: Watch) -> State | None:
    """Return a state that a network had when it was chosen or best; None before the first."""
    if watch.held is None:
        return watch.state
    return watch.held.having(slots={name: held for name, held in watch.held.slots.items() if name != _OUTPUTS})


def is_tired(select: Select, branches: Sequence[Branch], epoch: int) -> bool:
    """Return whether no choice has been better for too long."""
    return epoch - max((b.watch.gained for b in branches), default=0) >= select.patience


def settle(branches: Sequence[Branch]) -> bool:
    """Give every network the state it was chosen in, and its share of the choice; return whether there is one."""
    total = sum(b.watch.count for b in branches)
    for branch in branches if total else ():
        watch = branch.watch
        state = (sound(watch) if watch.count else watch.state) or branch.reached
        share = torch.tensor(watch.count / total, dtype=torch.float64)
        branch.state = state.having(slots=state.slots | {SHARE: {"share": share}})
    return total > 0
