"""The walk of a run without its training: what a plan will cost, in operations, and what its operators refuse."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from choral.data.sources import Source
from choral.engine.context import BranchContext
from choral.engine.flops import Flops
from choral.engine.task import Task
from choral.plan.cost import batches_in
from choral.plan.phases import Collect, Fork, Operator, Phase, Starter, Train
from choral.plan.state import State
from choral.plan.walk import Place, Visitor, first, once, walk


@dataclass
class Forecast:
    """Counts of a plan that has not run.

    Attributes:
        train_flops: operations of all training.
        predict_flops: operations of one predicted point by all members, every draw counted.
        parameters: stored parameters; masked ones do not count.
    """

    train_flops: float = 0.0
    predict_flops: float = 0.0
    parameters: int = 0


def forecast(task: Task, source: Source, plan: Phase) -> Forecast:
    """Return what a plan costs, by counting the networks it will train.

    Operators whose effect on cost is known beforehand are applied to a network that is not trained; one branch of a fork
    stands for all of them. What depends on training (gates that close) counts as if it never came.
    """
    flops, found = Flops(task, source), Forecast()

    def train(phase: Train, place: Place, reached: _Reached) -> _Reached:
        state, times = reached
        found.train_flops += times * phase.epochs * _points(phase, state, source) * flops.train(state)
        return reached

    def collect(phase: Collect, place: Place, reached: _Reached) -> _Reached:
        state, times = reached
        assert state is not None
        found.parameters += times * state.stored
        found.predict_flops += times * task.structure.draws * flops.predict(state)
        return reached

    walk(plan, _Reached(None, 1), replace(_untrained(task, source), train=train, collect=collect))
    return found


def rehearse(task: Task, source: Source, plan: Phase) -> None:
    """Raise what operators say about the network (it has nothing to prune, say) before anything is trained for them."""
    found: list[bool] = []
    walk(plan, None, Visitor(change=lambda phase, _, __: found.append(phase.foreseen), rounds=once, branches=first))
    if any(found):
        walk(plan, _Reached(None, 1), replace(_untrained(task, source), rounds=once))


def _untrained(task: Task, source: Source) -> "Visitor[_Reached]":
    """Return a visitor that applies to an untrained network what does not depend on training."""

    def change(phase: Operator, place: Place, reached: _Reached) -> _Reached:
        state = reached.state
        if state is None or not phase.foreseen or not set(phase.needs) <= state.slots.keys():
            return reached
        return reached._replace(state=phase.apply(state, BranchContext(task, source, 0, place)))

    def start(phase: Starter, place: Place, reached: _Reached) -> _Reached:
        return reached._replace(state=BranchContext(task, source, 0, place).fresh())

    def branches(node: Fork, place: Place, reached: _Reached) -> Iterator[tuple[Place, _Reached]]:
        return first(node, place, reached._replace(times=reached.times * node.branches))

    return Visitor(change=change, start=start, branches=branches)


class _Reached(NamedTuple):
    """The network that a phase is reached with, and how many there are of its kind."""

    state: State | None
    times: int


def _points(phase: Train, state: State | None, source: Source) -> int:
    """Return the points of one epoch: those of the member's own part, without a last batch that is left out."""
    own = None if state is None else state.subset
    points = source.drawn(own)
    return min(batches_in(points, phase.batch_size) * phase.batch_size, points)
