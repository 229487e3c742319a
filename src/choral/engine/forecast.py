"""What a plan will cost, in operations, before any training: the walk of a run without its training."""

from dataclasses import dataclass

from choral.data.sources import Source
from choral.engine.context import BranchContext
from choral.engine.flops import Flops
from choral.engine.task import Task
from choral.plan.cost import batches_in
from choral.plan.phases import Collect, Fork, Operator, Phase, Repeat, Seq, Train
from choral.plan.state import State

Place = tuple[int | str, ...]


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

    def walk(node: Phase, state: State | None, branch: Place, suffix: Place, times: int) -> State | None:
        if isinstance(node, Seq):
            for i, child in enumerate(node.phases):
                state = walk(child, state, branch, (*suffix, i), times)
        elif isinstance(node, Repeat):
            for i in range(node.times):
                state = walk(node.body, state, branch, (*suffix, f"r{i}"), times)
        elif isinstance(node, Fork):
            walk(node.body, state, (*branch, *suffix, "f0"), (), times * node.branches)
        elif isinstance(node, Train):
            found.train_flops += times * node.epochs * _points(node, state, source) * flops.train(state)
        elif isinstance(node, Collect):
            assert state is not None
            found.parameters += times * state.stored
            found.predict_flops += times * task.structure.draws * flops.predict(state)
        elif isinstance(node, Operator) and (node.starts or node.foreseen):
            context = BranchContext(task, source, 0, branch, suffix)
            state = context.fresh() if node.starts else node.apply(state, context)
        return state

    walk(plan, None, (), (), 1)
    return found


def _points(phase: Train, state: State | None, source: Source) -> int:
    """Return the points of one epoch: those of the member's own part, without a last batch that is left out."""
    own = None if state is None else state.slots.get("subset")
    points = source.points if own is None else len(own["indices"])
    return min(batches_in(points, phase.batch_size) * phase.batch_size, points)
