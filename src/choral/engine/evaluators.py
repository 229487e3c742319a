"""Ways to run the trained networks of an ensemble: one after the other, stacked, and by the number of rows; see also `replaying`.

An evaluator holds networks of equal shapes and returns (network, member * draws, batch, ...). States are never changed and every call
runs a module tree of its own, so that an ensemble may be asked from several threads at once. What a row gets does not depend
on the rows beside it, up to rounding: what choral's layers draw belongs to a pass, not to a row. Networks that are not like that
(whose forward code draws by the row, takes means over the batch, writes into its input, reads values out of tensors or keeps something between
calls) are found out on the first points, and run one by one as they are.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from choral.base import batches, draws, rng, tree
from choral.base.batches import Batch
from choral.base.keeping import Kept
from choral.base.mapping import vmap
from choral.base.streams import under
from choral.engine import forwards
from choral.engine.task import Task
from choral.engine.threads import operations
from choral.layers.conversion.calling import call_with, ties_of
from choral.plan.state import State

ROWS = 1024  # evaluated at once, at most
_DRAWN = 1 << 27  # bytes of drawn weights that are kept from call to call, at most


class States(Protocol):
    """Where states are, each under its number."""

    def get(self, number: int) -> State:
        """Return a state."""
        ...


class Trees:
    """Copies of one module tree that share its tensors: each call runs one of its own, so that calls never meet.

    `torch.func.functional_call` puts tensors into the modules it runs; two threads must not do that to the same ones.
    """

    def __init__(self, network: nn.Module):
        self.pristine = network.eval()
        self.forgetful = False  # whether every call gets tensors of its own too: the network writes into its buffers
        self._idle: list[nn.Module] = []

    @contextmanager
    def one(self) -> Iterator[nn.Module]:
        """Lend a tree to a block of code."""
        if self.forgetful:
            yield copy.deepcopy(self.pristine)
            return
        try:
            network = self._idle.pop()
        except IndexError:
            network = sharing(self.pristine)
        try:
            yield network
        finally:
            self._idle.append(network)


def sharing(network: nn.Module) -> nn.Module:
    """Return a copy of the modules that holds the very tensors of the original."""
    held = [*network.parameters(), *network.buffers()]
    return copy.deepcopy(network, {id(t): t for t in held})


@dataclass(frozen=True)
class Manners:
    """What forward code does beside computing, found out on a few points."""

    reads_only: bool = True  # it leaves its input as it is
    draws_by_key: bool = True  # all it draws can be caught
    remembers_nothing: bool = True  # it leaves its buffers as they are
    rows_alone: bool = True  # a row does not depend on the rows beside it

    @property
    def good(self) -> bool:
        """Whether it may be mapped, recorded and given rows to fill up a chunk."""
        return self == Manners()


class Evaluator(ABC):
    """Runs networks of equal shapes.

    Args:
        task: structure, transforms, device, precision.
        store: where the states are.
        numbers: which of them.
    """

    def __init__(self, task: Task, store: States, numbers: Sequence[int]):
        self.task, self.store, self.numbers = task, store, list(numbers)
        self.rows = ROWS
        self.each = 1  # passes mapped together
        self.catch = True  # whether the network draws by functions of torch
        self.manners = Manners()
        self.operations = 0.0  # of one row and pass of a network

    def together(self, rows: int) -> int:
        """Return of how many networks the products for some rows are one operation."""
        return 1

    @abstractmethod
    def run(self, chunk: Batch) -> Tensor:
        """Return the outputs of all networks for a few points (network, member * draws, batch, ...)."""

    def outputs(self, x: Batch, size: int) -> Tensor:
        """Return the outputs for all points, a chunk at a time."""
        rows = min(size, self.rows)
        if batches.rows(x) <= rows:
            return self.run(x)
        return torch.cat([self.run(chunk) for chunk in batches.chunks(x, rows)], 2)

    def call(
        self, network: Callable[[Batch], Tensor], key: int | Tensor, chunk: Batch, kept: Kept | None = None
    ) -> Tensor:
        """Return the outputs of all passes of a network (member * draws, batch, ...)."""
        structure, task = self.task.structure, self.task

        def once(draw: int | Tensor) -> Tensor:
            lending = nullcontext() if self.manners.draws_by_key else rng.seeded(int(key), "unkeyed", int(draw))
            with lending, draws.keyed(key, draw, catch=self.catch, kept=kept), task.autocast():
                own = chunk if self.manners.reads_only else copied(chunk)
                ready, _ = structure.feed(task.prepared(own, training=False), None)
                return task.widened(structure.unfold(network(ready)))

        return forwards.together(once, structure.draws, self.each)


class PlainEvaluator(Evaluator):
    """One network after the other; small ones stay loaded."""

    def __init__(self, task: Task, store: States, numbers: Sequence[int], *, keep: bool):
        super().__init__(task, store, numbers)
        self.keep, self._loaded, self._forgetful = keep, dict[int, Trees](), False
        self._drawn = Kept(_DRAWN if keep else 0)
        self._keys = {number: rng.key(0, "predict", number) for number in numbers}
        self._silent = False  # whether networks draw nothing and may share one input

    def trees(self, number: int) -> Trees:
        """Return a network with its values."""
        found = self._loaded.get(number)
        if found is None:
            state = self.store.get(number)
            found = Trees(self.task.blueprint.holding(state))
            found.forgetful = self._forgetful
            if self.keep:
                found = self._loaded.setdefault(number, found)
        return found

    def renew(self) -> None:
        """Take the values the store has now; shapes are those of before."""
        self._drawn.clear()  # what was drawn, was drawn from those of before
        for number, trees in self._loaded.items():
            state = self.store.get(number)
            with torch.no_grad():
                for name, t in (*trees.pristine.named_parameters(), *trees.pristine.named_buffers()):
                    t.copy_(state.params[name] if name in state.params else state.buffers[name])

    def _of(self, number: int, chunk: Batch) -> Tensor:
        with self.trees(number).one() as network:
            return self.call(network, self._keys[number], chunk, self._drawn)

    def run(self, chunk: Batch) -> Tensor:
        """Run them in turn."""
        with torch.no_grad():
            if self._silent:
                return torch.stack(self._silently(chunk))
            return torch.stack([self._of(number, chunk) for number in self.numbers])

    def _silently(self, chunk: Batch) -> list[Tensor]:
        """Return the outputs of networks that draw nothing; what they read is made ready once for all."""
        task, found = self.task, []
        with draws.keyed(self._keys[self.numbers[0]], catch=False):
            ready = self._ready(chunk)
            for number in self.numbers:
                with self.trees(number).one() as network, task.autocast():
                    found.append(task.widened(task.structure.unfold(network(ready))))
        return found

    def outputs(self, x: Batch, size: int) -> Tensor:
        """Take all points with one network before the next is loaded."""
        chunks = batches.chunks(x, min(size, self.rows))
        if len(chunks) == 1:
            return self.run(x)
        with torch.no_grad():
            return torch.stack([torch.cat([self._of(n, chunk) for chunk in chunks], 1) for n in self.numbers])

    def look(self, few: Batch) -> None:
        """Find out, on a few points, what the network does beside computing; a wrong input fails here."""
        trees = self.trees(self.numbers[0])
        before = {n: b.clone() for n, b in trees.pristine.named_buffers()}
        given = copied(few)
        with rng.seeded(0, "look") as lent, draws.keyed(0) as stream:
            self.operations = operations(trees.pristine, batches.rows(few), lambda: self._once(given))
        alone = self._is_alone(batches.part(few, slice(1)))
        now = dict(trees.pristine.named_buffers())
        self.catch = stream.caught > 0
        self.manners = Manners(
            reads_only=batches.equal(given, few),
            draws_by_key=lent.count == 0,
            remembers_nothing=all(torch.equal(before[n], now[n]) for n in before),
            rows_alone=alone,
        )
        drew = stream.site > 0 or self.task.structure.draws > 1
        self._silent = self.manners.good and not drew and not self.catch
        if not self.manners.remembers_nothing:
            with torch.no_grad():
                for n, b in before.items():
                    now[n].copy_(b)
            self._forgetful = True
            trees.forgetful = True

    def _is_alone(self, row: Batch) -> bool:
        """Return whether a row gets the same beside another one; not if the network cannot read the other one."""
        found = []
        try:
            for rows in (row, batches.joined([row, another(row)])):
                with rng.seeded(0, "look"), draws.keyed(0):
                    found.append(self._once(copied(rows))[:, :1])
        except Exception:  # the other row is of our making, and forward code may fail on it in any way
            return False
        return close(*found)

    def _once(self, few: Batch) -> Tensor:
        with torch.no_grad(), self.trees(self.numbers[0]).one() as network:
            return self.task.structure.unfold(network(self._ready(few)))

    def _ready(self, x: Batch) -> Batch:
        return self.task.structure.feed(self.task.prepared(x, training=False), None)[0]

    def drawn(self, few: Batch) -> int:
        """Return how many weights a pass of the network draws."""
        tried = Kept(1 << 60)
        with rng.seeded(0, "look"), draws.keyed(0), under(kept=tried):
            self._once(copied(few))
        return tried.bytes // 4

    def keeps(self, drawn: int) -> bool:
        """Return whether there is room to keep so many drawn weights of each pass."""
        return self.keep and 0 < 4 * drawn * self.task.structure.draws * len(self.numbers) <= _DRAWN

    def room(self, few: Batch) -> int:
        """Return how many passes to map together."""
        structure = self.task.structure
        with torch.no_grad(), self.trees(self.numbers[0]).one() as network:
            return forwards.room(network, 0, lambda: structure.unfold(network(self._ready(few))), structure.draws)


class StackedEvaluator(Evaluator):
    """Several small networks in one mapped call: 20 perceptrons answer one row 7 times faster than one after the other."""

    def __init__(self, task: Task, store: States, numbers: Sequence[int]):
        super().__init__(task, store, numbers)
        self._trees = Trees(task.blueprint.holding(store.get(self.numbers[0])))
        self._ties = ties_of(self._trees.pristine)
        self.renew()
        self._words = draws.words(*(rng.key(0, "predict", i) for i in numbers)).view(-1, 2).to(task.device)

    def together(self, rows: int) -> int:
        """All of them."""
        return len(self.numbers)

    def renew(self) -> None:
        """Take the values the store has now; shapes are those of before."""
        states = [self.store.get(i) for i in self.numbers]
        self.params = {n: t.to(self.task.device) for n, t in tree.stack([s.params for s in states]).items()}
        self._buffers = {n: t.to(self.task.device) for n, t in tree.stack([s.buffers for s in states]).items()}

    def run(self, chunk: Batch) -> Tensor:
        """Map all networks over the chunk."""
        with torch.no_grad(), self._trees.one() as network:

            def one(params: Any, buffers: Any, words: Tensor) -> Tensor:
                return self.call(lambda x: call_with(network, params | buffers, x, self._ties), words, chunk)

            return vmap(one)(self.params, self._buffers, self._words)


class SizedEvaluator(Evaluator):
    """One evaluator for few points, where calls take the time, and another for many, where arithmetic does.

    Args:
        few: for inputs of at most `turn` rows.
        many: for longer ones.
    """

    def __init__(self, few: Evaluator, many: Evaluator, *, turn: int):
        super().__init__(few.task, few.store, few.numbers)
        self.few, self.many, self.turn = few, many, turn

    def together(self, rows: int) -> int:
        """As many as the one for as many points runs together."""
        return self._one(rows).together(rows)

    def run(self, chunk: Batch) -> Tensor:
        """Run the one for as many points."""
        return self._one(batches.rows(chunk)).run(chunk)

    def outputs(self, x: Batch, size: int) -> Tensor:
        """Ask the one for as many points."""
        return self._one(min(batches.rows(x), size)).outputs(x, size)

    def _one(self, rows: int) -> Evaluator:
        return self.few if rows <= self.turn else self.many


def another(rows: Batch) -> Batch:
    """Return other values for as many rows."""
    return batches.mapped(lambda t: t.roll(1, 0) * 1.5 - 0.25 if t.is_floating_point() else torch.zeros_like(t), rows)


def copied(batch: Batch) -> Batch:
    """Return a batch with memory of its own."""
    return batches.mapped(torch.clone, batch)


def close(one: Tensor, other: Tensor) -> bool:
    """Return whether two ways to the same outputs agree."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
