"""What an operator is lent while it acts on one branch."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from choral.base import draws, rng
from choral.base.batches import Batch, moved
from choral.base.draws import Part
from choral.base.errors import PlanError
from choral.base.order import Called, executed
from choral.base.types import Params
from choral.data.sources import Source
from choral.data.splitting import partition
from choral.data.tensors import Sampling, bounds
from choral.engine.task import Task
from choral.engine.trainers import sharing_of
from choral.plan.phases import Operator, Starter
from choral.plan.state import State
from choral.plan.variants import Variant
from choral.plan.walk import Place
from choral.structures.base import Structure


def target_shift(states: Sequence[State]) -> torch.Tensor | None:
    """Return what is added to the targets, (point, ...) for one branch and (branch, point, ...) for several."""
    values = [state.shift for state in states if state.shift is not None]
    return None if not values else values[0] if len(states) == 1 else torch.stack(values)


def weights_of(source: Source, subsets: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the weights of all points, (point,) or (branch, point), averaging 1 over the points a branch is trained on; None if all count alike."""
    held = source.weights
    if held is None:
        return None
    each = [held / (held if s is None else held[s]).mean() for s in subsets]
    return each[0] if len(each) == 1 else torch.stack(each)


def parts_in(points: int, batch_size: int, among: tuple[int, int]) -> list[tuple[int, Part | None]]:
    """Return where this process's part of each batch begins in the order, and which rows of the batch it is.

    >>> parts_in(10, 6, (1, 2))
    [(3, Part(start=3, rows=3, of=6)), (8, Part(start=2, rows=2, of=4))]
    """
    whole, own = bounds(points, batch_size), bounds(points, batch_size, among)
    if among[1] == 1:
        return [(a, None) for a, _ in whole]
    return [(c, Part(c - a, d - c, b - a)) for (a, b), (c, d) in zip(whole, own)]


def for_members(values: torch.Tensor, structure: Structure) -> torch.Tensor:
    """Return values (point, ...) as (member, point, ...) for structures whose members have batches of their own."""
    return values.expand(structure.members, *values.shape) if structure.own_batches else values


def picked(shift: torch.Tensor, order: torch.Tensor, start: int, y: torch.Tensor) -> torch.Tensor:
    """Return the shift, or weights, of the points of one batch, which begins at `start` of the order."""
    if order.dim() == 1:
        return shift[order[start : start + len(y)]]
    index = order[:, start : start + y.shape[1]]
    return shift[torch.arange(len(order)).unsqueeze(1), index]


def order_of(
    key: int, epoch: int, points: int, subset: torch.Tensor | None, sampling: Sampling | None = None
) -> torch.Tensor:
    """Return the points in the order of one epoch: each once, or as a rule draws them."""
    generator = rng.generator(key, "order", epoch)
    order = torch.randperm(points, generator=generator) if sampling is None else sampling.order(generator, subset)
    return order if subset is None else subset[order]


_BATCH = 256


def acted(phase: Starter | Operator, state: State | None, context: "BranchContext") -> State:
    """Return what a starter makes, or an operator of a state; draws from a global generator are refused: a resumed run would make other ones."""
    with rng.seeded(0, "watched") as unkeyed:
        if isinstance(phase, Starter):
            new = phase.begin(context)
        else:
            assert state is not None
            new = phase.apply(state, context)
    if unkeyed:
        raise PlanError(
            f"the operator {type(phase).__name__} drew from torch's global generator (by {unkeyed[0]}); draw with generator=context.generator('purpose')."
        )
    return new


class BranchContext:
    """The engine's side of `plan.phases.Context` for one branch at one place."""

    def __init__(
        self,
        task: Task,
        source: Source,
        seed: int,
        place: Place,
        variant: Variant = Variant(),  # noqa: B008  # frozen
        held: torch.Tensor | None = None,
    ):
        self._seen = torch.arange(source.points)  # points that may be looked at
        if held is not None:
            self._seen = self._seen[~torch.isin(self._seen, held)]
        self._task, self._source, self._seed = task, source, seed
        self._place, self._fork = place.words, place.siblings.words
        self.branch, self.variant = place.branch, variant
        self.points = source.points
        self.likelihood = task.likelihood

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of all training targets."""
        return (self.points, *self._source.example(1)[1].shape[1:])

    def generator(self, purpose: str) -> torch.Generator:
        """Return the generator of this place."""
        return rng.generator(self._seed, *self._place, purpose)

    def sibling_generator(self, purpose: str) -> torch.Generator:
        """Return a generator all branches of the innermost fork share."""
        return rng.generator(self._seed, *self._fork, "siblings", purpose)

    def partition(self, parts: int) -> torch.Tensor:
        """Return the part that each training point belongs to."""
        known = self._source.folds  # drawn by the targets as they are in the data, which rounding has not changed
        if known is not None and int(known.max()) + 1 == parts:
            return known
        return partition(self._source, parts, self._seed)

    def fresh(self) -> State:
        """Return a newly built network's state."""
        return self._task.blueprint.fresh(self._seed, *self._place)

    def given(self) -> State | None:
        """Return the state of the network the user handed over."""
        return self._task.blueprint.given(self._seed, *self._place)

    def network(self, state: State) -> nn.Module:
        """Return the joint network holding the state, in evaluation mode."""
        return self._task.blueprint.load(state).eval()

    def member(self, state: State, index: int) -> nn.Module:
        """Return one member as a plain network, in evaluation mode."""
        return self._task.structure.member(self.network(state), index).eval()

    def example(self) -> Batch:
        """Return the first training inputs as the joint network reads them."""
        with draws.keyed(rng.key(self._seed, *self._place, "example")):
            return self._task.fed(moved(self._source.example()[0], self._task.device))

    def calls(self, state: State) -> Sequence[Called]:
        """Return the calls of modules: those that the inspection saw, where the joint network is the plain one."""
        known = () if self._task.structure.converts or state.form else self._task.findings.calls
        return known or executed(self.network(state), self.example())

    def inputs(self, points: int | None = None) -> Iterator[Batch]:
        """Yield training inputs as the joint network reads them: all in order, or some at random."""
        order = self._seen
        if points is not None and points < len(order):
            order = order[torch.randperm(len(order), generator=self.generator("inputs"))[:points]]
        with draws.keyed(rng.key(self._seed, *self._place, "inputs")):
            for x, _ in self._source.epoch(order, _BATCH):
                yield self._task.fed(moved(x, self._task.device))

    def gradients(self, state: State, batches: int) -> Params:
        """Return the likelihood's gradient summed over some training batches."""
        network = self._task.blueprint.load(state).train()
        sharing = sharing_of(self._task.structure, network)
        network.zero_grad(set_to_none=True)
        seen = self._seen
        order = seen[torch.randperm(len(seen), generator=self.generator("gradients"))[: batches * _BATCH]]
        key = rng.key(self._seed, *self._place, "gradients")
        weights, device = weights_of(self._source, [None]), self._task.device
        for i, (x, y) in enumerate(self._source.epoch(order, _BATCH)):
            own = None if weights is None else picked(weights, order, i * _BATCH, y).to(device)
            with rng.seeded(key, "unkeyed", i), draws.keyed(key, i):
                loss = self._task.forward_loss(network, moved(x, device), y.to(device), own)
            sharing.likelihood(loss).backward()
        sharing.weigh(dict(network.named_parameters()))
        grads = {
            n: torch.zeros(p.shape, dtype=p.dtype) if p.grad is None else p.grad.detach().cpu().contiguous().clone()
            for n, p in network.named_parameters()
        }
        network.zero_grad(set_to_none=True)
        return grads
