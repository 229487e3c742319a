"""Answer for the networks of an ensemble: which evaluator suits them, how many rows and passes at once, and how many threads."""

import threading
from typing import Any

import torch
from torch import Tensor

from choral.base import batches, devices, tree
from choral.base.batches import Batch
from choral.engine.evaluate import Evaluator, PlainEvaluator, States, copied, suited
from choral.engine.task import Task
from choral.engine.threads import Threads, using

KEPT = 1 << 26  # numbers of all networks that are kept loaded, at most


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
        for evaluator in evaluators:
            with using(threads or self._settle_threads(evaluator, x, batch_size)):
                made = evaluator.outputs(x, batch_size)
            if len(evaluators) == 1:
                return made.flatten(0, 1)
            found |= dict(zip(evaluator.numbers, made))
        return torch.cat([found[i] for i in range(self._count)])

    def once(self, x: Batch, *, batch_size: int) -> Tensor:
        """Return what `outputs` returns, up to rounding, for a single call: nothing is kept or stacked for later ones."""
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
        plain = PlainEvaluator(self._task, self._store, numbers, keep=keep)
        plain.look(few)
        return plain if self._plain else suited(plain, few)
