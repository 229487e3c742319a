"""Run a plan: train its leaves one after the other, phase by phase, with checkpoints, and return its cost.

Stacks of one branch are the sequential executor, larger ones are trained together. Each phase of a leaf has a position in the run, so
a checkpoint needs only the position and the states that later phases continue from.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from choral.base import rng
from choral.base.errors import DivergedError, RunError, warn
from choral.engine.checkpoint import Branch, Checkpoints, MemberStore, Snapshot, Stack
from choral.engine.epochs import BranchContext, Epochs, alike, own_draws
from choral.engine.events import Callback, Ledger, Log, recalled
from choral.engine.files import write_json
from choral.engine.flops import Flops
from choral.engine.folder import MADE_AGAIN, environment, read_costs, run_of
from choral.engine.job import Job
from choral.plan.phases import Collect, Fork, Operator, Phase, Starter, Train, Variant
from choral.plan.state import State
from choral.plan.walk import Place, Visitor, collected, forks_to, walk

_SHARE = 0.02  # of the time that checkpoints take, at most


@dataclass
class Leaf:
    """A unit of training; its path is the place of its first branch, `+3` for three more stacked with it, `@1` after the first fork in it."""

    path: str
    branches: tuple[Place, ...]  # where they begin
    origins: tuple[Place, ...]  # the branches of `after` that each of them continues from
    after: str | None  # path of the leaf it continues from
    steps: list[tuple[Phase, Place]] = field(default_factory=list)  # with places from where the branches begin
    members: list[int] = field(default_factory=list)  # numbers of those it collects
    is_parent: bool = False  # whether other leaves continue from it

    @property
    def folder(self) -> str:
        """Its folder, relative to the run, if other processes may train it."""
        return f"leaves/{self.path.replace('/', '.')}"

    @property
    def epochs(self) -> int:
        """Epochs of all its networks."""
        return len(self.branches) * sum(phase.epochs for phase, _ in self.steps if isinstance(phase, Train))


@dataclass
class _Stack:
    """A stack during the plan; `open` is its leaf, None right after a fork; `latest` is the path of the one before."""

    branches: tuple[Place, ...]
    origins: tuple[Place, ...]
    latest: str | None = None
    open: Leaf | None = None
    parts: int = 0

    @property
    def name(self) -> str:
        more = f"+{len(self.branches) - 1}" if len(self.branches) > 1 else ""
        return f"{self.branches[0]}{more}" + (f"@{self.parts}" if self.parts else "")


def cut(plan: Phase, width: int) -> list[Leaf]:
    """Return the leaves of a plan in the order in which it runs; at most `width` branches of a fork are trained together.

    >>> from choral.recipes import prune_and_tune
    >>> [(leaf.path, leaf.after) for leaf in cut(prune_and_tune(epochs=9, members=2).plan, 1)]
    [('start', None), ('2/f0', 'start'), ('2/f1', 'start')]
    """
    leaves: list[Leaf] = []
    numbers = collected(plan)

    def act(phase: Phase, suffix: Place, stack: _Stack) -> _Stack:
        if stack.open is None:
            stack.open = Leaf(stack.name, stack.branches, stack.origins, stack.latest)
            stack.parts += 1
            leaves.append(stack.open)
        stack.open.steps.append((phase, suffix))
        if isinstance(phase, Collect):
            stack.open.members += [numbers[place + suffix] for place in stack.branches]
        return stack

    def branches(node: Fork, suffix: Place, parents: _Stack) -> Iterator[tuple[Place, _Stack]]:
        if parents.open is not None:
            parents.open.is_parent = True
            parents.latest, parents.open = parents.open.path, None
            parents.origins = parents.branches  # from here on, branches and what is behind the fork begin from them
        whole = [(place, i) for place in parents.branches for i in range(node.branches)]
        origin = dict(zip(parents.branches, parents.origins))
        for start in range(0, len(whole), width):
            some = whole[start : start + width]
            begun = tuple((place + suffix).then("fork", i) for place, i in some)
            yield Place(), _Stack(begun, tuple(origin[place] for place, _ in some), parents.latest)

    root = _Stack((Place(),), (Place(),))
    walk(plan, root, Visitor(start=act, change=act, train=act, collect=act, branches=branches))
    return leaves


@dataclass(eq=False, kw_only=True)
class Run:
    """One execution of leaves of a job: all of them, or one whose origin is `open`."""

    job: Job
    leaves: Sequence[Leaf]
    apart: bool = False  # whether branches that stop together take turns instead of being stacked
    store: MemberStore  # where members go
    checkpoints: Checkpoints | None  # where states go
    log: Log  # where events go
    open: dict[str, Stack] = field(default_factory=dict)  # leaves that others continue from, by their paths

    def __post_init__(self) -> None:
        job = self.job
        self.task, self.source, self.plan, self.seed = job.task, job.source, job.recipe.plan, job.seed
        self.validation, self.rules = job.validation, job.rules
        self.flops, self.ledger = Flops(job.task, job.source), Ledger(self.log, job.task.blueprint)
        self.position = 0
        self.snapshot: Snapshot | None = None
        self.skip_to = 0
        self.wanted: dict[int, Place] | None = None  # members to train again, with their places; None trains all
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._is_winding_up = False  # the checkpoint from which a call with more time continues is there, and stays
        self.member_of = collected(self.plan)
        self._visitor = Visitor(start=self._apply, change=self._apply, train=self._train, collect=self._collect)

    def context(self, place: Place, variant: Variant, state: State | None = None) -> BranchContext:
        """Return the context of an operator at this place, without rows held out of the state."""
        held = None if state is None else state.held
        return BranchContext(self.task, self.source, self.seed, place, variant, held)

    def remaining(self, states: Sequence[State]) -> list[dict[str, float]] | None:
        """Return the shares of each network still in use; None if its structure closes no nodes."""
        left = [self.task.structure.remaining(state.params, state.buffers) for state in states]
        shares = [self.flops.remaining(state, share) for state, share in zip(states, left) if share is not None]
        return shares if len(shares) == len(left) else None

    @property
    def is_late(self) -> bool:
        """Whether the time limit, of all parts of a resumed run, is reached; one epoch is always trained."""
        counted, limit = self.ledger.counted, self.job.compute.time_limit
        if limit is None or not counted["epochs"]:
            return False
        return sum(counted.get(f"{what}_seconds", 0.0) for what in ("setup", "train", "validation")) >= limit

    def begin(self) -> None:
        """Go to the last undamaged checkpoint, if there is one, and remove later events from the log."""
        latest = None if self.checkpoints is None else self.checkpoints.latest()
        self.snapshot = now = self.task.parts.agreed(latest)
        self.log.rewind(0 if now is None else now.log_bytes)
        for message in [] if self.checkpoints is None else self.checkpoints.messages:
            self.log.event(kind="warning", message=message)
        if now is None:
            return
        if now.whole is not None:
            self.store.keep_only(now.whole)  # the others were cut by the clock
        self.skip_to, self.ledger.failed = now.position, dict(now.failed)
        self.ledger.stopped, self.ledger.counted = list(now.stopped), dict(now.counted)
        self.log.event(kind="resumed", position=self.skip_to, epoch=now.epoch, counted=dict(now.counted))

    def execute(self, only: Collection[int] | None = None) -> None:
        """Train the leaves from the current position, or some members only; DivergedError if a branch was lost."""
        if only is not None:
            self.wanted = {number: place for place, number in self.member_of.items() if number in only}
        self.train()
        if self.ledger.failed:
            refuse_lost(self.ledger.failed, self.store, len(self.member_of))

    def mend(self, lost: Mapping[int, str]) -> None:
        """Train lost members again, bit-identical, that were collected before the current checkpoint; counts and log do not change."""
        until, gone = (math.inf, []) if self.snapshot is None else (self.snapshot.position, list(self.snapshot.failed))
        steps = [(leaf, phase, suffix) for leaf in self.leaves for phase, suffix in leaf.steps]
        places = {
            self.member_of[place + suffix]: place + suffix
            for position, (leaf, phase, suffix) in enumerate(steps)
            if isinstance(phase, Collect) and position < until
            for place in leaf.branches
        }
        wanted = {n: p for n, p in places.items() if n in lost and not any(place.holds(p) for place in gone)}
        for number in wanted:
            message = f"member {number} is lost ({lost[number]}); training it again from the start of its branch"
            self.log.event(kind="warning", message=message)
        if wanted:
            job = replace(self.job, compute=replace(self.job.compute, time_limit=None))
            again = replace(self, job=job, checkpoints=None, log=Log())
            again.wanted = wanted
            again.train()

    def train(self) -> None:
        """Train the leaves in turn; a leaf that others continue from is kept until the last of them begins."""
        last = {leaf.after: i for i, leaf in enumerate(self.leaves)}
        for i, leaf in enumerate(self.leaves):
            held = self.open[leaf.after].branches if leaf.after is not None else ()
            before = {branch.place: branch for branch in held}
            begin = [before.get(origin, Branch(origin)) for origin in leaf.origins]
            branches = [self._branch(place, origin) for place, origin in zip(leaf.branches, begin)]
            stack = Stack(branches, leaf.origins)
            self.open = {path: one for path, one in self.open.items() if last.get(path, -1) > i}
            for phase, suffix in leaf.steps:
                walk(phase, stack, self._visitor, suffix)
            self.open[leaf.path] = stack
        if self.snapshot is not None:  # a checkpoint behind the last phase
            self._restore(stack)

    def _branch(self, place: Place, origin: Branch) -> Branch:
        """Return a branch that begins at a place from the state of another; the forks that the place is in decide its settings."""
        variant = Variant()
        for node, begun_at in forks_to(self.plan, place):
            generator = partial(rng.generator, self.seed, *begun_at.words, "variant")
            variant = node.variant(begun_at.branch, generator).within(variant)
        return Branch(place, origin.state, origin.is_new, variant=variant)

    def _begin(self, stack: Stack) -> tuple[list[Branch], int]:
        """Return the branches of the next phase, none to skip it, and its epochs done."""
        self.position += 1
        if self.position - 1 < self.skip_to or not self._is_wanted(stack):
            return [], 0
        done = 0
        if self.snapshot is not None:
            self._restore(stack)
            # else the branch that was trained then is there, and was passed over
            done = self.snapshot.epoch if self.position - 1 == self.skip_to else 0
            self.snapshot = None
        if self.is_late:
            self._save(stack, self.position - 1, done)
        return [branch for branch in stack.branches if not self.ledger.is_lost(branch)], done

    def _sound(self, stack: Stack, suffix: Place) -> list[Branch]:
        """Come to the next phase, of no epochs: return the branches with finite states."""
        branches, _ = self._begin(stack)
        return [b for b in branches if b.state is None or self.ledger.is_sound(b, b.state, suffix)]

    def _end(self, stack: Stack) -> Stack:
        if self.position > self.skip_to and self._is_wanted(stack):
            self._save(stack, self.position, 0)
        return stack

    def _apply(self, phase: Starter | Operator, suffix: Place, stack: Stack) -> Stack:
        for branch in self._sound(stack, suffix):
            place, name = branch.place + suffix, type(phase).__name__
            missing = () if isinstance(phase, Starter) else set(phase.needs) - branch.reached.slots.keys()
            if missing and self.is_late:
                said = f"the time limit was reached before {name} had what it needs"
                raise RunError(f"{said}; give a larger time_limit.")
            with own_draws(phase):
                context = self.context(place, branch.variant, branch.state)
                state = phase.begin(context) if isinstance(phase, Starter) else phase.apply(branch.reached, context)
            branch.state, branch.is_new = state, branch.is_new and phase.visit != "start"
            mask = state.mask.values()
            density = {"density": sum(int(m.sum()) for m in mask) / sum(m.numel() for m in mask)} if mask else {}
            self.log.event(kind="operator", name=name, place=str(place), **density)
        return self._end(stack)

    def _collect(self, phase: Collect, suffix: Place, stack: Stack) -> Stack:
        for branch in self._sound(stack, suffix):
            number = self.member_of[branch.place + suffix]
            if self.is_late and not branch.is_new:
                continue  # nothing came of it before the time limit was reached
            branch.is_new = False
            if self.wanted is None or self.wanted.pop(number, None) is not None:
                self.store.put(number, branch.reached)
                self._doubt(branch.reached)
                self.log.event(kind="collected", place=str(branch.place + suffix))
        return self._end(stack)

    def _doubt(self, state: State) -> None:
        """Warn of a member without active nodes in a layer."""
        left = self.task.structure.remaining(state.params, state.buffers)
        if left and not any(left.values()):
            said = f"a member has closed every node of {', '.join(map(repr, list(left)[:3]))}, so its predictions hardly depend on the inputs"
            said = f"{said}; weigh the penalty less (rho=-2.0, anneal=0.5, kl_weight=0.1), or use another method."
            self.log.event(kind="warning", message=said)
            warn(said)

    def _train(self, phase: Train, suffix: Place, stack: Stack) -> Stack:
        """Train the branches; those of equal shapes go together, and their epochs are counted one after the other."""
        branches, begin = self._begin(stack)
        position, stacks = self.position - 1, alike(phase, branches)
        if phase.select is not None and self.job.selects and len(stacks) > 1:
            raise RunError("Train chooses among its branches; give them equal shapes and an optimizer of choral.plan.")
        for number, some in enumerate(stacks):
            before = number * phase.epochs
            if begin - before >= phase.epochs and phase.epochs:
                continue
            if number and self.is_late:
                self._save(stack, position, max(begin, before))
            epochs = Epochs(self, phase, some, suffix, apart=self.job.is_together and self.apart)
            save = partial(self._save, stack, position, before=before)
            epochs.execute(max(begin - before, 0), save)
        return self._end(stack)

    def _is_wanted(self, stack: Stack) -> bool:
        """Return whether a stack must be walked: always, or when mending if a lost member comes from it."""
        if self.wanted is None:
            return True
        return any(branch.place.holds(place) for place in self.wanted.values() for branch in stack.branches)

    def _restore(self, stack: Stack) -> None:
        """Give every open stack the states the checkpoint holds for it; branches not yet begun take their parent's."""
        assert self.snapshot is not None
        for one in [*self.open.values(), stack]:
            for branch, origin in zip(one.branches, one.origins):
                saved, parent = (self.snapshot.open.get(place) for place in (branch.place, origin))
                if saved is not None and saved.state is not None:
                    branch.state, branch.is_new, branch.watch = saved.state, saved.is_new, saved.watch
                elif parent is not None:
                    branch.state, branch.is_new = parent.state, parent.is_new

    def _save(self, stack: Stack, position: int, epoch: int, *, before: int = 0) -> None:
        """Take a checkpoint if it is time, and a last one once the time limit is reached: from there a call with more time continues."""
        late = self.is_late
        if self.checkpoints is None or self._is_winding_up or not (late or self.is_due):
            return
        self._is_winding_up = late
        started, held = time.monotonic(), self.ledger
        missing = self.store.missing(len(self.member_of)) if late else []
        whole = [n for n in self.member_of.values() if n not in missing] if late else None
        reached = Snapshot(position, before + epoch, held.failed, held.counted, held.stopped, self.log.sync(), whole)
        self.checkpoints.save([*self.open.values(), stack], reached)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint: after the seconds asked for, and long enough to repay the last one."""
        seconds = self.job.compute.checkpoint_seconds
        wait = max(seconds, self._save_seconds / _SHARE) if seconds else 0.0
        return self.checkpoints is not None and time.monotonic() - self._saved_at >= wait


def refuse_lost(failed: Mapping[Place, str], store: MemberStore, count: int) -> NoReturn:
    """Raise DivergedError for lost branches, with members numbered as in `Ensemble.member`."""
    lost, folder = store.missing(count), store.folder
    named = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
    kept = count - len(lost)
    load = f": choral.load('{folder.parent}', partial=True) gives them" if kept and folder is not None else ""
    where = "" if folder is None else " into another folder (this one stays with its plan)"
    raise DivergedError(
        f"{'member' if len(lost) == 1 else 'members'} {named} of {count} diverged: {'; '.join(failed.values())}. "
        f"{kept} of {count} members were kept{load}; give a lower lr, or an optimizer that clips gradients (clip=1.0), and run again{where}."
    )


def carry_out(
    job: Job, folder: Path | None, plan: dict[str, Any], width: int, listener: Callback | None, *, started: float
) -> tuple[MemberStore, dict[str, Any]]:
    """Run a job, or what is left of it, and return its members and its cost. Without a folder nothing is written."""
    store = MemberStore() if folder is None else MemberStore(folder / "members", run=run_of(plan))
    checkpoints = None if folder is None else Checkpoints(folder / "checkpoints")
    parts, leaves, apart = job.task.parts, cut(job.recipe.plan, width), plan["executor"] == "sequential"
    with closing(Log(None if folder is None else folder / "log.jsonl", listener)) as log:
        run = Run(job=job, leaves=leaves, apart=apart, store=store, checkpoints=checkpoints, log=log)
        is_trained, costs, lost = parts.agreed(_found(run, folder, plan))
        # processes without the folder get the members that are there, so that each returns the whole ensemble
        present = costs.get("kept", [number for number in run.member_of.values() if number not in lost])
        for number in present if parts.size > 1 else ():
            state = parts.agreed(store.get(number) if parts.writes else None)
            if state is not None and not parts.writes:
                store.put(number, state)
        if is_trained:
            run.mend(lost)
        else:
            _train_rest(run, plan, lost, started)
        if not costs:
            if not run.ledger.counted["epochs"]:
                run.ledger.counted, run.ledger.stopped = parts.agreed(recalled(log.path))
            costs = parts.agreed(costs_of(run, started))
            if folder is not None:
                write_json(folder / "results.json", costs, within=folder)
        if checkpoints is not None and "ended" not in costs:
            checkpoints.clear()
    if "kept" in costs:
        store.numbers = costs["kept"]
    return store, costs


def _train_rest(run: Run, plan: dict[str, Any], lost: Mapping[int, str], started: float) -> None:
    """Continue a run from its checkpoint, or begin it; an extended one without a checkpoint trains the members that are not there."""
    parts, added = run.task.parts, plan.get("extended")
    if added is not None:
        run.ledger.counted |= added["counted"]
    if added is None or parts.agreed(bool(run.checkpoints)):
        run.begin()
    if run.snapshot is not None:
        run.mend(lost)
    if run.job.compute.time_limit is not None:
        run.ledger.count(setup_seconds=parts.agreed(time.perf_counter() - started))
    run.execute(only=None if added is None else parts.agreed(list(run.store.lost(len(run.member_of)))))


def _found(run: Run, folder: Path | None, plan: dict[str, Any]) -> tuple[bool, dict[str, Any], dict[int, str]]:
    """Return what a folder holds of a run: whether training has ended, what it cost, and which members are lost."""
    lost = run.store.lost(len(run.member_of))
    if folder is None:
        return False, {}, lost
    try:
        costs = read_costs(folder)
    except RunError as error:
        run.log.event(kind="warning", message=f"{error} It is made again from the log.")
        costs = {}
    limit = run.job.compute.time_limit
    if "kept" in costs and (limit is None or limit > costs["time_limit"]):  # it has more time than when it ended
        for name in MADE_AGAIN:
            (folder / name).unlink(missing_ok=True)
        costs = {}
    elif "kept" in costs:  # members that a time limit left out are not lost
        gone = [number for number in costs["kept"] if number in lost]
        if gone:
            said = f"{folder} was ended by its time limit and member {gone[0]} is lost ({lost[gone[0]]})"
            raise RunError(f"{said}; continue with a larger time_limit or none.")
        lost = {}
    finished = (folder / "results.json").exists()  # whole or not: what it says can be made again
    begun, now = plan["environment"], environment(torch.get_num_threads()) | run.task.parts.environment
    if lost and begun != now:
        said = f"{folder} was begun with {begun} and continues with {now}"
        warn(f"{said}; members agree with an unbroken run to rounding, not bit for bit.")
    return finished or not (lost or run.checkpoints), costs, lost


def costs_of(run: Run, started: float) -> dict[str, Any]:
    """Return what a complete run has counted, and what its members cost."""
    count = len(run.member_of)
    missing = run.store.missing(count)
    kept = [number for number in range(count) if number not in missing]
    if not kept:
        raise RunError("the time limit was reached before any member had been trained; give a larger time_limit.")
    if missing and not run.is_late:
        raise RunError(f"member {missing[0]} was not trained; run the same call once more, or use another run_dir.")
    sizes = [(state.stored, run.flops.predict(state)) for state in map(run.store.get, kept)]
    limit = run.job.compute.time_limit
    ended: dict[str, Any] = {"ended": "time_limit", "time_limit": limit, "kept": kept} if run.is_late else {}
    return ended | {
        "stopped": run.ledger.stopped,
        "counted": run.ledger.counted,
        "parameters": sum(stored for stored, _ in sizes),
        "predict_flops": sum(flops for _, flops in sizes) * run.task.structure.draws,
        "networks": len(kept),
        "outputs": list(run.task.output_shape),
        "seconds": time.perf_counter() - started,
    }
