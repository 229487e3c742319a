"""Run a plan: walk its tree in a fixed order, phase by phase, with checkpoints on the way.

The walk is the same for every executor. A fork's branches are walked in groups: groups of one are the sequential
executor, larger groups are trained stacked. Each leaf phase has a position in the walk, so a checkpoint needs only the
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
from choral.engine.checkpoint import Checkpoints, Group, Lane, Place, Snapshot
from choral.engine.context import LaneContext, applied
from choral.engine.divergence import unfinite
from choral.engine.flops import Flops
from choral.engine.points import order_of, picked, subset_of, target_shift
from choral.engine.store import Log, MemberStore
from choral.engine.trainers import PlainTrainer, StackedTrainer, Task, Trainer
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
        self.frames: list[Group] = []
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
        self._walk(self.plan, Group([Lane(())]), ())

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

    def _walk(self, node: Phase, group: Group, suffix: Place) -> None:
        if isinstance(node, Seq):
            for i, child in enumerate(node.phases):
                self._walk(child, group, (*suffix, i))
        elif isinstance(node, Repeat):
            for i in range(node.times):
                self._walk(node.body, group, (*suffix, f"r{i}"))
        elif isinstance(node, Fork):
            branches = [(lane, i) for lane in group.lanes for i in range(node.branches)]
            width = max(1, self.width(node, len(branches)))
            self.frames.append(group)
            for start in range(0, len(branches), width):
                lanes = [
                    Lane((*lane.place, *suffix, f"f{i}"), lane.state) for lane, i in branches[start : start + width]
                ]
                self._walk(
                    node.body, Group(lanes, group.version, parents=[p for p, _ in branches[start : start + width]]), ()
                )
            self.frames.pop()
        else:
            self._leaf(node, group, suffix)

    def _leaf(self, node: Phase, group: Group, suffix: Place) -> None:
        position, self.position = self.position, self.position + 1
        if isinstance(node, Collect):
            self.collected_at |= {self.member_of[lane.place + suffix]: position for lane in group.lanes}
        if position < self.skip_to or not self._is_wanted(group):
            return
        begin = 0
        if self.snapshot is not None:
            self._restore(group)
            begin, self.snapshot = self.snapshot.epoch, None
        lanes = [lane for lane in group.lanes if not self._is_lost(lane)]
        if not isinstance(node, Train):
            lanes = [lane for lane in lanes if lane.state is None or self._is_sound(lane, lane.state, suffix)]
        if isinstance(node, Train):
            self._train(node, group, lanes, suffix, position, begin)
        elif isinstance(node, Collect):
            for lane in lanes:
                self._collect(self.member_of[lane.place + suffix], lane, suffix)
        else:
            assert isinstance(node, Operator)
            for lane in lanes:
                lane.state = applied(node, lane.state, self._context(lane, suffix))
                place = _path(lane.place + suffix)
                self.log.event(kind="operator", name=type(node).__name__, place=place, **_density(lane.state))
        group.version = (position + 1, 0)
        self._checkpoint(group, position + 1, 0)

    def _collect(self, number: int, lane: Lane, suffix: Place) -> None:
        assert lane.state is not None
        if self.wanted is None or self.wanted.pop(number, None) is not None:
            self.store.put(number, lane.state)
            self.log.event(kind="collected", place=_path(lane.place + suffix))

    def _is_wanted(self, group: Group) -> bool:
        """Return whether a group must be walked: always, but when mending only if a lost member comes from it."""
        if self.wanted is None:
            return True
        return any(place[: len(lane.place)] == lane.place for place in self.wanted.values() for lane in group.lanes)

    def _restore(self, group: Group) -> None:
        """Give every open frame the state the checkpoint holds for it; lanes not yet begun take their parent's."""
        assert self.snapshot is not None
        for frame in [*self.frames, group]:
            for i, lane in enumerate(frame.lanes):
                saved = self.snapshot.frames.get(repr(lane.place))
                if saved is not None:
                    lane.state = saved
                elif frame.parents:
                    lane.state = frame.parents[i].state
            frame.version = (self.snapshot.position, self.snapshot.epoch)

    def _context(self, lane: Lane, suffix: Place) -> LaneContext:
        return LaneContext(self.task, self.source, self.seed, lane.place, suffix)

    def _checkpoint(self, group: Group, position: int, epoch: int) -> None:
        if self.checkpoints is None or not self._checkpoint_due():
            return
        started = time.monotonic()
        self.checkpoints.save(
            [*self.frames, group],
            position=position,
            epoch=epoch,
            failed=self.failed,
            counted=self.counted,
            log_bytes=self.log.sync(),
        )
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    def _train(self, phase: Train, group: Group, lanes: list[Lane], suffix: Place, position: int, begin: int) -> None:
        """Train the lanes; those of equal shapes go together. `begin` counts epochs over all these teams."""
        teams: dict[Any, list[Lane]] = {}
        for lane in lanes:
            assert lane.state is not None
            own = [tree.signature(lane.state.slots.get(slot, {})) for slot in ("subset", "target_shift")]
            signature = (tree.signature(lane.state.params), repr(lane.state.form), *own)
            teams.setdefault(signature, []).append(lane)
        for number, team in enumerate(teams.values()):
            first = begin - number * phase.epochs
            if first >= phase.epochs and phase.epochs:
                continue

            def finished(epoch: int, number: int = number) -> None:
                done = number * phase.epochs + epoch
                group.version = (position, done)
                self._checkpoint(group, position, done)

            self._train_team(phase, team, suffix, max(first, 0), finished)

    def _train_team(
        self, phase: Train, team: list[Lane], suffix: Place, begin: int, finished: Callable[[int], None]
    ) -> None:
        states = [lane.state for lane in team]
        if begin == 0:
            for lane in team:
                assert lane.state is not None
                if phase.memory == "fresh":
                    lane.state = lane.state.having(memory={})
        if phase.epochs == 0:
            return
        keys = [rng.key(self.seed, *lane.place, *suffix, "train") for lane in team]
        subsets = [subset_of(lane.state) for lane in team]
        points = [self.source.points if s is None else len(s) for s in subsets]
        kind: type[Trainer] = PlainTrainer if len(team) == 1 else StackedTrainer
        trainer = kind(self.task, phase, points)
        per_epoch = batches_in(points[0], phase.batch_size)
        trainer.steps = phase.epochs * per_epoch
        trainer.mount([lane.state for lane in team if lane.state is not None], keys)
        shift = target_shift(team)
        gated = self._remaining(states) is not None
        for epoch in range(begin, phase.epochs):
            started = time.perf_counter()
            trainer.catch = True
            orders = [order_of(k, epoch, n, s) for k, n, s in zip(keys, points, subsets)]
            order = orders[0] if len(team) == 1 else torch.stack(orders)
            steps = phase.epochs * per_epoch
            for i, (x, y) in enumerate(self.source.epoch(order, phase.batch_size)):
                step = epoch * per_epoch + i
                if shift is not None:
                    y = y + picked(shift, order, i * phase.batch_size, y)
                progress = step / steps if phase.annealing else 1.0
                trainer.step(x, y, step, progress, phase.schedule.rate(step, steps))
                self._apply_every(phase, "steps", step + 1, steps, trainer, team, keys, suffix)
            self._apply_every(phase, "epochs", epoch + 1, phase.epochs, trainer, team, keys, suffix)
            seconds = time.perf_counter() - started
            losses = trainer.losses()
            seen = min(per_epoch * phase.batch_size, points[0])
            for name, amount in [
                ("epochs", len(team)),
                ("steps", per_epoch * len(team)),
                ("points", seen * len(team)),
                ("train_flops", sum(self.flops.train(lane.state) for lane in team) * seen),
                ("train_seconds", seconds),
            ]:
                self.counted[name] += amount
            self.log.event(
                kind="epoch",
                places=[_path(lane.place + suffix) for lane in team],
                epoch=epoch + 1,
                epochs=phase.epochs,
                losses=losses,
                rate=phase.schedule.rate(epoch * per_epoch, steps),
                seconds=seconds,
                counted=self.counted,
                **({"remaining": self._remaining(trainer.states())} if gated else {}),
            )
            self._note_diverged(team, losses, suffix, epoch)
            if all(self._is_lost(lane) for lane in team):
                return
            if epoch + 1 < phase.epochs and self._checkpoint_due():
                _take_out(team, trainer)
                finished(epoch + 1)
        _take_out(team, trainer)

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

    def _note_diverged(self, team: Sequence[Lane], losses: Sequence[float], suffix: Place, epoch: int) -> None:
        for lane, loss in zip(team, losses):
            if not math.isfinite(loss) and not self._is_lost(lane):
                place = _path(lane.place + suffix)
                self._lose(lane, suffix, f"the loss became {loss} at {place} in epoch {epoch + 1}")

    def _lose(self, lane: Lane, suffix: Place, message: str) -> None:
        self.failed[repr(lane.place)] = message
        self.log.event(kind="diverged", place=_path(lane.place + suffix), message=message)

    def _is_lost(self, lane: Lane) -> bool:
        """Return whether a lane diverged, or the parent it comes from."""
        return any(repr(lane.place[:length]) in self.failed for length in range(len(lane.place) + 1))

    def _is_sound(self, lane: Lane, state: State, suffix: Place) -> bool:
        """Return whether a state is finite, so that something can be made of it; a lane whose state is not is lost."""
        found = unfinite(state, self.task.blueprint)
        if found:
            self._lose(lane, suffix, f"the weights diverged: {found} at {_path(lane.place + suffix)}")
        return not found

    def _apply_every(
        self,
        phase: Train,
        unit: str,
        finished: int,
        total: int,
        trainer: Trainer,
        team: list[Lane],
        keys: Sequence[int],
        suffix: Place,
    ) -> None:
        for number, rule in enumerate(phase.every):
            if rule.unit == unit and rule.due(finished, total):
                self._apply_rule(rule, trainer, team, keys, (*suffix, f"every{number}", finished))

    def _apply_rule(self, rule: Every, trainer: Trainer, team: list[Lane], keys: Sequence[int], place: Place) -> None:
        changed: list[State] = []
        for lane, state in zip(team, trainer.states()):
            if not self._is_lost(lane) and self._is_sound(lane, state, place):
                state = applied(rule.phase, state, self._context(lane, place))
            lane.state = state  # operations are counted by its mask
            changed.append(state)
        total, count = trainer.total, trainer.count
        trainer.mount(changed, keys)
        trainer.total, trainer.count = total, count


def _take_out(team: Sequence[Lane], trainer: Trainer) -> None:
    for lane, state in zip(team, trainer.states()):
        lane.state = state


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
