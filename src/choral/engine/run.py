"""Run a plan: walk its tree in a fixed order, phase by phase, with checkpoints on the way.

The walk is the same for every executor. A fork's branches are walked in stacks: stacks of one are the sequential
executor, larger ones are trained together. Each leaf phase has a position in the walk, so a checkpoint needs only the
position and the open states.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from choral.base import rng
from choral.base.errors import DivergedError, RunError, warn
from choral.engine.checkpoint import Branch, Checkpoints, Snapshot, Stack
from choral.engine.context import applied, begun
from choral.engine.epochs import Epochs, Setting, alike
from choral.engine.events import Ledger, Log
from choral.engine.flops import Flops
from choral.engine.job import Job
from choral.engine.store import MemberStore
from choral.plan.phases import Collect, Fork, Operator, Phase, Starter, Train
from choral.plan.state import State
from choral.plan.variants import Variant
from choral.plan.walk import Place, Visitor, collected, forks_to, trainings, walk

WIDEST = 512  # branches stacked at once, at most
_SHARE = 0.02  # of the time that checkpoints take, at most


@dataclass(eq=False, kw_only=True)
class Run:
    """One execution of a job."""

    job: Job
    width: int  # branches of a fork that are walked together, at most
    apart: bool = False  # whether branches that stop together take turns instead of being stacked
    store: MemberStore  # where members go
    checkpoints: Checkpoints | None  # where states go
    log: Log  # where events go
    seconds: float  # least time between two checkpoints, longer where one takes more than 2 % of it; 0 takes all there could be

    def __post_init__(self) -> None:
        job = self.job
        self.task, self.plan, self.seed = job.task, job.recipe.plan, job.seed
        self.flops, self.ledger = Flops(job.task, job.source), Ledger(self.log, job.task.blueprint)
        self.setting = Setting(job.task, job.source, job.seed, self.flops, self.ledger, job.validation, job.rules)
        self.position = 0
        self.open: list[Stack] = []  # the stacks above the one walked, parents of its branches
        self.snapshot: Snapshot | None = None
        self.skip_to: float = 0
        self.wanted: dict[int, Place] | None = None  # members to train again, with their places; None trains all
        self.collected_at: dict[int, int] = {}  # position of each member's Collect in the walk
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self.setup = 0.0  # seconds of this call before training, where time is limited
        self.cut: list[int] = []  # members that were collected after the time was up
        self._is_winding_up = False  # the checkpoint from which a call with more time goes on is there, and stays
        self.member_of = collected(self.plan)

    def begin(self) -> None:
        """Go to the last whole checkpoint, if there is one; the log forgets what came after it."""
        latest = None if self.checkpoints is None else self.checkpoints.latest()
        self.snapshot = self.task.parts.agreed(latest)
        self.log.rewind(0 if self.snapshot is None else self.snapshot.log_bytes)
        for message in [] if self.checkpoints is None else self.checkpoints.messages:
            self.log.event(kind="warning", message=message)
        if self.snapshot is not None and self.snapshot.whole is not None:
            self.store.keep_only(self.snapshot.whole)  # the others were cut by the clock
        if self.snapshot is not None:
            self.skip_to, self.ledger.failed = self.snapshot.position, dict(self.snapshot.failed)
            self.ledger.stopped = list(self.snapshot.stopped)
            self.ledger.counted = counted = dict(self.snapshot.counted)
            self.log.event(kind="resumed", position=self.skip_to, epoch=self.snapshot.epoch, counted=dict(counted))

    def execute(self, only: Collection[int] | None = None) -> None:
        """Run the plan from where it begins to its end, or train some members only; raises DivergedError if a branch was lost."""
        if only is not None:
            self.wanted = {number: place for place, number in self.member_of.items() if number in only}
        if self.setup:
            self.ledger.count(setup_seconds=self.setup)
        self.walk()
        self.refuse_lost()

    def refuse_lost(self) -> None:
        """Raise DivergedError if a branch was lost; members are counted from 0 as in `Ensemble.member`."""
        if not self.ledger.failed:
            return
        count, folder = len(self.member_of), self.store.folder
        lost = self.store.missing(count)
        named = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
        kept = count - len(lost)
        load = f": choral.load('{folder.parent}', partial=True) gives them" if kept and folder is not None else ""
        where = "" if folder is None else " into another folder (this one stays with its plan)"
        raise DivergedError(
            f"{'member' if len(lost) == 1 else 'members'} {named} of {count} diverged: {'; '.join(self.ledger.failed.values())}. "
            f"{kept} of {count} members were kept{load}; give a lower lr, or an optimizer that clips gradients (clip=1.0), and run again{where}."
        )

    def walk(self) -> None:
        """Walk the whole plan."""
        walk(self.plan, Stack([Branch(Place())]), self._visitor)

    def follow(self, steps: Sequence[tuple[Phase, Place]], stack: Stack) -> None:
        """Take one stack through some phases of the plan, no fork among them, each with its place from where the branches begin."""
        for phase, suffix in steps:
            walk(phase, stack, self._visitor, suffix)
        if self.snapshot is not None:  # a checkpoint behind the last phase
            self._restore(stack)

    @property
    def _visitor(self) -> Visitor[Stack]:
        return Visitor(
            start=self._start, change=self._change, train=self._train, collect=self._collect, branches=self._branches
        )

    def twin(self, log: Log) -> "Run":
        """Return another run of the same plan into the same store, which takes no checkpoints and all the time it needs."""
        job = replace(self.job, rules=replace(self.job.rules, time_limit=None))
        return replace(self, job=job, checkpoints=None, log=log)

    def _branches(self, node: Fork, suffix: Place, stack: Stack) -> Iterator[tuple[Place, Stack]]:
        """Yield the branches of a fork in stacks; places are counted from where their branches begin."""
        all_branches = [(parent, i) for parent in stack.branches for i in range(node.branches)]
        width = WIDEST if self._together else self.width
        self.open.append(stack)
        for start in range(0, len(all_branches), width):
            some = all_branches[start : start + width]
            branches = [self.branch((parent.place + suffix).then("fork", i), parent) for parent, i in some]
            yield Place(), Stack(branches, stack.version, parents=[parent for parent, _ in some])
        self.open.pop()

    def branch(self, place: Place, origin: Branch) -> Branch:
        """Return a branch that begins at a place from the state of another; the forks that the place is in decide its settings."""
        variant = Variant()
        for node, begun_at in forks_to(self.plan, place):

            def generator(name: str, words: tuple[int | str, ...] = begun_at.words) -> torch.Generator:
                return rng.generator(self.seed, *words, "variant", name)

            variant = node.variant(begun_at.branch, generator).within(variant)
        return Branch(place, origin.state, origin.is_new, variant=variant)

    @property
    def _together(self) -> bool:
        """Whether branches must be trained side by side, stacked or in turns: they stop together, or are chosen among."""
        stop = self.setting.rules.stop
        return (stop is not None and stop.by == "ensemble") or self._selects

    @property
    def _selects(self) -> bool:
        """Whether networks are chosen while they train."""
        return self.setting.validation is not None and any(phase.select for phase in trainings(self.plan))

    def _begin(self, stack: Stack) -> tuple[list[Branch], int] | None:
        """Come to the next phase: return the branches to act on and the epochs done of it, or None to pass over it."""
        self.position += 1
        if self.position - 1 < self.skip_to or not self._is_wanted(stack):
            return None
        done = 0
        if self.snapshot is not None:
            self._restore(stack)
            here = (
                self.position - 1 == self.skip_to
            )  # else the branch that was trained then is there, and was passed over
            done, self.snapshot = self.snapshot.epoch if here else 0, None
        self._keep_late(stack, self.position - 1, done)
        return [branch for branch in stack.branches if not self.ledger.is_lost(branch)], done

    def _sound(self, stack: Stack, suffix: Place) -> list[Branch]:
        """Come to the next phase, of no epochs: return the branches with finite states."""
        found = self._begin(stack)
        branches = [] if found is None else found[0]
        return [b for b in branches if b.state is None or self.ledger.is_sound(b, b.state, suffix)]

    def _end(self, stack: Stack) -> Stack:
        """Leave a phase."""
        if self.position > self.skip_to and self._is_wanted(stack):
            stack.version = (self.position, 0)
            self._checkpoint(stack, self.position, 0)
        return stack

    def _start(self, phase: Starter, suffix: Place, stack: Stack) -> Stack:
        for branch in self._sound(stack, suffix):
            context = self.setting.context(branch.place + suffix, branch.variant)
            branch.state, branch.is_new = begun(phase, context), False
            self._tell(phase, branch.place + suffix, branch.state)
        return self._end(stack)

    def _change(self, phase: Operator, suffix: Place, stack: Stack) -> Stack:
        for branch in self._sound(stack, suffix):
            context = self.setting.context(branch.place + suffix, branch.variant, branch.state)
            if self.setting.is_late and not set(phase.needs) <= branch.reached.slots.keys():
                raise RunError(
                    f"the time was up before training had given what {type(phase).__name__} makes members of; give a larger time_limit."
                )
            branch.state = applied(phase, branch.reached, context)
            self._tell(phase, branch.place + suffix, branch.state)
        return self._end(stack)

    def _tell(self, phase: Phase, place: Place, state: State) -> None:
        self.log.event(kind="operator", name=type(phase).__name__, place=str(place), **_density(state))

    def _collect(self, phase: Collect, suffix: Place, stack: Stack) -> Stack:
        self.collected_at |= {self.member_of[branch.place + suffix]: self.position for branch in stack.branches}
        for branch in self._sound(stack, suffix):
            number = self.member_of[branch.place + suffix]
            if self.setting.is_late and not branch.is_new:
                continue  # nothing came of it before the time was up
            branch.is_new = False
            if self.wanted is None or self.wanted.pop(number, None) is not None:
                self.store.put(number, branch.reached)
                self._doubt(branch.reached)
                self.cut += [number] if self._is_winding_up else []
                self.log.event(kind="collected", place=str(branch.place + suffix))
        return self._end(stack)

    def _doubt(self, state: State) -> None:
        """Warn of a member of which no node is left that could pass anything on."""
        left = self.task.structure.remaining(state.params, state.buffers)
        if left and not any(left.values()):
            message = (
                f"a member has closed every node of {', '.join(map(repr, list(left)[:3]))}, so that its predictions hardly depend on the inputs: there are "
                "too few points for what each node costs; start with wider deviations, let the penalty grow, or weigh it less (rho=-2.0, anneal=0.5, "
                "kl_weight=0.1), or use another method."
            )
            self.log.event(kind="warning", message=message)
            warn(message)

    def _train(self, phase: Train, suffix: Place, stack: Stack) -> Stack:
        """Train the branches; those of equal shapes go together, and their epochs are counted one after the other."""
        found = self._begin(stack)
        if found is None:
            return stack
        position = self.position - 1
        branches, begin = found
        stacks = alike(phase, branches)
        if phase.select is not None and self._selects and len(stacks) > 1:
            raise RunError(
                f"{type(phase).__name__} chooses among its {len(branches)} branches while they train, but they cannot be stacked (other shapes, or an "
                "optimizer that looks across members); give them equal shapes and an optimizer of choral.plan."
            )
        for number, some in enumerate(stacks):
            before = number * phase.epochs
            if begin - before >= phase.epochs and phase.epochs:
                continue

            def finished(epoch: int, before: int = before) -> None:
                stack.version = (position, before + epoch)
                self._checkpoint(stack, *stack.version)

            def late(epoch: int, before: int = before) -> None:
                self._keep_late(stack, position, before + epoch)

            if number:
                late(max(begin - before, 0))
            epochs = Epochs(self.setting, phase, some, suffix, apart=self._together and self.apart)
            epochs.run(max(begin - before, 0), self._checkpoint_due, finished, late)
        return self._end(stack)

    def _is_wanted(self, stack: Stack) -> bool:
        """Return whether a stack must be walked: always, but when mending only if a lost member comes from it."""
        if self.wanted is None:
            return True
        return any(branch.place.holds(place) for place in self.wanted.values() for branch in stack.branches)

    def _restore(self, stack: Stack) -> None:
        """Give every open stack the states the checkpoint holds for it; branches not yet begun take their parent's."""
        assert self.snapshot is not None
        for one in [*self.open, stack]:
            for i, branch in enumerate(one.branches):
                saved = self.snapshot.open.get(branch.place)
                if saved is not None and saved.state is not None:
                    branch.state, branch.is_new, branch.watch = saved.state, saved.is_new, saved.watch
                elif one.parents:
                    branch.state, branch.is_new = one.parents[i].state, one.parents[i].is_new
            one.version = (self.snapshot.position, self.snapshot.epoch)

    def _keep_late(self, stack: Stack, position: int, epoch: int) -> None:
        """Take the last checkpoint once the time is up: from there a call with more time goes on."""
        if self.setting.is_late and not self._is_winding_up:
            stack.version = max(stack.version, (position, epoch))
            self._checkpoint(stack, position, epoch, due=True)
            self._is_winding_up = True

    def _checkpoint(self, stack: Stack, position: int, epoch: int, *, due: bool = False) -> None:
        if self.checkpoints is None or self._is_winding_up or not (due or self._checkpoint_due()):
            return
        started = time.monotonic()
        held = self.ledger
        missing = self.store.missing(len(self.member_of)) if due else []
        whole = [n for n in self.member_of.values() if n not in missing] if due else None
        now = Snapshot(position, epoch, held.failed, held.counted, held.stopped, self.log.sync(), whole)
        self.checkpoints.save([*self.open, stack], now)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    def _checkpoint_due(self) -> bool:
        """Return whether it is time: after the seconds asked for, and long enough to repay the last one."""
        wait = max(self.seconds, self._save_seconds / _SHARE) if self.seconds else 0.0
        return self.checkpoints is not None and time.monotonic() - self._saved_at >= wait


def _density(state: State) -> dict[str, float]:
    """Return the share of maskable weights that are at work, if the state has a mask."""
    mask = state.mask
    total = sum(m.numel() for m in mask.values())
    return {"density": sum(int(m.sum()) for m in mask.values()) / total} if total else {}
