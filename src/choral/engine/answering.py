"""Answer for the networks of an ensemble: which evaluator suits them, how many rows and passes at once, and how many threads."""

import copy
import threading
from typing import Any

import torch
from torch import Tensor

from choral.base import batches, devices, tree
from choral.base.batches import Batch
from choral.engine import forwards
from choral.engine.evaluators import (
    ROWS,
    Evaluator,
    PlainEvaluator,
    SizedEvaluator,
    StackedEvaluator,
    States,
    copied,
)
from choral.engine.replaying import RecordedEvaluator
from choral.engine.task import Task
from choral.engine.threads import Threads, using
from choral.layers.conversion.swapping import holds

KEPT = 1 << 26  # numbers of all networks that are kept loaded, at most
_LAYER = 1 << 20  # numbers of one layer of all stacked networks, at most
_ARITHMETIC = 3 << 19  # products of one network in a call, from which stacking no longer pays
_FEW = 16  # rows of convolutional networks that are answered from records, at most
_RECORDED = 1 << 20  # parameters of networks whose operations are recorded, at most: each record holds a copy
_PASSED_ROWS = 128  # points of passes that are mapped together, at most
_PASSED = 1 << 22  # numbers of one layer of all passes that are mapped together, at most
_UNMAPPABLE = (RuntimeError, NotImplementedError, ValueError, TypeError)  # what torch.func and make_fx raise


class Evaluation:
    """The networks of an ensemble, in stacks of equal shapes, each with the evaluator that suits it.

    Args:
        task: structure, transforms, device, precision.
        store: where the states are.
        count: how many there are.
        plain: run networks one by one, in the type the task's networks have, whatever that of the states is.
    """

    def __init__(self, task: Task, store: States, count: int, *, plain: bool = False):
        self._task, self._store, self._count, self._plain = task, store, count, plain
        self._settling = threading.Lock()
        self._settled: list[Evaluator] | None = None
        self._threads = Threads()

    def outputs(self, x: Batch, *, batch_size: int, threads: int | None = None) -> Tensor:
        """Return the raw outputs of every member (member * draws, batch, ...).

        Args:
            x: the points.
            batch_size: of them at once, at most.
            threads: of torch's operations; None settles it.
        """
        evaluators = self.evaluators(x) if batches.rows(x) else self._unsettled()
        x = batches.moved(x, self._task.device)
        found: dict[int, Tensor] = {}
        for i, evaluator in enumerate(evaluators):
            with using(threads or self._settle_threads(evaluator, x, batch_size)):
                made = self._answered(i, evaluator, x, batch_size)
            if len(evaluators) == 1:
                return made.flatten(0, 1)
            found |= dict(zip(evaluator.numbers, made))
        return torch.cat([found[i] for i in range(self._count)])

    def _answered(self, place: int, evaluator: Evaluator, x: Batch, size: int) -> Tensor:
        """Return an evaluator's outputs; if it cannot give them, those of networks one by one, which are asked from then on.

        Forward code may go other ways for other values (experts that get a point only now and then), and some cannot be mapped.
        """
        try:
            return evaluator.outputs(x, size)
        except _UNMAPPABLE:
            plain = PlainEvaluator(self._task, self._store, evaluator.numbers, keep=self._stacks()[1] <= KEPT)
            plain.look(copied(batches.part(x, slice(2))))
            found = plain.outputs(x, size)  # what no network can read fails here
            if self._settled is not None:
                self._settled[place] = plain
            return found

    def once(self, x: Batch, *, batch_size: int) -> Tensor:
        """Return what `outputs` returns, up to rounding, for a single call: nothing is kept, stacked or recorded for later ones."""
        found: dict[int, Tensor] = {}
        x = batches.moved(x, self._task.device)
        for stack in self._stacks()[0]:
            plain = PlainEvaluator(self._task, self._store, stack, keep=False)
            plain.look(copied(batches.part(x, slice(2))))
            with using(self._settle_threads(plain, x, batch_size)):
                found |= dict(zip(stack, plain.outputs(x, batch_size)))
        return torch.cat([found[i] for i in range(self._count)])

    def _settle_threads(self, evaluator: Evaluator, x: Batch, size: int) -> int:
        most = torch.get_num_threads()
        if most == 1 or not devices.is_processor(self._task.device):
            return most
        rows = min(batches.rows(x), size, evaluator.rows)

        def run(few: int) -> None:
            evaluator.outputs(copied(batches.part(x, slice(few))), size)

        return self._threads.of(evaluator.operations, rows, run, together=evaluator.together(rows))

    def evaluators(self, x: Batch) -> list[Evaluator]:
        """Return the evaluators; the first input that the networks can read decides what they are."""
        if self._settled is None:
            with self._settling:
                if self._settled is None:
                    stacks, numbers = self._stacks()
                    # networks may write into it
                    few = copied(batches.moved(batches.part(x, slice(2)), self._task.device))
                    self._settled = [self._choose(stack, few, keep=numbers <= KEPT) for stack in stacks]
        return self._settled

    def _unsettled(self) -> list[Evaluator]:
        """Return evaluators for an input without rows, which tells nothing."""
        if self._settled is not None:
            return self._settled
        return [PlainEvaluator(self._task, self._store, stack, keep=False) for stack in self._stacks()[0]]

    def _stacks(self) -> tuple[list[list[int]], int]:
        """Return the networks of equal shapes, and how many numbers all networks hold."""
        stacks: dict[Any, list[int]] = {}
        numbers = 0
        for i in range(self._count):
            state = self._store.get(i)
            numbers += tree.count(state.params)
            stacks.setdefault((tree.signature(state.params), repr(state.form)), []).append(i)
        return list(stacks.values()), numbers

    def _choose(self, numbers: list[int], few: Batch, *, keep: bool) -> Evaluator:
        task = self._task
        plain = PlainEvaluator(task, self._store, numbers, keep=keep)
        plain.look(few)
        found = plain if self._plain else self._suiting(plain, few)
        found.operations = plain.operations
        return found

    def _suiting(self, plain: PlainEvaluator, few: Batch) -> Evaluator:
        """Return the fastest evaluator that can run networks like these."""
        task, numbers = self._task, plain.numbers
        network = plain.trees(numbers[0]).pristine
        widest = max((p.shape[0] for p in network.parameters() if p.dim()), default=1)
        found: Evaluator = plain
        if not plain.manners.good:
            return plain
        drawn = plain.drawn(few)
        parameters = sum(p.numel() for p in network.parameters())
        recordable = len(numbers) * (parameters + task.structure.draws * drawn) <= _RECORDED and not plain.catch
        recordable = recordable and not holds(network, *forwards.LENGTHY)
        looped = any(forwards.is_looped(m) for m in network.modules())
        if len(numbers) > 1 and plain.keep and not looped:
            stacked = StackedEvaluator(task, self._store, numbers)
            stacked.catch = plain.catch
            stacked.rows = max(128, _LAYER // (len(numbers) * widest))
            found = stacked if works(stacked, few) else plain
        self._map_passes(found, plain, few, widest)
        if looped and found.each == 1:
            return self._in_turn(plain, few, parameters) if recordable and not drawn else plain
        whole = found.each == task.structure.draws
        if whole and recordable and (len(numbers) == 1 or found is not plain):
            found = _recorded(found, few) or found
        if not isinstance(found, RecordedEvaluator) and plain.keeps(drawn):
            plain.each, plain.rows = 1, ROWS  # mapped passes would draw anew in every call
            return plain
        if found is plain or task.structure.draws > 1:
            return found
        return SizedEvaluator(found, plain, turn=_ARITHMETIC // parameters)

    def _in_turn(self, plain: PlainEvaluator, few: Batch, parameters: int) -> Evaluator:
        """Return a record of networks run in turn, their passes together, for a few rows: 4 LeNet-S answer one in half the time."""
        together = copy.copy(plain)
        together.each = self._task.structure.draws
        found = _recorded(together, few) if works(together, few) else None
        return plain if found is None else SizedEvaluator(found, plain, turn=_FEW)

    def _map_passes(self, evaluator: Evaluator, plain: PlainEvaluator, few: Batch, widest: int) -> None:
        """Let passes be mapped together where that is faster and possible."""
        if self._task.structure.draws == 1:
            return
        each = plain.room(batches.part(few, slice(1)))
        together = 1 if evaluator is plain else len(evaluator.numbers)
        if each > 1:
            evaluator.rows = min(evaluator.rows, _PASSED_ROWS)
            evaluator.each = max(1, min(each // together, _PASSED // (together * evaluator.rows * widest)))
            if not works(evaluator, few):
                evaluator.each = 1


def _recorded(evaluator: Evaluator, few: Batch) -> RecordedEvaluator | None:
    """Return what runs an evaluator's operations from a record, if that gives what it gives."""
    recorded = RecordedEvaluator(evaluator)
    return recorded if works(recorded, few) and recorded.sound else None


def works(evaluator: Evaluator, few: Batch) -> bool:
    """Return whether a way to run networks can run these; the plain way has shown that they can read the input."""
    try:
        evaluator.run(copied(few))
    except _UNMAPPABLE:
        return False
    return True
