"""Try one training call before a run begins: what fails, fails here, and state that members would share is said."""

import copy
import warnings

import torch

from choral.base import batches, draws, rng
from choral.base.errors import ChoralError, InputError
from choral.data.sources import Source
from choral.engine.fingerprint import attributes
from choral.engine.task import Task
from choral.plan.cost import batches_in
from choral.plan.phases import Phase
from choral.plan.walk import trainings

_ROWS = 4


def try_training(task: Task, source: Source, plan: Phase) -> None:
    """Call the loss of a copy of the network as training will, with as few rows as the smallest batch has, at most 4.

    Raises InputError if that fails, and warns of numbers and words that the network keeps in attributes and changes: they are in
    no checkpoint, and all members see them.
    """
    rows = _smallest(source.drawn(), plan)
    if not rows:
        return
    network = copy.deepcopy(task.blueprint.network()).train()
    before = attributes(network)
    x, y = source.example(min(rows, _ROWS))
    try:
        with torch.no_grad(), rng.seeded(0, "try"), draws.keyed(0):
            task.forward_loss(network, batches.moved(x, task.device), y.to(task.device))
    except ChoralError:
        raise
    except Exception as error:  # code of the user's may fail in any way
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the network cannot be trained on a batch of {len(y)} row(s): '{said}'; {_advice(len(y))}"
        ) from error
    after = attributes(network)
    changed = [n for n in after if after[n] != before.get(n)]
    if changed:
        was, now = before.get(changed[0], "absent"), after[changed[0]]
        warnings.warn(
            f"the attribute {changed[0]!r} of the network changes when it is called ({was} became {now}): all members share it, and "
            "checkpoints do not keep it, so members and resumed runs may differ; make it a buffer (register_buffer).",
            stacklevel=3,
        )


def _smallest(points: int, plan: Phase) -> int:
    """Return the rows of the smallest batch of a plan, 0 if it trains nothing."""
    sizes = [t.batch_size for t in trainings(plan) if t.epochs]
    return min((min(n, points - (batches_in(points, n) - 1) * n) for n in sizes), default=0)


def _advice(rows: int) -> str:
    if rows > 1:
        return "give data and a loss that fit its outputs."
    return "layers that normalise over a batch need two rows in each: give more rows, or a batch_size of 2 or more."
