"""Run networks from a record of their operations."""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from choral.base import batches
from choral.base.batches import Batch
from choral.engine.evaluators import ROWS, Evaluator, another, close, copied
from choral.engine.tracing import record

_RECORDS = 32  # shapes of inputs that are recorded, at most: those of padded sequences have no end
_RECORDED_INPUT = 1 << 18  # numbers in a chunk that is recorded, at most: recording holds all results at once


class RecordedEvaluator(Evaluator):
    """What another evaluator does, from a record of its operations: one row of a packed perceptron in a quarter of the time.

    Chunks are filled up to a power of two rows, so that a dozen records serve every number of rows, and equal inputs always take
    the same way, to the last bit.
    """

    def __init__(self, inner: Evaluator):
        super().__init__(inner.task, inner.store, inner.numbers)
        self.inner, self.rows = inner, inner.rows
        self.sound = True  # whether records do what the network does
        self._records: dict[Any, Callable[..., Tensor]] = {}
        self._recording = threading.Lock()

    def together(self, rows: int) -> int:
        """As many as the other evaluator runs together."""
        return self.inner.together(rows)

    def run(self, chunk: Batch) -> Tensor:
        """Run the record for as many rows as the chunk has, or the next larger one."""
        count = batches.rows(chunk)
        if not self.sound or not count or batches.size(chunk) > _RECORDED_INPUT:
            return self.inner.run(chunk)
        rows = 1 << (count - 1).bit_length()
        full = chunk if rows == count else batches.mapped(lambda t: _lengthened(t, rows), chunk)
        recorded = self._record(full)
        if recorded is None:
            return self.inner.run(chunk)
        with torch.no_grad():
            found = recorded(*batches.leaves(full))
        return found if rows == count else found.narrow(2, 0, count)

    def _record(self, full: Batch) -> Callable[..., Tensor] | None:
        shape = batches.signature(full)
        if shape not in self._records:
            with self._recording:
                if self.sound and shape not in self._records and len(self._records) < _RECORDS:
                    self._take(shape, full)
        return self._records.get(shape) if self.sound else None

    def _take(self, shape: Any, full: Batch) -> None:
        """Record a shape, and try the record on other values: what forward code read out of tensors is a constant in it."""
        other = another(full)
        try:
            taken = record(lambda *parts: self.inner.run(batches.filled(full, parts)), batches.leaves(full))
            with torch.no_grad():
                self.sound = close(taken(*batches.leaves(copied(other))), self.inner.run(other))
        except Exception:  # beside what make_fx raises, forward code may fail on values of our making in any way
            self.sound = False
        else:
            self._records[shape] = taken


def _lengthened(leaf: Tensor, rows: int) -> Tensor:
    """Return as many rows, the last one again and again; images stay with their channels last."""
    if leaf.dim() < 4 and leaf.device.type == "cpu":
        return leaf.index_select(0, _last_again(leaf.shape[0], rows))
    return torch.cat([leaf, leaf[-1:].expand(rows - len(leaf), *leaf.shape[1:])])


@lru_cache(maxsize=ROWS)
def _last_again(count: int, rows: int) -> Tensor:
    return torch.arange(rows).clamp_(max=count - 1)
