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
from choral.engine.rewriting import MANY
from choral.engine.tracing import record

Record = Callable[..., Tensor]

_RECORDS = 32  # shapes of inputs that are recorded, at most: those of padded sequences have no end
_RECORDED_INPUT = 1 << 18  # numbers in a chunk that is recorded, at most: recording holds all results at once
_PRIMES = {
    2: (11, 13, 17),
    MANY: (37, 41, 43),
}  # rows that are recorded for any number of them, by the fewest it may be


class RecordedEvaluator(Evaluator):
    """What another evaluator does, from a record of its operations: one row of a packed perceptron in a quarter of the time.

    Three records serve every number of rows: for one, for few and for many, since operations are laid out differently for these. Where the
    number cannot be left open - constants have it too - powers of two are recorded, and chunks filled up to the next: 20 perceptrons
    (8-50-1) would answer 10 rows 1.4 times slower so, 100 rows 1.3 times and 1,000 rows 1.5 times. Equal inputs always take the same
    way, to the last bit.
    """

    def __init__(self, inner: Evaluator):
        super().__init__(inner.task, inner.store, inner.numbers)
        self.inner, self.rows = inner, inner.rows
        self.sound = True  # whether records do what the network does
        self._records: dict[Any, Record | None] = {}
        self._recording = threading.Lock()

    def together(self, rows: int) -> int:
        """As many as the other evaluator runs together."""
        return self.inner.together(rows)

    def run(self, chunk: Batch) -> Tensor:
        """Run the record for any number of rows, or for as many as the chunk has when it is filled up."""
        count = batches.rows(chunk)
        if not self.sound or not count or batches.size(chunk) > _RECORDED_INPUT:
            return self.inner.run(chunk)
        least = 1 if count == 1 else 2 if count < MANY else MANY
        key = least, batches.signature(chunk, rows=False)
        if key not in self._records:
            self._keep(key, lambda: self._fixed(chunk) if least == 1 else self._freed(chunk, least))
        recorded = self._records.get(key) if self.sound else None
        if recorded is None:
            return self._filled(chunk, count)
        with torch.no_grad():
            return recorded(*batches.leaves(chunk))

    def _filled(self, chunk: Batch, count: int) -> Tensor:
        rows = 1 << (count - 1).bit_length()
        full = chunk if rows == count else batches.mapped(lambda t: _lengthened(t, rows), chunk)
        shape = batches.signature(full)
        if shape not in self._records:
            self._keep(shape, lambda: self._fixed(full))
        recorded = self._records.get(shape) if self.sound else None
        if recorded is None:
            return self.inner.run(chunk)
        with torch.no_grad():
            found = recorded(*batches.leaves(full))
        return found if rows == count else found.narrow(2, 0, count)

    def _keep(self, key: Any, take: Callable[[], Record | None]) -> None:
        """Keep what is taken, if anything can be: None stands for what cannot be recorded so."""
        with self._recording:
            if self.sound and key not in self._records and len(self._records) < _RECORDS:
                self._records[key] = take()

    def _fixed(self, full: Batch) -> Record | None:
        """Record as many rows; what cannot be recorded so never will be."""
        try:
            taken = record(self._of(full), batches.leaves(full))
            self.sound = self._agrees(taken, full)
        except Exception:  # beside what make_fx raises, forward code may fail on values of our making in any way
            self.sound = False
        return taken if self.sound else None

    def _freed(self, chunk: Batch, least: int) -> Record | None:
        """Record a prime number of rows that is no other size of the inputs', for any number of them."""
        sizes = {size for leaf in batches.leaves(chunk) for size in (*leaf.shape[1:], len(self.numbers))}
        rows = next((p for p in _PRIMES[least] if all(size % p for size in sizes)), None)
        if rows is None or rows * batches.size(chunk) > _RECORDED_INPUT * batches.rows(chunk):
            return None
        try:
            example = _of_rows(chunk, rows)
            taken = record(self._of(example), batches.leaves(example), rows=rows)
            return taken if self._agrees(taken, _of_rows(chunk, least)) else None
        except Exception:  # as above
            return None

    def _of(self, like: Batch) -> Callable[..., Tensor]:
        return lambda *parts: self.inner.run(batches.filled(like, parts))

    def _agrees(self, taken: Record, like: Batch) -> bool:
        """Try a record on other values: what forward code read out of tensors is a constant in it."""
        other = another(like)
        with torch.no_grad():
            return close(taken(*batches.leaves(copied(other))), self.inner.run(other))


def _of_rows(chunk: Batch, rows: int) -> Batch:
    """Return as many rows of a chunk, the last one again where there are too few."""
    return batches.mapped(lambda t: t[:rows] if len(t) >= rows else _lengthened(t, rows), chunk)


def _lengthened(leaf: Tensor, rows: int) -> Tensor:
    """Return as many rows, the last one again and again; images stay with their channels last."""
    if leaf.dim() < 4 and leaf.device.type == "cpu":
        return leaf.index_select(0, _last_again(leaf.shape[0], rows))
    return torch.cat([leaf, leaf[-1:].expand(rows - len(leaf), *leaf.shape[1:])])


@lru_cache(maxsize=ROWS)
def _last_again(count: int, rows: int) -> Tensor:
    return torch.arange(rows).clamp_(max=count - 1)
