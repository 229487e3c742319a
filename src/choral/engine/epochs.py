"""Train one phase of a group of branches, epoch by epoch: train, validate, count, and stop finished branches.

A group: branches of equal shapes that take their training steps together.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from choral.base import batches, devices, rng
from choral.base.batches import Batch, moved
from choral.base.draws import Part
from choral.base.errors import DivergedError, PlanError, RunError, explained, warn
from choral.base.interface import Called
from choral.base.types import Params
from choral.data.sources import Source
from choral.data.splitting import partition
from choral.data.tensors import Sampling, bounds
from choral.engine.checkpoint import Branch, Watch
from choral.engine.inspect import executed
from choral.engine.task import Task
from choral.engine.trainers import Pace, PlainTrainer, StackedTrainer, sharing_of, stopped
from choral.engine.validation import Validation, is_tired, select_networks, settle_selection, sound
from choral.layers.keyed import keyed
from choral.plan.cost import batches_in
from choral.plan.optimizers import steps_of
from choral.plan.phases import Context, Phase, Train, Variant
from choral.plan.state import Role, State
from choral.plan.walk import Place
from choral.structures.base import Structure

if TYPE_CHECKING:
    from choral.engine.run import Run


def alike(phase: Train, branches: Sequence[Branch]) -> list[list[Branch]]:
    """Return the branches in stacks of equal shapes, which a phase can train together."""
    found: dict[Any, list[Branch]] = {}
    for branch in branches:
        state = branch.reached
        own = [batches.signature(state.playing(role)) for role in (Role.MASK, Role.SUBSET, Role.SHIFT)]
        able = phase.optimizer.elementwise and (phase.optimizer.varies or not branch.variant.settings)
        alone = None if able else branch.place
        taken = steps_of(state.memory) if phase.memory == "carried" else ()
        found.setdefault((batches.signature(state.params), repr(state.form), alone, taken, *own), []).append(branch)
    return list(found.values())


def by_reader(values: Sequence[Tensor | None], structure: Structure) -> Tensor | None:
    """Return values of all points, given for each branch, as (branch, point, ...) or, where members read their own batches, (member, point, ...)."""
    held = [value for value in values if value is not None]
    if not held:
        return None
    joined = held[0] if len(values) == 1 else torch.stack(held)
    return joined.expand(structure.members, *joined.shape) if structure.own_batches else joined


def parts_in(points: int, batch_size: int, among: tuple[int, int]) -> list[tuple[int, Part | None]]:
    """Return where this process's part of each batch begins in the order, and which rows of the batch it is.

    >>> parts_in(10, 6, (1, 2))
    [(3, Part(start=3, rows=3, of=6)), (8, Part(start=2, rows=2, of=4))]
    """
    whole, own = bounds(points, batch_size), bounds(points, batch_size, among)
    if among[1] == 1:
        return [(a, None) for a, _ in whole]
    return [(c, Part(c - a, d - c, b - a)) for (a, b), (c, d) in zip(whole, own)]


def order_of(key: int, epoch: int, points: int, subset: Tensor | None, sampling: Sampling | None = None) -> Tensor:
    """Return the points in the order of one epoch: each once, or as a rule draws them."""
    generator = rng.generator(key, "order", epoch)
    order = torch.randperm(points, generator=generator) if sampling is None else sampling.order(generator, subset)
    return order if subset is None else subset[order]


def weights_of(source: Source, subset: Tensor | None = None) -> Tensor | None:
    """Return the weights of all points (point,), averaging 1 over those that are trained on; None if all count alike."""
    held = source.weights
    return None if held is None else held / (held if subset is None else held[subset]).mean()


def picked(shift: Tensor, order: Tensor, start: int, y: Tensor) -> Tensor:
    """Return the shift, or weights, of the points of one batch, which begins at `start` of the order."""
    if order.dim() == 1:
        return shift[order[start : start + len(y)]]
    index = order[:, start : start + y.shape[1]]
    return shift[torch.arange(len(order)).unsqueeze(1), index]


_BATCH = 256


@contextmanager
def own_draws(phase: Phase) -> Iterator[None]:
    """Raise for draws from a global generator in a starter or operator, which a resumed run would not repeat."""
    with rng.seeded(0, "watched") as unkeyed:
        yield
    if unkeyed:
        said = f"the operator {type(phase).__name__} drew from torch's global generator (by {unkeyed[0]})"
        raise PlanError(f"{said}; draw with generator=context.generator('purpose').")


class BranchContext(Context):
    """The implementation of `plan.phases.Context` for one branch at one place."""

    def __init__(
        self,
        task: Task,
        source: Source,
        seed: int,
        place: Place,
        variant: Variant = Variant(),  # noqa: B008  # frozen
        held: Tensor | None = None,
    ):
        self._seen = torch.arange(source.points)  # points that may be looked at
        if held is not None:
            self._seen = self._seen[~torch.isin(self._seen, held)]
        self._task, self._source, self._seed = task, source, seed
        self._place, self._fork = place.words, place.siblings.words
        self.branch, self.turn, self.variant = place.branch, place.turn, variant
        self.points = source.points
        self.likelihood = task.likelihood

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (self.points, *self._source.example(1)[1].shape[1:])

    def generator(self, purpose: str) -> torch.Generator:
        return rng.generator(self._seed, *self._place, purpose)

    def sibling_generator(self, purpose: str) -> torch.Generator:
        return rng.generator(self._seed, *self._fork, "siblings", purpose)

    def partition(self, parts: int) -> Tensor:
        known = self._source.folds  # drawn by the targets as they are in the data, which rounding has not changed
        if known is not None and int(known.max()) + 1 == parts:
            return known
        return partition(self._source, parts, self._seed)

    def fresh(self) -> State:
        return self._task.blueprint.fresh(self._seed, *self._place)

    def given(self) -> State | None:
        return self._task.blueprint.given(self._seed, *self._place)

    def network(self, state: State) -> nn.Module:
        return self._task.blueprint.load(state).eval()

    def member(self, state: State, index: int) -> nn.Module:
        return self._task.structure.member(self.network(state), index).eval()

    def example(self) -> Batch:
        with keyed(rng.key(self._seed, *self._place, "example")):
            return self._task.fed(moved(self._source.example()[0], self._task.device))

    def calls(self, state: State) -> Sequence[Called]:
        """Return the calls of modules, from the inspection if the joint network is the plain one."""
        known = () if self._task.structure.converts or state.form else self._task.findings.calls
        return known or executed(self.network(state), self.example())

    def inputs(self, points: int | None = None) -> Iterator[Batch]:
        order = self._seen
        if points is not None and points < len(order):
            order = order[torch.randperm(len(order), generator=self.generator("inputs"))[:points]]
        with keyed(rng.key(self._seed, *self._place, "inputs")):
            for x, _ in self._source.epoch(order, _BATCH):
                yield self._task.fed(moved(x, self._task.device))

    def losses(self, state: State, points: Tensor) -> Tensor:
        network, found = self.network(state), []
        for x, y in self._source.epoch(points, _BATCH):
            outputs = self._task.widened(self._task.outputs(network, x))
            each = self.likelihood.nll(outputs, y.to(outputs.device).expand(len(outputs), *y.shape))
            found.append(each.transpose(0, 1).flatten(1).mean(1).cpu())
        return torch.cat(found)

    def gradients(self, state: State, batches: int) -> Params:
        network = self._task.blueprint.load(state).train()
        sharing = sharing_of(self._task.structure, network)
        network.zero_grad(set_to_none=True)
        seen = self._seen
        order = seen[torch.randperm(len(seen), generator=self.generator("gradients"))[: batches * _BATCH]]
        key = rng.key(self._seed, *self._place, "gradients")
        weights, device = weights_of(self._source), self._task.device
        for i, (x, y) in enumerate(self._source.epoch(order, _BATCH)):
            own = None if weights is None else picked(weights, order, i * _BATCH, y).to(device)
            with rng.seeded(key, "unkeyed", i), keyed(key, i):
                loss = self._task.forward_loss(network, moved(x, device), y.to(device), own)
            sharing.likelihood(loss).backward()
        sharing.weigh(dict(network.named_parameters()))
        grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in network.named_parameters()}
        network.zero_grad(set_to_none=True)
        return {n: grad.detach().cpu().contiguous() for n, grad in grads.items()}


_SIZES = 5  # of a stack whose networks stop one by one, while they wait for a better score: each is recorded anew


class Group:
    """The trainer of some branches in one training phase, with their rows and rules. A stopped branch keeps its place."""

    def __init__(self, run: "Run", phase: Train, branches: Sequence[Branch], suffix: Place):
        self.run, self.phase, self.branches, self.suffix = run, phase, list(branches), suffix
        self.keys = [rng.key(run.seed, *(b.place + suffix).words, "train") for b in self.branches]
        self.subsets = [branch.reached.subset for branch in self.branches]
        self.points = [run.source.drawn(s) for s in self.subsets]
        self.per_epoch = batches_in(self.points[0], phase.batch_size)
        self.steps = phase.epochs * self.per_epoch
        self.seen = min(self.per_epoch * phase.batch_size, self.points[0])  # points of a branch in one epoch
        self.shift = by_reader([branch.reached.shift for branch in self.branches], run.task.structure)
        self.weights = by_reader([weights_of(run.source, s) for s in self.subsets], run.task.structure)
        kind = PlainTrainer if len(self.branches) == 1 else StackedTrainer
        variants = [branch.variant for branch in self.branches]
        masses = [run.source.mass(s) for s in self.subsets]
        waits = run.rules.patience
        kept = self.steps if waits is None else min(self.steps, waits * self.per_epoch // _SIZES)
        self.trainer = kind(run.task, phase, masses, variants, steps=kept)

    def mount(self) -> None:
        """Load the states of the branches."""
        self.trainer.mount([branch.reached for branch in self.branches], self.keys)

    def take_out(self, states: Sequence[State] | None = None) -> None:
        """Store states, the trainer's if none are given, in the branches that continue."""
        for branch, state in zip(self.branches, self.trainer.states() if states is None else states):
            branch.state = state if branch.goes_on else branch.state

    def train(self, epoch: int) -> None:
        """Take the steps of one epoch, and apply the rules that are due in it."""
        phase, trainer = self.phase, self.trainer
        trainer.catch = True
        readers, sampling = self._readers(), self.run.source.sampling
        orders = [order_of(key, epoch, points, subset, sampling) for key, points, subset in readers]
        order = orders[0] if len(orders) == 1 else torch.stack(orders)
        keys = [rng.key(key, "items", epoch) for key, _, _ in readers]
        among = self.run.task.parts.rank, self.run.task.parts.size
        read = self.run.source.epoch(order, phase.batch_size, keys=keys, among=among)
        places = parts_in(order.shape[-1], phase.batch_size, among)
        before, annealed = epoch * self.per_epoch, phase.annealing
        rates = [phase.schedule.rate(before + i, self.steps) for i in range(len(places))]
        for i, ((x, y), (start, part), rate) in enumerate(zip(read, places, rates)):
            step = before + i
            if self.shift is not None:
                y = y + devices.moved(picked(self.shift, order, start, y), y.device)
            own = None if self.weights is None else picked(self.weights, order, start, y)
            where = f"in epoch {epoch + 1}, batch {i + 1},"
            with explained(partial(stopped, where=where, x=x, stacked=len(self.branches) > 1)):
                trainer.step(x, y, Pace(step, step / self.steps if annealed else 1.0, rate), own, part)
            if step == 0 and not trainer.catch and any(branch.variant.get("dropout") for branch in self.branches):
                said = "branches differ in dropout, but the network has no dropout layer; give it some (nn.Dropout)."
                self.run.ledger.log.event(kind="warning", message=said)
            self._apply("steps", step + 1, self.steps)
        self.run.task.parts.share_statistics(trainer.network)
        self._apply("epochs", epoch + 1, phase.epochs)

    def _readers(self) -> list[tuple[int, int, Tensor | None]]:
        """Return who reads batches: key, points and subset of each branch, or of each member that has batches of its own."""
        branches, structure = list(zip(self.keys, self.points, self.subsets)), self.run.task.structure
        if not structure.own_batches:
            return branches
        return [(rng.key(k, "member", m), n, s) for k, n, s in branches for m in range(structure.members)]

    def _apply(self, unit: str, finished: int, total: int) -> None:
        """Apply the rules that are due after this many steps or epochs; those that compute on any device get states on the device."""
        ledger, trainer = self.run.ledger, self.trainer
        for number, rule in enumerate(self.phase.every):
            if rule.unit != unit or not rule.due(finished, total):
                continue
            suffix, changed = self.suffix.then("every", number).then("after", finished), list[State]()
            for branch, state in zip(self.branches, trainer.states(here=rule.phase.anywhere)):
                if branch.goes_on and not ledger.is_lost(branch) and ledger.is_sound(branch, state, suffix):
                    with own_draws(rule.phase):
                        state = rule.phase.apply(state, self.run.context(branch.place + suffix, branch.variant, state))
                changed.append(state)
            self.take_out(changed)  # operations are counted by their masks
            losses, count = trainer.total, trainer.count
            trainer.mount(changed, self.keys)
            trainer.total, trainer.count = losses, count


# of a stack that may be left before it is made smaller: each size of stack costs a new recording of its steps
_ROOM = 0.75


class Epochs:
    """The epochs of one training phase for branches of equal shapes; `apart` trains them in turn instead of stacked."""

    def __init__(self, run: "Run", phase: Train, branches: Sequence[Branch], suffix: Place, *, apart: bool):
        self.run, self.phase, self.branches, self.suffix = run, phase, list(branches), suffix
        self.apart, self.groups = apart, list[Group]()
        self._selects = phase.select is not None and run.validation is not None
        self._unmeasured = set[Place]()  # whose measure was NaN
        self._first = dict[Place, State]()  # what networks that are chosen among began the phase with

    def execute(self, begin: int, save: Callable[[int], None]) -> None:
        """Train to the end, or until all have stopped; states are set when `save` is called with the epochs done."""
        if begin == 0:
            self._begin()
        if not self.phase.epochs or (begin == 0 and self.run.is_late):
            return self._end()
        if self.run.is_late:  # a run continues to wind up
            self._stop(begin, "time_limit")
            return self._end()
        self._mount([branch for branch in self.branches if branch.watch.mounted])
        self.gated = self.run.remaining([branch.reached for branch in self.branches]) is not None
        for epoch in range(begin, self.phase.epochs):
            self._epoch(epoch)
            if epoch + 1 < self.phase.epochs:
                self._stop(epoch + 1, "patience")
                if self._selects and is_tired(self.phase.select, self.branches, epoch + 1):
                    self._stop(epoch + 1, "selection")
                if self.run.is_late and self._going():
                    self._take_out()
                    save(epoch + 1)
                    self._stop(epoch + 1, "time_limit")
            if not self._going():
                break
            self._leave()
            if epoch + 1 < self.phase.epochs and self.run.is_due:
                self._take_out()
                save(epoch + 1)
        self._take_out()
        self._end()

    def _begin(self) -> None:
        for branch in self.branches:
            if self.phase.memory == "fresh":
                branch.state = branch.reached.having(memory={})
            branch.watch = Watch()
            if self._selects:
                self._first[branch.place] = branch.reached.having(memory={})

    def _end(self) -> None:
        """Finish the phase with the selected states and their shares, or the best states if they are kept."""
        unlost = [b for b in self.branches if not self.run.ledger.is_lost(b)]
        if not (self._selects and settle_selection(unlost)):
            for branch in unlost:
                branch.state = branch.watch.state or branch.state
        for branch in self.branches:
            branch.watch = Watch()

    def _mount(self, branches: Sequence[Branch]) -> None:
        parts = [[branch] for branch in branches] if self.apart else [branches]
        self.groups = [Group(self.run, self.phase, part, self.suffix) for part in parts]
        if len(self.groups) == 1:
            self.groups[0].mount()

    def _take_out(self) -> None:
        if len(self.groups) == 1:
            self.groups[0].take_out()

    def _stopped(self, branch: Branch, epoch: int, reason: str) -> None:
        watch = branch.watch
        watch.stopped = epoch
        about = {"best_epoch": watch.best_epoch, "best": watch.best, "reason": reason}
        self.run.ledger.stop(branch.place + self.suffix, epoch=epoch, epochs=self.phase.epochs, **about)

    def _going(self) -> list[Branch]:
        return [b for b in self.branches if b.goes_on and not self.run.ledger.is_lost(b)]

    def _epoch(self, epoch: int) -> None:
        """Train one epoch, count it, validate, and log it."""
        started, trained = time.perf_counter(), [b for b in self.branches if b.goes_on]
        losses: dict[Place, float] = {}
        for group in self.groups:
            if len(self.groups) > 1:
                group.mount()
            group.train(epoch)
            losses |= {b.place: loss for b, loss in zip(group.branches, group.trainer.losses()) if b.goes_on}
            if len(self.groups) > 1:
                group.take_out()
        seconds = self.run.task.parts.agreed(time.perf_counter() - started)
        one, count, ledger = self.groups[0], len(trained), self.run.ledger
        flops = sum(self.run.flops.train(branch.state) for branch in trained) * one.seen
        ledger.count(epochs=count, steps=one.per_epoch * count, points=one.seen * count)
        ledger.count(train_flops=flops, train_seconds=seconds)
        if self._selects:
            self._leave_out([b for b in trained if not math.isfinite(losses[b.place])], epoch)
            trained = [b for b in trained if b.goes_on]
        values: dict[Place, float] = {}
        if self._selects or (epoch + 1) % self.run.rules.every == 0 or epoch + 1 == self.phase.epochs:
            values = self._validate(epoch, [b for b in trained if math.isfinite(losses[b.place])])
        trained = [b for b in trained if b.goes_on]
        about: dict[str, Any] = {}
        if self.gated:
            self._take_out()
            about["remaining"] = self.run.remaining([branch.reached for branch in trained])
        if self.run.validation is not None:
            about["validation"] = [values.get(branch.place) for branch in trained]
            about["measure"] = self.run.rules.monitor.name
        ledger.log.event(
            kind="epoch",
            places=[str(branch.place + self.suffix) for branch in trained],
            epoch=epoch + 1,
            epochs=self.phase.epochs,
            losses=[losses[branch.place] for branch in trained],
            rate=self.phase.schedule.rate(epoch * one.per_epoch, one.steps),
            seconds=seconds,
            counted=dict(ledger.counted),
            **about,
        )
        for branch in trained:
            branch.is_new = True
            loss, place = losses[branch.place], branch.place + self.suffix
            if not math.isfinite(loss) and not ledger.is_lost(branch):
                ledger.lose(branch, self.suffix, f"the loss became {loss} at {place} in epoch {epoch + 1}")

    def _validate(self, epoch: int, trained: Sequence[Branch]) -> dict[Place, float]:
        """Score the networks on held-out rows and record improvements."""
        validation, rules = self.run.validation, self.run.rules
        branches = [b for b in trained if not self.run.ledger.is_lost(b)]
        given = {slot for rule in self.phase.every for slot in rule.phase.gives}  # later phases may need them
        if validation is None or not branches:
            return {}
        started = time.perf_counter()
        self._take_out()
        key_of = {branch.place: key for group in self.groups for branch, key in zip(group.branches, group.keys)}
        together = rules.by == "ensemble"
        keys, outputs = [key_of[branch.place] for branch in branches], torch.empty(0)
        if self.phase.select is not None:
            assert isinstance(validation, Validation), "networks that are chosen among are watched by the same points"
            choose = partial(select_networks, self.phase.select, validation)
            outputs = validation.outputs([branch.reached for branch in branches], keys)
            finite = list(map(validation.is_sound, outputs))
            self._leave_out([b for b, whole in zip(branches, finite) if not whole], epoch)
            branches, outputs = [b for b, whole in zip(branches, finite) if whole], outputs[torch.tensor(finite)]
            if not branches:
                return {}
            values = validation.measured(outputs, together=together)
        else:
            values = validation.values([branch.reached for branch in branches], keys, together=together)
        values = self.run.task.parts.agreed(values)  # one decision for all processes
        for branch, value in zip(branches, values):
            if math.isnan(value):
                self._say_nan(epoch, branch)
            watch = branch.watch
            better = rules.monitor.improves(value, watch.best, rules.min_delta)
            if not given <= branch.reached.slots.keys():
                watch.best_epoch = epoch + 1
            elif better:
                watch.best, watch.best_epoch = value, epoch + 1
                watch.state = branch.state if rules.restore_best else None
        if self.phase.select is not None:
            unlost = [b for b in self.branches if not self.run.ledger.is_lost(b)]
            now = {i: outputs[branches.index(b)] for i, b in enumerate(unlost) if b in branches}
            choose(unlost, now, epoch + 1)
        self.run.ledger.count(validation_seconds=self.run.task.parts.agreed(time.perf_counter() - started))
        return {branch.place: value for branch, value in zip(branches, values)}

    def _leave_out(self, branches: Sequence[Branch], epoch: int) -> None:
        """Stop networks with non-finite values; others can still be selected."""
        for branch in branches:
            self._stopped(branch, epoch + 1, "diverged")
            branch.state = sound(branch.watch) or self._first[branch.place]
        why = {stop["place"]: stop["reason"] for stop in self.run.ledger.stopped}
        # what they were before is no choice
        if branches and all(why.get(str(branch.place + self.suffix)) == "diverged" for branch in self.branches):
            raise DivergedError(f"all {len(self.branches)} networks that are chosen among diverged; lower the rates.")

    def _say_nan(self, epoch: int, branch: Branch) -> None:
        """Raise RunError if a function of the user returned NaN; warn once for each branch if a score is NaN."""
        measure, where = self.run.rules.monitor, f"after epoch {epoch + 1} of {branch.place + self.suffix}"
        if measure.function is not None:
            raise RunError(f"the validation measure {measure.name!r} gave NaN {where}; let it return a number.")
        if branch.place not in self._unmeasured:
            self._unmeasured.add(branch.place)
            warn(f"the validation measure {measure.name!r} is NaN {where}; lower the learning rate.")

    def _stop(self, epoch: int, reason: str) -> None:
        """Stop branches whose patience is exhausted, or all at the time limit or when the selection no longer improves."""
        patience = self.run.rules.patience
        for branch in self._going():
            watch = branch.watch
            if reason == "patience" and (patience is None or epoch - watch.best_epoch < patience):
                continue
            self._take_out()
            branch.state = watch.state or branch.state
            self._stopped(branch, epoch, reason)

    def _leave(self) -> None:
        """Shrink the stack when enough branches have stopped, with the optimizer state of the others."""
        mounted = [branch for group in self.groups for branch in group.branches]
        going = [branch for branch in mounted if branch.goes_on]
        if len(going) == len(mounted) or not (self.apart or len(going) <= _ROOM * len(mounted)):
            return
        self._take_out()
        for branch in mounted:
            branch.watch.mounted = branch.goes_on
        self._mount(going)
