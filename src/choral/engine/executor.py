"""The executor and the threads of a run, chosen by sizes and layers alone, so that equal calls give equal members.

'sequential' trains branches one by one and keeps one network in memory; 'vectorized' trains equal-shaped branches stacked. On a processor
'auto' stacks networks of fewer than 200,000 parameters without convolutions: stacks of four MLPs of 2 x 128 and 2 x 256 take 0.80
of the time, of 2 x 512 1.3 times, LeNet-S 1.5 to 1.9 times.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from choral.base import devices
from choral.base.errors import ChoralError, InputError, explained, first_line
from choral.base.order import Calls
from choral.base.types import Params
from choral.engine.blueprint import state_of
from choral.engine.compute import threads_for
from choral.engine.job import Job
from choral.engine.task import Task
from choral.engine.trainers import UNMAPPED, Pace, PlainTrainer, StackedTrainer, Trainer, stopped
from choral.layers.convert import holds
from choral.plan.phases import Fork, Phase, Train
from choral.plan.walk import Place, Visitor, once, trainings, walk

WIDEST = 512  # branches stacked at once, at most
_BYTES = 2 << 30  # of stacked parameters, gradients and optimizer memory
STACKED = 200_000  # parameters of a network below which calls, not arithmetic, take the time of a step on a processor
_OFF, _ROUNDING = 0.02, 1e-3  # of a gradient, and of the largest one, that rounding may change


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


def choose(job: Job, settled: str | None = None) -> tuple[str, int]:
    """Return the executor, that which an earlier part of the run settled on or was asked for, and how many branches it stacks at most."""
    task, found, wanted = job.task, _first_train(job.recipe.plan), settled or job.compute.executor
    network = task.blueprint.network()
    numbers = sum(p.numel() for p in network.parameters())
    widest = max(1, min(WIDEST, _BYTES // (16 * max(numbers, 1))))
    sequential = "sequential", WIDEST if job.is_together else 1
    if task.precision == "fp16" and wanted == "vectorized":
        raise InputError(
            "precision='fp16' scales the losses of each network apart; give executor='sequential', or precision='bf16'."
        )
    if task.precision == "fp16" or wanted == "sequential" or task.structure.own_batches:
        return sequential
    if wanted == "auto":
        slower = numbers >= STACKED or holds(network, nn.modules.conv._ConvNd)
        if found is None or widest == 1 or not found[0].optimizer.elementwise or task.ragged or task.findings.remembers:
            return sequential
        if devices.is_processor(task.device) and slower:
            return sequential
    try:
        if found is not None and settled is None:
            _check_stackable(job, found[0])
    except InputError:  # such as recurrent networks: they are trained one by one
        if wanted == "auto":
            return sequential
        raise
    return "vectorized", WIDEST if job.is_together else widest


def _check_stackable(job: Job, phase: Train) -> None:
    """Raise InputError, before anything is trained, for a network that two branches cannot train stacked."""
    task = job.task
    if task.findings.remembers:
        raise InputError(
            f"executor='vectorized' cannot train this network: its tensor {task.findings.remembers!r} changes when it is called; make it a buffer, or use executor='sequential'."
        )
    with Calls(task.blueprint.network()) as running:
        try:
            many = _gradients(StackedTrainer, job, phase, keys=[0, 1])
        except ChoralError:
            raise
        except UNMAPPED as error:
            raise InputError(
                f"executor='vectorized' cannot train this network: in {running.where or 'its loss'}, torch.func.vmap stops "
                f"with '{first_line(error)}'; use executor='sequential'."
            ) from error
    wrong = _differing(_gradients(PlainTrainer, job, phase, keys=[1]), many, task)
    if wrong:
        raise InputError(
            f"executor='vectorized' cannot train this network: stacked, its parameter {wrong!r} gets another gradient than alone (torch.func passes over hooks, "
            "and weights that forward keeps in a list or dict); use executor='sequential'."
        )


def _gradients(kind: type[Trainer], job: Job, phase: Train, *, keys: list[int]) -> Params:
    """Return the gradients that a trainer's first step, at a rate of 0, gives the last of equal networks with draws of these keys."""
    task, source = job.task, job.source
    state = state_of(task.blueprint.network())
    slots = {s: {n: torch.zeros_like(p) for n, p in state.params.items()} for s in task.objective.slots}
    trainer = kind(task, phase, [source.points] * len(keys))
    trainer.steps = 1
    trainer.mount([state.having(slots=slots)] * len(keys), keys)
    order = torch.arange(min(source.points, phase.batch_size))
    stacked = len(keys) > 1
    x, y = next(iter(source.epoch(order.expand(len(keys), -1) if stacked else order, phase.batch_size)))
    with nullcontext() if stacked else explained(partial(stopped, where="on a first batch,", x=x)):
        trainer.step(x, y, Pace(0, 0.0, 0.0))
    return trainer.gradients()


def _differing(alone: Params, stacked: Params, task: Task) -> str | None:
    """Return the parameter whose gradient in a stack is another one beyond rounding: torch.func passes over what is no function of weights and inputs."""
    lost = next((name for name in alone if name not in stacked), None)
    if lost is not None or task.precision != "fp32":  # other gradients are too coarse to tell
        return lost
    largest = max((float(g.abs().max()) for g in alone.values() if g.numel()), default=0.0)
    for name, own in alone.items():
        off = float((own - stacked[name]).abs().max()) if own.numel() else 0.0
        if off > _OFF * float(own.abs().max() if own.numel() else 0.0) + _ROUNDING * largest:
            return name
    return None


def choose_threads(job: Job, *, stacked: bool) -> int:
    """Return how many threads torch's operations get in a run, whose branches may be trained stacked."""
    most, phases = torch.get_num_threads(), trainings(job.recipe.plan)
    if most == 1 or not devices.is_processor(job.task.device) or not phases:
        return most
    found = _first_train(job.recipe.plan) if stacked else None
    phase, branches = (phases[0], 1) if found is None else found
    return threads_for(job.task.findings.operations, min(phase.batch_size, job.source.points), together=branches)
