"""Run a plan: walk its tree in a fixed order, phase by phase, with checkpoints on the way.

The walk is the same for every executor. A fork's branches are walked in stacks: stacks of one are the sequential
executor, larger ones are trained together. Each leaf phase has a position in the walk, so a checkpoint needs only the
position and the open states.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from choral.base import rng, tree
from choral.base.errors import DivergedError
from choral.data.sources import Source
from choral.engine.checkpoint import Branch, Checkpoints, Place, Snapshot, Stack
from choral.engine.context import BranchContext, applied
from choral.engine.divergence import unfinite
from choral.engine.flops import Flops
from choral.engine.points import order_of, picked, subset_of, target_shift
from choral.engine.store import Log, MemberStore
from choral.engine.task import Task
from choral.engine.trainers import PlainTrainer, StackedTrainer, Trainer
from choral.plan.cost import batches_in
from choral.plan.phases import Collect, Every, Fork, Operator, Phase, Repeat, Seq, Train, visit
from choral.plan.state import State

WIDEST = 512  # branches stacked at once, at most
_SHARE = 0.02  # of the time that checkpoints take, at most


class Run:
    """One execution of a plan.

    Args:
        task: structure, objective, device: what stays the same.
        source: training data.
        plan: the plan.
        seed: the root seed.
        width: gives the number of branches to walk together for a fork.
        store: where members go.
        checkpoints: where to resume from, or None.
        log: where events go.
        seconds: least time between two checkpoints, longer where one takes more than 2 % of it; 0 takes all there could be.
    """

    def __init__(
        self,
        task: Task,
        source: Source,
        plan: Phase,
        *,
        seed: int,
        width: Callable[[Fork, int], int],
        store: MemberStore,
        checkpoints: Checkpoints | None,
        log: Log,
        seconds: float,
    ):
        self.task, self.source, self.plan, self.seed = task, source, plan, seed
        self.width, self.store, self.checkpoints, self.log, self.seconds = width, store, checkpoints, log, seconds
        self.position = 0
        self.open: list[Stack] = []  # the stacks above the one walked, parents of its branches
        self.failed: dict[str, str] = {}
        self.counted: dict[str, float] = {"epochs": 0, "steps": 0, "points": 0, "train_flops": 0, "train_seconds": 0.0}
        self.flops = Flops(task, source)
        self.snapshot: Snapshot | None = None
        self.skip_to: float = 0
        self.wanted: dict[int, Place] | None = None  # members to train again, with their places; None trains all
        self.collected_at: dict[int, int] = {}  # position of each member's Collect in the walk
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        places: list[Place] = []
        visit(plan, lambda node, place: places.append(place) if isinstance(node, Collect) else None)
        self.member_of = {place: i for i, place in enumerate(places)}

    def begin(self) -> None:
        """Go to the last whole checkpoint, if there is one; the log forgets what came after it."""
        self.snapshot = None if self.checkpoints is None else self.checkpoints.latest()
        self.log.rewind(0 if self.snapshot is None else self.snapshot.log_bytes)
        for message in [] if self.checkpoints is None else self.checkpoints.messages:
            self.log.event(kind="warning", message=message)
        if self.snapshot is not None:
            self.skip_to, self.failed = self.snapshot.position, dict(self.snapshot.failed)
            self.counted = dict(self.snapshot.counted)
            self.log.event(kind="resumed", position=self.skip_to, epoch=self.snapshot.epoch, counted=self.counted)

    def execute(self) -> None:
        """Run the plan from where it begins to its end; raises DivergedError if a branch was lost."""
        self.walk()
        if self.failed:
            raise DivergedError("; ".join(self.failed.values()) + ". " + self._advice())

    def _advice(self) -> str:
        """Return what can be done after a branch was lost."""
        count = len(self.member_of)
        kept = count - len(self.store.missing(count))
        said = f"{kept} of {count} members were kept"
        if self.store.folder is None:
            return f"{said}; lower the rate or clip gradients and run again."
        load = f": choral.load('{self.store.folder.parent}', partial=True) gives them" if kept else ""
        return f"{said}{load}; lower the rate or clip gradients and run again into another folder (this one stays with its plan)."

    def walk(self) -> None:
        """Walk the whole plan."""
        self._walk(self.plan, Stack([Branch(())]), ())

    def twin(self, log: Log) -> "Run":
        """Return another run of the same plan into the same store, which takes no checkpoints."""
        return Run(
            self.task,
            self.source,
            self.plan,
            seed=self.seed,
            width=self.width,
            store=self.store,
            checkpoints=None,
            log=log,
            seconds=self.seconds,
        )

    def _walk(self, node: Phase, stack: Stack, suffix: Place) -> None:
        if isinstance(node, Seq):
            for i, child in enumerate(node.phases):
                self._walk(child, stack, (*suffix, i))
        elif isinstance(node, Repeat):
            for i in range(node.times):
                self._walk(node.body, stack, (*suffix, f"r{i}"))
        elif isinstance(node, Fork):
            begun = [(parent, i) for parent in stack.branches for i in range(node.branches)]
            width = max(1, self.width(node, len(begun)))
            self.open.append(stack)
            for start in range(0, len(begun), width):
                some = begun[start : start + width]
                branches = [Branch((*parent.place, *suffix, f"f{i}"), parent.state) for parent, i in some]
                self._walk(node.body, Stack(branches, stack.version, parents=[parent for parent, _ in some]), ())
            self.open.pop()
        else:
            self._leaf(node, stack, suffix)

    def _leaf(self, node: Phase, stack: Stack, suffix: Place) -> None:
        position, self.position = self.position, self.position + 1
        if isinstance(node, Collect):
            self.collected_at |= {self.member_of[branch.place + suffix]: position for branch in stack.branches}
        if position < self.skip_to or not self._is_wanted(stack):
            return
        begin = 0
        if self.snapshot is not None:
            self._restore(stack)
            begin, self.snapshot = self.snapshot.epoch, None
        branches = [branch for branch in stack.branches if not self._is_lost(branch)]
        if not isinstance(node, Train):
            branches = [
                branch for branch in branches if branch.state is None or self._is_sound(branch, branch.state, suffix)
            ]
        if isinstance(node, Train):
            self._train(node, stack, branches, suffix, position, begin)
        elif isinstance(node, Collect):
            for branch in branches:
                self._collect(self.member_of[branch.place + suffix], branch, suffix)
        else:
            assert isinstance(node, Operator)
            for branch in branches:
                branch.state = applied(node, branch.state, self._context(branch, suffix))
                place = _path(branch.place + suffix)
                self.log.event(kind="operator", name=type(node).__name__, place=place, **_density(branch.state))
        stack.version = (position + 1, 0)
        self._checkpoint(stack, position + 1, 0)

    def _collect(self, number: int, branch: Branch, suffix: Place) -> None:
        assert branch.state is not None
        if self.wanted is None or self.wanted.pop(number, None) is not None:
            self.store.put(number, branch.state)
            self.log.event(kind="collected", place=_path(branch.place + suffix))

    def _is_wanted(self, stack: Stack) -> bool:
        """Return whether a stack must be walked: always, but when mending only if a lost member comes from it."""
        if self.wanted is None:
            return True
        return any(
            place[: len(branch.place)] == branch.place for place in self.wanted.values() for branch in stack.branches
        )

    def _restore(self, stack: Stack) -> None:
        """Give every open stack the states the checkpoint holds for it; branches not yet begun take their parent's."""
        assert self.snapshot is not None
        for one in [*self.open, stack]:
            for i, branch in enumerate(one.branches):
                saved = self.snapshot.open.get(repr(branch.place))
                if saved is not None:
                    branch.state = saved
                elif one.parents:
                    branch.state = one.parents[i].state
            one.version = (self.snapshot.position, self.snapshot.epoch)

    def _context(self, branch: Branch, suffix: Place) -> BranchContext:
        return BranchContext(self.task, self.source, self.seed, branch.place, suffix)

    def _checkpoint(self, stack: Stack, position: int, epoch: int) -> None:
        if self.checkpoints is None or not self._checkpoint_due():
            return
        started = time.monotonic()
        self.checkpoints.save(
            [*self.open, stack],
            position=position,
            epoch=epoch,
            failed=self.failed,
            counted=self.counted,
            log_bytes=self.log.sync(),
        )
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    def _train(
        self, phase: Train, stack: Stack, branches: list[Branch], suffix: Place, position: int, begin: int
    ) -> None:
        """Train the branches; those of equal shapes go together. `begin` counts epochs over all shapes."""
        shapes: dict[Any, list[Branch]] = {}
        for branch in branches:
            assert branch.state is not None
            own = [tree.signature(branch.state.slots.get(slot, {})) for slot in ("subset", "target_shift")]
            alone = None if phase.optimiser.elementwise else branch.place
            signature = (tree.signature(branch.state.params), repr(branch.state.form), alone, *own)
            shapes.setdefault(signature, []).append(branch)
        for number, alike in enumerate(shapes.values()):
            first = begin - number * phase.epochs
            if first >= phase.epochs and phase.epochs:
                continue

            def finished(epoch: int, number: int = number) -> None:
                done = number * phase.epochs + epoch
                stack.version = (position, done)
                self._checkpoint(stack, position, done)

            self._train_alike(phase, alike, suffix, max(first, 0), finished)

    def _train_alike(
        self, phase: Train, alike: list[Branch], suffix: Place, begin: int, finished: Callable[[int], None]
    ) -> None:
        states = [branch.state for branch in alike]
        if begin == 0:
            for branch in alike:
                assert branch.state is not None
                if phase.memory == "fresh":
                    branch.state = branch.state.having(memory={})
        if phase.epochs == 0:
            return
        keys = [rng.key(self.seed, *branch.place, *suffix, "train") for branch in alike]
        subsets = [subset_of(branch.state) for branch in alike]
        points = [self.source.points if s is None else len(s) for s in subsets]
        kind: type[Trainer] = PlainTrainer if len(alike) == 1 else StackedTrainer
        trainer = kind(self.task, phase, points)
        per_epoch = batches_in(points[0], phase.batch_size)
        trainer.steps = phase.epochs * per_epoch
        trainer.mount([branch.state for branch in alike if branch.state is not None], keys)
        shift = target_shift(alike)
        gated = self._remaining(states) is not None
        for epoch in range(begin, phase.epochs):
            started = time.perf_counter()
            trainer.catch = True
            orders = [order_of(k, epoch, n, s) for k, n, s in zip(keys, points, subsets)]
            order = orders[0] if len(alike) == 1 else torch.stack(orders)
            steps = phase.epochs * per_epoch
            for i, (x, y) in enumerate(self.source.epoch(order, phase.batch_size)):
                step = epoch * per_epoch + i
                if shift is not None:
                    y = y + picked(shift, order, i * phase.batch_size, y)
                progress = step / steps if phase.annealing else 1.0
                trainer.step(x, y, step, progress, phase.schedule.rate(step, steps))
                self._apply_every(phase, "steps", step + 1, steps, trainer, alike, keys, suffix)
            self._apply_every(phase, "epochs", epoch + 1, phase.epochs, trainer, alike, keys, suffix)
            seconds = time.perf_counter() - started
            losses = trainer.losses()
            seen = min(per_epoch * phase.batch_size, points[0])
            for name, amount in [
                ("epochs", len(alike)),
                ("steps", per_epoch * len(alike)),
                ("points", seen * len(alike)),
                ("train_flops", sum(self.flops.train(branch.state) for branch in alike) * seen),
                ("train_seconds", seconds),
            ]:
                self.counted[name] += amount
            self.log.event(
                kind="epoch",
                places=[_path(branch.place + suffix) for branch in alike],
                epoch=epoch + 1,
                epochs=phase.epochs,
                losses=losses,
                rate=phase.schedule.rate(epoch * per_epoch, steps),
                seconds=seconds,
                counted=self.counted,
                **({"remaining": self._remaining(trainer.states())} if gated else {}),
            )
            self._note_diverged(alike, losses, suffix, epoch)
            if all(self._is_lost(branch) for branch in alike):
                return
            if epoch + 1 < phase.epochs and self._checkpoint_due():
                _take_out(alike, trainer)
                finished(epoch + 1)
        _take_out(alike, trainer)

    def _remaining(self, states: Sequence[State | None]) -> list[dict[str, float]] | None:
        """Return what is left of each network, as shares of the one built; None if its structure closes no nodes."""
        shares = []
        for state in states:
            assert state is not None
            left = self.task.structure.remaining(state.params, state.buffers)
            if left is None:
                return None
            shares.append(self.flops.remaining(state, left))
        return shares

    def _checkpoint_due(self) -> bool:
        """Return whether it is time: after the seconds asked for, and long enough to repay the last one."""
        wait = max(self.seconds, self._save_seconds / _SHARE) if self.seconds else 0.0
        return self.checkpoints is not None and time.monotonic() - self._saved_at >= wait

    def _note_diverged(self, alike: Sequence[Branch], losses: Sequence[float], suffix: Place, epoch: int) -> None:
        for branch, loss in zip(alike, losses):
            if not math.isfinite(loss) and not self._is_lost(branch):
                place = _path(branch.place + suffix)
                self._lose(branch, suffix, f"the loss became {loss} at {place} in epoch {epoch + 1}")

    def _lose(self, branch: Branch, suffix: Place, message: str) -> None:
        self.failed[repr(branch.place)] = message
        self.log.event(kind="diverged", place=_path(branch.place + suffix), message=message)

    def _is_lost(self, branch: Branch) -> bool:
        """Return whether a branch diverged, or the parent it comes from."""
        return any(repr(branch.place[:length]) in self.failed for length in range(len(branch.place) + 1))

    def _is_sound(self, branch: Branch, state: State, suffix: Place) -> bool:
        """Return whether a state is finite, so that something can be made of it; a branch whose state is not is lost."""
        found = unfinite(state, self.task.blueprint)
        if found:
            self._lose(branch, suffix, f"the weights diverged: {found} at {_path(branch.place + suffix)}")
        return not found

    def _apply_every(
        self,
        phase: Train,
        unit: str,
        finished: int,
        total: int,
        trainer: Trainer,
        alike: list[Branch],
        keys: Sequence[int],
        suffix: Place,
    ) -> None:
        for number, rule in enumerate(phase.every):
            if rule.unit == unit and rule.due(finished, total):
                self._apply_rule(rule, trainer, alike, keys, (*suffix, f"every{number}", finished))

    def _apply_rule(
        self, rule: Every, trainer: Trainer, alike: list[Branch], keys: Sequence[int], place: Place
    ) -> None:
        changed: list[State] = []
        for branch, state in zip(alike, trainer.states()):
            if not self._is_lost(branch) and self._is_sound(branch, state, place):
                state = applied(rule.phase, state, self._context(branch, place))
            branch.state = state  # operations are counted by its mask
            changed.append(state)
        total, count = trainer.total, trainer.count
        trainer.mount(changed, keys)
        trainer.total, trainer.count = total, count


def _take_out(alike: Sequence[Branch], trainer: Trainer) -> None:
    for branch, state in zip(alike, trainer.states()):
        branch.state = state


def _density(state: State) -> dict[str, float]:
    """Return the share of maskable weights that are at work, if the state has a mask."""
    mask = state.slots.get("mask", {})
    total = sum(m.numel() for m in mask.values())
    return {"density": sum(int(m.sum()) for m in mask.values()) / total} if total else {}


def _path(place: Place) -> str:
    """Write a place for people.

    >>> _path((0, "f3", 1))
    '0/f3/1'
    """
    return "/".join(str(p) for p in place) or "start"
