"""Executors: how many branches of a fork are trained together; and what else is settled before a run, its kernel and threads.

'sequential' trains them one by one and keeps one network in memory. 'vectorized' trains equal-shaped branches stacked.
'auto' stacks what gains by it, by a rule on sizes and layers, so that equal calls give equal members. On a processor these are networks of
fewer than 200,000 parameters without convolutions: stacks of four perceptrons of 2 x 128 and 2 x 256 take 0.80 of the time, of 2 x 512 1.3 times, LeNet-S
1.5 to 1.9 times.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from choral.base import batches, devices
from choral.base.errors import ChoralError, InputError
from choral.base.order import Calls
from choral.base.types import Params
from choral.data.sources import Source
from choral.engine.blueprint import state_of
from choral.engine.compute import threads_for
from choral.engine.context import for_members
from choral.engine.run import WIDEST
from choral.engine.task import Task
from choral.engine.trainers import UNMAPPED, Pace, PlainTrainer, StackedTrainer, Trainer, explained
from choral.layers.convert import holds
from choral.plan.cost import batches_in
from choral.plan.phases import Fork, Phase, Train
from choral.plan.state import State
from choral.plan.walk import Place, Visitor, once, trainings, walk

_BYTES = 2 << 30  # of stacked parameters, gradients and optimizer memory
STACKED = 200_000  # parameters of a network below which calls, not arithmetic, take the time of a step on a processor
_OFF, _ROUNDING = 0.02, 1e-3  # of a gradient, and of the largest one, that rounding may change


@dataclass(frozen=True)
class Settled:
    """The executor a run uses: its name, and how many branches of a fork are trained together."""

    name: str
    width: Callable[[Fork, int], int]


def _sequential(fork: Fork, branches: int) -> int:
    return 1


def _first_train(plan: Phase) -> tuple[Train, int] | None:
    """Return the first training phase that stands in a fork of more than one branch, and the branches."""
    found: list[tuple[Train, int]] = []

    def train(phase: Train, place: Place, branches: int) -> int:
        if branches > 1 and phase.epochs:
            found.append((phase, branches))
        return branches

    def together(node: Fork, place: Place, branches: int) -> Iterator[tuple[Place, int]]:
        yield place, branches * node.branches

    walk(plan, 1, Visitor(train=train, rounds=once, branches=together))
    return found[0] if found else None


def choose(executor: str, task: Task, source: Source, plan: Phase, *, settled: str | None = None) -> Settled:
    """Return the executor to use.

    Args:
        executor: what the user asked for.
        settled: what an earlier part of the same run settled on; it is kept, so that a resumed run is the same.
    """
    numbers = sum(p.numel() for p in task.blueprint.network().parameters())
    widest = max(1, min(WIDEST, _BYTES // (16 * max(numbers, 1))))

    def together(fork: Fork, branches: int) -> int:
        return min(branches, widest)

    wanted = settled or executor
    if task.precision == "fp16":  # each network has a scale of its own
        if wanted == "vectorized":
            raise InputError(
                "precision='fp16' scales the losses of each network apart; give executor='sequential', or precision='bf16'."
            )
        return Settled("sequential", _sequential)
    if wanted == "sequential":
        return Settled("sequential", _sequential)
    if wanted == "vectorized":
        if settled is None:
            _check_stackable(task, source, plan)
        return Settled("vectorized", together)
    found = _first_train(plan)
    if found is None or widest == 1 or not found[0].optimizer.elementwise or task.ragged or task.findings.remembers:
        return Settled("sequential", _sequential)
    if devices.is_processor(task.device) and (numbers >= STACKED or _convolves(task)):
        return Settled("sequential", _sequential)
    try:
        _check_stackable(task, source, plan)
    except InputError:  # such as recurrent networks: they are trained one by one
        return Settled("sequential", _sequential)
    return Settled("vectorized", together)


def _check_stackable(task: Task, source: Source, plan: Phase) -> None:
    """Raise InputError, before anything is trained, for a network that two branches cannot train stacked."""
    found = _first_train(plan)
    if found is None:
        return
    if task.findings.remembers:
        raise InputError(
            f"executor='vectorized' cannot train this network: its attribute {task.findings.remembers!r}, a tensor, changes when it is called; make it "
            "a buffer (register_buffer), or use executor='sequential'."
        )
    state = state_of(task.blueprint.network())
    order = torch.arange(min(source.points, found[0].batch_size))
    with Calls(task.blueprint.network()) as running:
        try:
            many = _tried(StackedTrainer, task, source, found[0], [state] * 2, order.expand(2, -1), steps=1)
        except ChoralError:
            raise
        except UNMAPPED as error:
            said = str(error).strip().splitlines()[0]
            raise InputError(
                f"executor='vectorized' cannot train this network: in {running.where or 'its loss'}, torch.func.vmap stops "
                f"with '{said}'; use executor='sequential'."
            ) from error
    one = _tried(PlainTrainer, task, source, found[0], [state], order, steps=1, last=1)
    wrong = one.differs_from(many, task)
    if wrong:
        raise InputError(
            f"executor='vectorized' cannot train this network: stacked, its parameter {wrong!r} gets another gradient than alone (hooks of "
            "gradients, and weights that forward writes into or reads from a list or dict of its own, are passed over); use "
            "executor='sequential'."
        )


def choose_kernel(
    task: Task, source: Source, plan: Phase, *, settled: str | None = None
) -> tuple[str | None, dict[str, float]]:
    """Set how the joint network is run, if its structure leaves that to measuring; return the kernel and the seconds of each.

    Args:
        settled: what an earlier part of the same run settled on.
    """
    network, measured = task.blueprint.network(), dict[str, float]()
    kernels = task.structure.kernels(network)
    phases = trainings(plan) if kernels else []
    if not phases:
        return None, measured
    phase = phases[0]
    if settled is None:
        state = state_of(network)
        order = torch.arange(min(source.points, phase.batch_size))
        for kernel in kernels:
            task.structure.run_by(network, kernel)
            measured[kernel] = _tried(PlainTrainer, task, source, phase, [state], order).seconds
        settled = min(measured, key=measured.__getitem__)
    task.structure.run_by(network, settled)
    return settled, measured


def choose_threads(task: Task, source: Source, plan: Phase, *, stacked: bool) -> int:
    """Return how many threads torch's operations get in a run.

    Args:
        stacked: whether branches of a fork are trained stacked.
    """
    most, phases = torch.get_num_threads(), trainings(plan)
    if most == 1 or not devices.is_processor(task.device) or not phases:
        return most
    found = _first_train(plan) if stacked else None
    phase, branches = (phases[0], 1) if found is None else found
    return threads_for(task.findings.operations, min(phase.batch_size, source.points), together=branches)


def _convolves(task: Task) -> bool:
    """Return whether a network convolves."""
    return holds(task.blueprint.network(), nn.modules.conv._ConvNd)


@dataclass(frozen=True)
class Tried:
    """Some steps that a trainer took at a rate of 0.

    Attributes:
        seconds: of one step of one network, the fastest.
        gradients: of the last network in the last step, by parameter.
    """

    seconds: float
    gradients: Params

    def differs_from(self, other: "Tried", task: Task) -> str | None:
        """Return the parameter whose gradient is another one, beyond rounding; None if there is none.

        torch.func passes over what is not a function of weights and inputs: hooks of gradients, weights that forward writes into or
        reads from a list or dict of its own, the padding of some embeddings.
        """
        lost = next((name for name in self.gradients if name not in other.gradients), None)
        if lost is not None or task.precision != "fp32":  # other gradients are too coarse to tell
            return lost
        largest = max((float(g.abs().max()) for g in self.gradients.values() if g.numel()), default=0.0)
        for name, own in self.gradients.items():
            off = float((own - other.gradients[name]).abs().max()) if own.numel() else 0.0
            if off > _OFF * float(own.abs().max() if own.numel() else 0.0) + _ROUNDING * largest:
                return name
        return None


def _tried(
    kind: type[Trainer],
    task: Task,
    source: Source,
    phase: Train,
    states: list[State],
    order: torch.Tensor,
    *,
    steps: int = 4,
    last: int | None = None,
) -> Tried:
    """Return how fast some steps were, and what they would have changed.

    Args:
        kind: which trainer.
        task, source, phase: what is trained.
        states: of the networks.
        order: points of a batch, (row,) or (network, row).
        steps: how many.
        last: the number among branches that the only network's draws are of.
    """
    trainer = kind(task, phase, [source.points] * len(states))
    whole = phase.epochs * batches_in(source.points, phase.batch_size)
    # long phases are recorded; one step shows only that it can be done
    trainer.steps = whole if steps > 1 else 1
    slots = {s: {n: torch.zeros_like(p) for n, p in states[0].params.items()} for s in task.objective.slots}
    keys = list(range(len(states))) if last is None else [last]
    trainer.mount([s.having(slots=slots) for s in states], keys)
    rows = for_members(order, task.structure, stacked=order.dim() > 1)
    x, y = next(iter(source.epoch(rows, phase.batch_size)))
    if task.structure.own_batches and order.dim() > 1:
        x, y = batches.mapped(lambda t: t.unflatten(0, (len(order), -1)), x), y.unflatten(0, (len(order), -1))
    best = float("inf")
    for step in range(steps):
        started = time.perf_counter()
        with explained("on a first batch,", x) if kind is PlainTrainer else nullcontext():
            trainer.step(x, y, Pace(step, 0.0, 0.0))
        devices.synchronize(task.device)
        if step:
            best = min(best, time.perf_counter() - started)
    return Tried(best / len(states), trainer.gradients())
