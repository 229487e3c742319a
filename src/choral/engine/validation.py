"""Validation: held-out rows, their scores after each epoch, and the selection of networks by them.

Networks are evaluated in evaluation mode by separate evaluators, so that training is not affected: members whose last state is kept equal
those of a run without validation.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from choral.base import batches
from choral.base.batches import Batch
from choral.base.errors import InputError, NotFiniteError, explained, warn
from choral.calibration.members import Loss, greedy_selection
from choral.data.sources import Source, source_of
from choral.data.splitting import held_out
from choral.data.tensors import arranged, cast_targets, hashed
from choral.engine.checkpoint import Branch, MemberStore, Watch
from choral.engine.evaluate import Evaluator, PlainEvaluator, copied, suited
from choral.engine.task import Task
from choral.objectives.likelihoods import About
from choral.plan.early_stopping import SHARE, EarlyStopping, Measure, Select
from choral.plan.state import State, slot
from choral.predictions import Predictive

AUTO = "auto"
_LEAST = 40  # points of which some are held out where `fit` chooses
_CHUNK = 1024  # points read and evaluated at once
_WIDEST = 1 << 24  # numbers of all networks that are mapped together, at most
_TAME = 60.0  # outputs below it give finite variances, rates and probabilities, whatever function they go through


class Limit(float):
    """A time limit in seconds whose clock began before the call (by time.perf_counter), for a run that is part of something longer."""

    started: float

    @staticmethod
    def of(seconds: float, started: float) -> "Limit":
        """Return a limit of so many seconds after a moment."""
        found = Limit(seconds)
        found.started = started
        return found


def chosen(validation: Any, points: int, *, wanted: bool) -> Any:
    """Return the validation argument; for 'auto', if wanted, 15 % of few rows to 5 % of many.

    >>> [chosen("auto", points, wanted=True) for points in (200, 1_500, 10_000, 100_000)]
    [0.15, 0.1, 0.05, 0.01]
    """
    if not isinstance(validation, str) or validation != AUTO:
        return validation
    held = min(0.15 * points, max(150, 0.05 * points), 1_000)
    return held / points if wanted and points >= _LEAST else None


def wants_validation(early_stopping: EarlyStopping | None) -> bool:
    """Return whether early stopping needs held-out points; InputError if it is something else."""
    if not isinstance(early_stopping, EarlyStopping | None):
        raise InputError(f"early_stopping is {early_stopping!r}; give choral.EarlyStopping(patience=16) or None.")
    return early_stopping is not None and (early_stopping.patience is not None or early_stopping.restore_best)


def rules_of(validation: Any, early_stopping: EarlyStopping | None, folds: int | None = None) -> EarlyStopping:
    """Return when to stop and which weights to keep; InputError for rules that need validation without it."""
    if validation is not None and folds is not None:
        raise InputError("validation and cv both say which points are held out; give one of them.")
    watched = validation is not None or folds is not None
    if wants_validation(early_stopping) and not watched:
        raise InputError("early_stopping needs held-out points; give validation=0.2 (a share) or validation=(x, y).")
    if early_stopping is None or early_stopping.patience is None:
        kept = watched if early_stopping is None else early_stopping.restore_best
        return EarlyStopping(patience=None, restore_best=kept)
    return early_stopping


def set_apart(
    source: Source, validation: Any, seed: int, target: str | int | None = None, weights: str | int | None = None
) -> tuple[Source, Source | None]:
    """Return the rows for training and for validation: a share of the source's, or separate data as `fit` takes it."""
    if validation is None:
        return source, None
    if isinstance(validation, int | float) and not isinstance(validation, bool):
        kept, held = held_out(source, float(validation), seed)
        return source.piece(kept), source.piece(held)
    if isinstance(validation, tuple | list) and len(validation) in (2, 3):
        x, y, *more = validation
        validation = (arranged(x, source.columns), arranged(y, source.columns, "y"), *more)
        target = weights = None
    try:
        return source, source_of(validation, target, weights)
    except InputError as error:
        raise InputError(f"validation: {error}") from error


class Validation:
    """Scores networks on held-out rows; `combine` is how members become one prediction."""

    def __init__(self, task: Task, source: Source, measure: Measure, combine: str):
        self.task, self.measure, self.combine = task, measure, combine
        source.settle(task.floats)
        self.source = source.reading(task.likelihood.read)  # as training reads them
        parts = [part for some in torch.arange(source.points).split(_CHUNK) for part in source.epoch(some, _CHUNK)]
        self.chunks: list[Batch] = [batches.moved(x, task.device) for x, _ in parts]
        self.y = torch.cat([y for _, y in parts])
        self.weights = source.weights
        self._read = cast_targets(task.likelihood.read(self.y), task.floats)
        self._moment = MemberStore()
        self._signature: Any = None
        self._evaluator: Evaluator | None = None
        # refuse points that do not fit and measures that do not exist, before anything is trained
        self.task.blueprint.interface.check(self.chunks[0])
        self.task.likelihood.check_judged(self.y, self.task.output_shape)
        self._try_reading()
        few = self.y[:8]
        shape = (self.task.structure.members * self.task.structure.draws, len(few), *self.task.output_shape)
        weights = None if self.weights is None else self.weights[:8]
        prediction = self._prediction(torch.zeros(shape), self._read[:8], weights)
        targets = prediction.targets(few)
        if self.measure != Measure.of(prediction.score):  # which every prediction has
            self.measure(prediction, targets, weights)
        if weights is not None and not self.measure.weighs(prediction, targets):
            said = f"the measure {self.measure.name!r} is no mean over points and is taken without them"
            warn(f"validation has weights; {said}.")

    def _try_reading(self) -> None:
        """Refuse inputs that the network cannot read, with the shapes on both sides."""
        rows = batches.part(self.chunks[0], slice(max(2, self.task.structure.members)))
        ready = self.task.prepared(batches.moved(rows, self.task.device), training=False)
        if batches.described(ready) == self.task.blueprint.interface.reads:  # as those of the inspection
            return
        why = self.task.blueprint.interface.why_not_predicted
        with explained(lambda error: InputError(f"validation: {why(rows, error)}")):
            self.task.outputs(self.task.blueprint.network().eval(), rows)

    def _prediction(self, outputs: Tensor, read: Tensor, weights: Tensor | None) -> Predictive:
        """Return what outputs (row, batch, ...) predict; noise that is estimated after training is estimated on them."""
        likelihood = self.task.likelihood
        likelihood = likelihood.estimated(outputs, read, weights) if likelihood.estimates else likelihood
        owners = self.task.structure.owners(len(outputs) // (self.task.structure.members * self.task.structure.draws))
        return likelihood.predict(outputs, About(self.combine, None, owners))

    def outputs(self, states: Sequence[State], keys: Sequence[int]) -> Tensor:
        """Return the outputs of networks of equal shapes (network, member * draws, batch, ...); each draws by its key."""
        self._moment.hold(dict(zip(keys, states)))
        signature = (tuple(keys), batches.signature(states[0].params), repr(states[0].form))
        if self._evaluator is not None and self._signature == signature:
            self._evaluator.renew()
        else:
            few = copied(batches.part(self.chunks[0], slice(2)))
            plain = PlainEvaluator(self.task, self._moment, keys, keep=True)
            plain.look(few)
            wide = sum(sum(p.numel() for p in state.params.values()) for state in states) > _WIDEST
            self._evaluator, self._signature = plain if wide else suited(plain, few), signature
        return torch.cat([self._evaluator.run(chunk) for chunk in self.chunks], 2).cpu()

    def values(self, states: Sequence[State], keys: Sequence[int], *, together: bool) -> list[float]:
        """Return the measure of each network's own prediction, or the one of them all, for each."""
        return self.measured(self.outputs(states, keys), together=together)

    def measured(self, outputs: Tensor, *, together: bool) -> list[float]:
        """Return the measure of each network's own prediction, or the one of them all, for each; NaN of what is too large to be measured."""
        if together:
            return [self._measure(outputs.flatten(0, 1))] * len(outputs)
        if self._is_plain_nll:
            with suppress(NotFiniteError):  # of some: then each is measured alone
                whole = self._prediction(outputs.flatten(0, 1), self._read, None)
                if whole.mixes:
                    scores = whole.log_scores(whole.targets(self.y)).unflatten(0, outputs.shape[:2])
                    mixed = scores.logsumexp(1) - math.log(outputs.shape[1])
                    return [float(value) for value in -mixed.mean(-1)]
        return [self._measure(one) for one in outputs]

    def is_sound(self, outputs: Tensor) -> bool:
        """Return whether the outputs of a network are finite, and mean something finite."""
        if not torch.isfinite(outputs).all():
            return False
        if float(outputs.abs().max()) < _TAME:
            return True
        try:
            values, loss = self.blended(outputs.unsqueeze(0))
            return bool(
                torch.isfinite(values).all()
                and torch.isfinite(loss(values.double())).all()
                and (self.measure.function is not None or math.isfinite(self._measure(outputs)))
            )
        except NotFiniteError:
            return False

    def blended(self, outputs: Tensor) -> tuple[Tensor, Loss]:
        """Return what is averaged over networks, (network, batch, ...), and what an average costs at each point.

        Shapes: outputs (network, member * draws, batch, ...).
        """
        prediction = self._prediction(outputs.flatten(0, 1), self._read, self.weights)
        values, loss = prediction.blend(prediction.targets(self.y))
        return values.unflatten(0, outputs.shape[:2]).mean(1), loss

    @cached_property
    def _is_plain_nll(self) -> bool:
        """Whether the measure of several networks can be had at once: their log scores, with nothing estimated for each."""
        plain = self.measure == Measure.of("nll") and self.y[0].numel() == 1
        return plain and self.weights is None and not self.task.likelihood.estimates

    def _measure(self, outputs: Tensor) -> float:
        try:
            prediction = self._prediction(outputs, self._read, self.weights)
            return self.measure(prediction, prediction.targets(self.y), self.weights)
        except NotFiniteError:
            return math.nan


class Folds:
    """Scores every network on the rows held out of its own training; arguments as in `Validation`."""

    def __init__(self, task: Task, source: Source, measure: Measure, combine: str):
        assert source.folds is not None
        self.source, self.part = source, source.folds
        self.count = int(self.part.max()) + 1
        pieces = [source.piece((self.part == fold).nonzero().flatten()) for fold in range(self.count)]
        self.parts = [Validation(task, piece, measure, combine) for piece in pieces]

    def values(self, states: Sequence[State], keys: Sequence[int], *, together: bool) -> list[float]:
        """Return the measure of each network on its own points; together, their mean over all points."""
        found = [0.0] * len(states)
        folds = [int(self.part[state.held[0]]) for state in states if state.held is not None]
        assert len(folds) == len(states), "every network holds points out"
        for fold in sorted(set(folds)):
            some = [i for i, own in enumerate(folds) if own == fold]
            values = self.parts[fold].values([states[i] for i in some], [keys[i] for i in some], together=together)
            for i, value in zip(some, values):
                found[i] = value
        if not together:
            return found
        sizes = [self.parts[fold].source.mass() for fold in folds]
        return [sum(v * s for v, s in zip(found, sizes)) / sum(sizes)] * len(states)

    def identity(self) -> dict[str, Any]:
        """Return what a later call with the same folder must repeat."""
        groups = self.source.groups
        held = {} if groups is None else {"groups": hashed([groups.numpy()])}
        return held | {"folds": self.count}


_OUTPUTS = slot("held-out outputs")  # of a chosen state, kept with it so that a resumed run chooses by the same bits
_GAIN = 1e-9  # of the score; less is rounding


class _Candidate(NamedTuple):
    """A network at some epoch: the number of its branch, its state, and its outputs (member * draws, batch, ...) for held-out rows."""

    branch: int
    state: State
    outputs: Tensor
    times: int  # that it is chosen at present


def select_networks(
    select: Select, validation: Validation, branches: Sequence[Branch], now: dict[int, Tensor], epoch: int
) -> None:
    """Repeat the selection among the finite networks of a phase, and record it in their watches.

    `now` has the outputs of those trained in this epoch, by their index in `branches`.
    """
    watches = [branch.watch for branch in branches]
    now = {i: outputs for i, outputs in now.items() if bool(torch.isfinite(outputs).all())}
    pool: list[_Candidate] = []
    for i, watch in enumerate(watches):
        if watch.held is not None:
            pool.append(_Candidate(i, watch.held, watch.held.slots[_OUTPUTS]["outputs"], watch.count))
        if i in now:
            state = branches[i].reached
            held = state.having(memory={}, slots={**state.slots, _OUTPUTS: {"outputs": now[i]}})
            pool.append(_Candidate(i, held, now[i], 0))
    if not pool:
        return
    values, loss = validation.blended(torch.stack([c.outputs for c in pool]))
    weights = validation.weights

    def cost(counts: Sequence[int]) -> float:
        shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        rows = loss(torch.einsum("m,m...->...", shares, values.double()).unsqueeze(0))[0]
        return float(rows.mean() if weights is None else (rows * weights).sum() / weights.sum())

    first = greedy_selection(values, loss, picks=select.picks, weights=weights)
    best = {c.branch: n for n, c in sorted(enumerate(pool), key=lambda item: (first[item[0]], -item[0]))}
    kept = [n for n, c in enumerate(pool) if first[n] and best[c.branch] == n]  # each branch at one time
    again = greedy_selection(values[kept], loss, picks=select.picks, weights=weights)
    picked = dict(zip(kept, again))
    counts, before = [picked.get(n, 0) for n in range(len(pool))], [c.times for c in pool]
    is_better = not sum(before) or cost(counts) < (old := cost(before)) - _GAIN * (1 + abs(old))
    for watch in watches:
        watch.count, watch.gained = 0, epoch if is_better else watch.gained
    for candidate, count in zip(pool, counts if is_better else before):
        if count:
            watches[candidate.branch].count, watches[candidate.branch].held = count, candidate.state
    for candidate in pool:  # one that is not chosen is held as it was when it was best
        watch, i = watches[candidate.branch], candidate.branch
        if not watch.count and i in now and (watch.held is None or watch.state is branches[i].state):
            watch.held = candidate.state


def sound(watch: Watch) -> State | None:
    """Return the state that a network had when it was selected or best; None before the first."""
    if watch.held is None:
        return watch.state
    return watch.held.having(slots={name: held for name, held in watch.held.slots.items() if name != _OUTPUTS})


def is_tired(select: Select | None, branches: Sequence[Branch], epoch: int) -> bool:
    """Return whether no selection was better for too long."""
    return select is not None and epoch - max((b.watch.gained for b in branches), default=0) >= select.patience


def settle_selection(branches: Sequence[Branch]) -> bool:
    """Give every network its selected state and its share; return whether there is a selection."""
    total = sum(b.watch.count for b in branches)
    for branch in branches if total else ():
        watch = branch.watch
        state = (sound(watch) if watch.count else watch.state) or branch.reached
        share = torch.tensor(watch.count / total, dtype=torch.float64)
        branch.state = state.having(slots=state.slots | {SHARE: {"share": share}})
    return total > 0
