"""A crew: branches of equal shapes that take their training steps together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from choral.base import batches, devices, rng, tree
from choral.base.batches import Batch
from choral.data.sources import Source
from choral.engine.accounting import Ledger
from choral.engine.checkpoint import Branch
from choral.engine.context import BranchContext, applied
from choral.engine.flops import Flops
from choral.engine.points import for_members, order_of, parts_in, picked, target_shift, weights_of
from choral.engine.task import Task
from choral.engine.telling import telling
from choral.engine.trainers import Pace, PlainTrainer, StackedTrainer
from choral.engine.validation import Rules, Watcher
from choral.plan.cost import batches_in
from choral.plan.optimizer_step import steps_of
from choral.plan.phases import Every, Train
from choral.plan.state import Role, State
from choral.plan.variants import Variant
from choral.plan.walk import Place

_PLAIN = Variant()


@dataclass(frozen=True)
class Setting:
    """What all training phases of a run have in common."""

    task: Task
    source: Source
    seed: int
    flops: Flops
    ledger: Ledger
    validation: Watcher | None
    rules: Rules

    def context(self, place: Place, variant: Variant = _PLAIN, state: State | None = None) -> BranchContext:
        """Return what an operator at this place is lent; points held out of a state are not among it."""
        held = None if state is None else state.held
        return BranchContext(self.task, self.source, self.seed, place, variant, held)

    def remaining(self, states: Sequence[State]) -> list[dict[str, float]] | None:
        """Return what is left of each network, as shares of the one built; None if its structure closes no nodes."""
        shares = []
        for state in states:
            left = self.task.structure.remaining(state.params, state.buffers)
            if left is None:
                return None
            shares.append(self.flops.remaining(state, left))
        return shares

    @property
    def is_late(self) -> bool:
        """Whether the time is up, that of all parts of a resumed run; one epoch is trained in any case."""
        counted, limit = self.ledger.counted, self.rules.time_limit
        if limit is None or not counted["epochs"]:
            return False
        return sum(counted.get(f"{what}_seconds", 0.0) for what in ("setup", "train", "validation")) >= limit


def alike(phase: Train, branches: Sequence[Branch]) -> list[list[Branch]]:
    """Return the branches in stacks of equal shapes, which a phase can train together."""
    found: dict[Any, list[Branch]] = {}
    for branch in branches:
        state = branch.reached
        own = [tree.signature(state.playing(role)) for role in (Role.MASK, Role.SUBSET, Role.SHIFT)]
        able = phase.optimizer.elementwise and (phase.optimizer.varies or not branch.variant.settings)
        alone = None if able else branch.place
        taken = steps_of(state.memory) if phase.memory == "carried" else ()
        found.setdefault((tree.signature(state.params), repr(state.form), alone, taken, *own), []).append(branch)
    return list(found.values())


class Crew:
    """The trainer of some branches in one training phase, and the points and rules it is given.

    Args:
        setting: what all phases have in common.
        phase: the phase.
        branches: who is trained; a branch that has stopped keeps its place here, but nothing is done to it.
        suffix: place of the phase, from where the branches begin.
    """

    def __init__(self, setting: Setting, phase: Train, branches: Sequence[Branch], suffix: Place):
        self.setting, self.phase, self.branches, self.suffix = setting, phase, list(branches), suffix
        self.keys = [rng.key(setting.seed, *(b.place + suffix).words, "train") for b in self.branches]
        self.subsets = [branch.reached.subset for branch in self.branches]
        self.points = [setting.source.drawn(s) for s in self.subsets]
        self.per_epoch = batches_in(self.points[0], phase.batch_size)
        self.steps = phase.epochs * self.per_epoch
        self.shift = target_shift([branch.reached for branch in self.branches])
        kind = PlainTrainer if len(self.branches) == 1 else StackedTrainer
        self.weights = weights_of(setting.source, self.subsets)
        structure, stacked = setting.task.structure, len(self.branches) > 1
        if self.shift is not None:
            self.shift = for_members(self.shift, structure, stacked=stacked)
        if self.weights is not None:
            self.weights = for_members(self.weights, structure, stacked=stacked)
        self.trainer = kind(setting.task, phase, [setting.source.mass(s) for s in self.subsets])
        self.trainer.steps = self.steps
        self.trainer.variants = [branch.variant for branch in self.branches]

    @property
    def seen(self) -> int:
        """Points a branch sees in one epoch."""
        return min(self.per_epoch * self.phase.batch_size, self.points[0])

    def mount(self) -> None:
        """Take the states of the branches in."""
        self.trainer.mount([branch.reached for branch in self.branches], self.keys)

    def take_out(self) -> None:
        """Give the branches that go on their states."""
        self._set(self.trainer.states())

    def _set(self, states: Sequence[State]) -> None:
        for branch, state in zip(self.branches, states):
            if branch.goes_on:
                branch.state = state

    def train(self, epoch: int) -> None:
        """Take the steps of one epoch, and apply the rules that are due in it."""
        phase, trainer = self.phase, self.trainer
        trainer.catch = True
        order = self._order(epoch)
        keys = [rng.key(key, "items", epoch) for key, _, _ in self._readers()]
        among = self.setting.task.parts.among
        read = self.setting.source.epoch(order, phase.batch_size, keys=keys, among=among)
        places = parts_in(order.shape[-1], phase.batch_size, among)
        for i, ((x, y), (start, part)) in enumerate(zip(read, places)):
            step = epoch * self.per_epoch + i
            if self.shift is not None:
                y = y + devices.moved(picked(self.shift, order, start, y), y.device)
            progress = step / self.steps if phase.annealing else 1.0
            own = None if self.weights is None else picked(self.weights, order, start, y)
            x, y, own = self._by_branch(x, y, own)
            with telling(f"in epoch {epoch + 1}, batch {i + 1},", x, stacked=isinstance(trainer, StackedTrainer)):
                trainer.step(x, y, Pace(step, progress, phase.schedule.rate(step, self.steps)), own, part)
            if step == 0:
                self._say_undropped()
            self._apply("steps", step + 1, self.steps)
        self.setting.task.parts.share_statistics(trainer.network)
        self._apply("epochs", epoch + 1, phase.epochs)

    def _say_undropped(self) -> None:
        """Say, once a phase, that rates of dropout have nothing to act on."""
        if not self.trainer.catch and any(branch.variant.get("dropout") for branch in self.branches):
            self.setting.ledger.log.event(
                kind="warning",
                message="branches differ in dropout, but the network has no dropout layer, so they do not; give it some (nn.Dropout, or "
                "dropout=0.1 of choral's networks).",
            )

    def _order(self, epoch: int) -> Tensor:
        sampling = self.setting.source.sampling
        orders = [order_of(k, epoch, n, s, sampling) for k, n, s in self._readers()]
        return orders[0] if len(orders) == 1 else torch.stack(orders)

    def _readers(self) -> list[tuple[int, int, Tensor | None]]:
        """Return who reads batches: key, points and subset of each branch, or of each member that has batches of its own."""
        branches, structure = list(zip(self.keys, self.points, self.subsets)), self.setting.task.structure
        if not structure.own_batches:
            return branches
        return [(rng.key(k, "member", m), n, s) for k, n, s in branches for m in range(structure.members)]

    def _by_branch(self, x: Batch, y: Tensor, weights: Tensor | None) -> tuple[Batch, Tensor, Tensor | None]:
        """Return what all readers read as (branch, member, batch, ...), where members of several branches read."""
        if len(self.branches) == 1 or not self.setting.task.structure.own_batches:
            return x, y, weights

        def apart(t: Tensor) -> Tensor:
            return t.unflatten(0, (len(self.branches), -1))

        return batches.mapped(apart, x), apart(y), None if weights is None else apart(weights)

    def _apply(self, unit: str, finished: int, total: int) -> None:
        """Apply the rules that are due after so many steps or epochs."""
        for number, rule in enumerate(self.phase.every):
            if rule.unit == unit and rule.due(finished, total):
                self._apply_rule(rule, self.suffix.then("every", number).then("after", finished))

    def _apply_rule(self, rule: Every, suffix: Place) -> None:
        """Apply a rule to all branches; one that computes anywhere gets their states on the device."""
        ledger, changed = self.setting.ledger, list[State]()
        for branch, state in zip(self.branches, self.trainer.states(here=rule.phase.anywhere)):
            if branch.goes_on and not ledger.is_lost(branch) and ledger.is_sound(branch, state, suffix):
                state = applied(rule.phase, state, self.setting.context(branch.place + suffix, branch.variant, state))
            changed.append(state)
        self._set(changed)  # operations are counted by their masks
        total, count = self.trainer.total, self.trainer.count
        self.trainer.mount(changed, self.keys)
        self.trainer.total, self.trainer.count = total, count
