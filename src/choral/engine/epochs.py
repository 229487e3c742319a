"""One training phase of a stack: branches of equal shapes, epoch after epoch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from choral.base import rng, tree
from choral.data.sources import Source
from choral.engine.checkpoint import Branch
from choral.engine.context import BranchContext, applied
from choral.engine.flops import Flops
from choral.engine.ledger import Ledger
from choral.engine.points import order_of, picked, target_shift, weights_of
from choral.engine.task import Task
from choral.engine.trainers import PlainTrainer, StackedTrainer
from choral.plan.cost import batches_in
from choral.plan.phases import Every, Train
from choral.plan.state import Role, State
from choral.plan.walk import Place


@dataclass(frozen=True)
class Setting:
    """What all training phases of a run have in common."""

    task: Task
    source: Source
    seed: int
    flops: Flops
    ledger: Ledger

    def context(self, place: Place) -> BranchContext:
        """Return what an operator at this place is lent."""
        return BranchContext(self.task, self.source, self.seed, place)

    def remaining(self, states: Sequence[State]) -> list[dict[str, float]] | None:
        """Return what is left of each network, as shares of the one built; None if its structure closes no nodes."""
        shares = []
        for state in states:
            left = self.task.structure.remaining(state.params, state.buffers)
            if left is None:
                return None
            shares.append(self.flops.remaining(state, left))
        return shares


def alike(phase: Train, branches: Sequence[Branch]) -> list[list[Branch]]:
    """Return the branches in stacks of equal shapes, which a phase can train together."""
    found: dict[Any, list[Branch]] = {}
    for branch in branches:
        state = branch.reached
        own = [tree.signature(state.playing(role)) for role in (Role.MASK, Role.SUBSET, Role.SHIFT)]
        alone = None if phase.optimiser.elementwise else branch.place
        found.setdefault((tree.signature(state.params), repr(state.form), alone, *own), []).append(branch)
    return list(found.values())


class Epochs:
    """The epochs of one training phase for branches of equal shapes.

    Args:
        setting: what all phases have in common.
        phase: the phase.
        branches: the stack; their states are set when `take_out` is called, and at the end.
        suffix: place of the phase, from where the branches begin.
    """

    def __init__(self, setting: Setting, phase: Train, branches: Sequence[Branch], suffix: Place):
        self.setting, self.phase, self.branches, self.suffix = setting, phase, list(branches), suffix
        self.keys = [rng.key(setting.seed, *(b.place + suffix).words, "train") for b in self.branches]
        self.subsets = [branch.reached.subset for branch in self.branches]
        self.points = [setting.source.points if s is None else len(s) for s in self.subsets]
        self.per_epoch = batches_in(self.points[0], phase.batch_size)
        self.steps = phase.epochs * self.per_epoch
        self.shift = target_shift([branch.reached for branch in self.branches])
        kind = PlainTrainer if len(self.branches) == 1 else StackedTrainer
        self.weights = weights_of(setting.source, self.subsets)
        self.trainer = kind(setting.task, phase, [setting.source.mass(s) for s in self.subsets])
        self.trainer.steps = self.steps

    def run(self, begin: int, due: Callable[[], bool], finished: Callable[[int], None]) -> None:
        """Train from an epoch on to the end.

        Args:
            begin: epochs that are done.
            due: whether the states are wanted after this epoch.
            finished: called with the number of epochs done when they are there.
        """
        states = [branch.reached for branch in self.branches]
        if begin == 0 and self.phase.memory == "fresh":
            states = [state.having(memory={}) for state in states]
        self._set(states)
        if not self.phase.epochs:
            return
        self.trainer.mount(states, self.keys)
        gated = self.setting.remaining(states) is not None
        for epoch in range(begin, self.phase.epochs):
            started = time.perf_counter()
            self._train(epoch)
            losses = self._account(epoch, time.perf_counter() - started, gated)
            self.setting.ledger.note_losses(self.branches, losses, self.suffix, epoch)
            if all(self.setting.ledger.is_lost(branch) for branch in self.branches):
                return
            if epoch + 1 < self.phase.epochs and due():
                self._set(self.trainer.states())
                finished(epoch + 1)
        self._set(self.trainer.states())

    def _set(self, states: Sequence[State]) -> None:
        for branch, state in zip(self.branches, states):
            branch.state = state

    def _train(self, epoch: int) -> None:
        """Take the steps of one epoch, and apply the rules that are due in it."""
        phase, trainer = self.phase, self.trainer
        trainer.catch = True
        order = self._order(epoch)
        for i, (x, y) in enumerate(self.setting.source.epoch(order, phase.batch_size)):
            step = epoch * self.per_epoch + i
            if self.shift is not None:
                y = y + picked(self.shift, order, i * phase.batch_size, y)
            progress = step / self.steps if phase.annealing else 1.0
            own = None if self.weights is None else picked(self.weights, order, i * phase.batch_size, y)
            trainer.step(x, y, step, progress, phase.schedule.rate(step, self.steps), own)
            self._apply("steps", step + 1, self.steps)
        self._apply("epochs", epoch + 1, phase.epochs)

    def _order(self, epoch: int) -> Tensor:
        orders = [order_of(k, epoch, n, s) for k, n, s in zip(self.keys, self.points, self.subsets)]
        return orders[0] if len(orders) == 1 else torch.stack(orders)

    def _account(self, epoch: int, seconds: float, gated: bool) -> list[float]:
        """Count an epoch and tell the log; return the losses."""
        setting, ledger, count = self.setting, self.setting.ledger, len(self.branches)
        losses = self.trainer.losses()
        seen = min(self.per_epoch * self.phase.batch_size, self.points[0])
        ledger.count(
            epochs=count,
            steps=self.per_epoch * count,
            points=seen * count,
            train_flops=sum(setting.flops.train(branch.state) for branch in self.branches) * seen,
            train_seconds=seconds,
        )
        ledger.log.event(
            kind="epoch",
            places=[str(branch.place + self.suffix) for branch in self.branches],
            epoch=epoch + 1,
            epochs=self.phase.epochs,
            losses=losses,
            rate=self.phase.schedule.rate(epoch * self.per_epoch, self.steps),
            seconds=seconds,
            counted=ledger.counted,
            **({"remaining": setting.remaining(self.trainer.states())} if gated else {}),
        )
        return losses

    def _apply(self, unit: str, finished: int, total: int) -> None:
        """Apply the rules that are due after so many steps or epochs."""
        for number, rule in enumerate(self.phase.every):
            if rule.unit == unit and rule.due(finished, total):
                self._apply_rule(rule, self.suffix.then("every", number).then("after", finished))

    def _apply_rule(self, rule: Every, suffix: Place) -> None:
        ledger, changed = self.setting.ledger, list[State]()
        for branch, state in zip(self.branches, self.trainer.states()):
            if not ledger.is_lost(branch) and ledger.is_sound(branch, state, suffix):
                state = applied(rule.phase, state, self.setting.context(branch.place + suffix))
            changed.append(state)
        self._set(changed)  # operations are counted by their masks
        total, count = self.trainer.total, self.trainer.count
        self.trainer.mount(changed, self.keys)
        self.trainer.total, self.trainer.count = total, count
