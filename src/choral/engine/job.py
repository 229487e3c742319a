"""Job: a checked run, with its executor and threads.

Sizes and layers alone decide, so that equal calls give equal members. On a CPU 'auto' stacks networks of fewer than 200,000 parameters
without convolutions: stacks of four MLPs of 2 x 128 and 2 x 256 take 0.80 of the time, of 2 x 512 1.3 times, LeNet-S 1.5 to 1.9 times.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from choral.base import devices
from choral.base.errors import ChoralError, InputError, PlanError, explained, first_line, unknown_argument, warn
from choral.base.types import Params
from choral.base.values import is_whole
from choral.data.inputs import Transforms
from choral.data.sources import Source, check_batches, source_of
from choral.data.splitting import partition
from choral.engine.blueprint import state_of
from choral.engine.compute import Compute, Parts, parts_of, threads_for
from choral.engine.flops import rehearse
from choral.engine.identity import differences, identity_of
from choral.engine.inspect import Calls, left_plain
from choral.engine.task import Task, check_runnable, make_task, some_points
from choral.engine.trainers import Pace, PlainTrainer, StackedTrainer, Trainer, stopped
from choral.engine.validation import AUTO, Folds, Validation, chosen, rules_of, set_apart, wants_validation
from choral.layers.convert import holds
from choral.plan.early_stopping import EarlyStopping, Measure
from choral.plan.phases import Fork, Phase, Train
from choral.plan.walk import trainings
from choral.recipes import recipe_of
from choral.recipes.recipe import Recipe

_LOG = logging.getLogger("choral")


@dataclass(frozen=True)
class Job:
    """What is trained, on which rows, and when it ends."""

    recipe: Recipe
    task: Task  # what stays the same over the run
    source: Source  # training points
    validation: Validation | Folds | None  # measures networks on held-out points
    rules: EarlyStopping  # when training ends before its budget, by what measure, and what is kept of it
    watched: dict[str, Any]  # what validation was asked for, as part of the run's identity
    seed: int  # root of every draw
    compute: Compute = Compute()  # where and how, as the user asked for

    @property
    def judged_on(self) -> Source:
        """The rows for estimates and warnings after training: held-out ones, or else training rows."""
        return self.source if self.validation is None else self.validation.source

    @property
    def selects(self) -> bool:
        """Whether networks are selected during training."""
        return self.validation is not None and any(phase.select for phase in trainings(self.recipe.plan))

    @property
    def is_together(self) -> bool:
        """Whether branches must be trained together, stacked or in turns: they stop together, or are selected."""
        return self.rules.by == "ensemble" or self.selects


def in_agreement(parts: Parts, make: Callable[[], Job]) -> Job:
    """Return the job of this process; InputError in all processes that share batches if one fails, or has another job."""
    if parts.size == 1:
        return make()
    failed = own = None
    try:
        job = make()
        own = identity_of(job)
    except Exception as error:  # the others wait to hear of it, whatever it is
        failed = error
    told: list[Any] = [None] * parts.size
    dist.all_gather_object(told, (str(failed), own))
    if failed is not None:
        raise failed
    for rank, (said, other) in enumerate(told):
        if other is None:
            raise InputError(f"process {rank} of {parts.size} cannot take part: {said}")
        if apart := differences(told[0][1], other):
            how = apart[0].replace(" was changed", " is another").replace(" was ", " is ").replace(", now ", " and ")
            said = f"processes 0 and {rank} were given different runs ({how})"
            raise InputError(f"{said}; give every process the same call with all of the data.")
    return job


def folds_of(cv: Any) -> tuple[int | None, Any]:
    """Return the number of folds of a cross-validation and the groups of its points; InputError for something else."""
    folds, groups = cv if isinstance(cv, tuple) and len(cv) == 2 else (cv, None)
    if folds is not None and not is_whole(folds, 2):
        raise InputError(f"cv is {cv!r}; give a whole number of 2 or more, (number, groups), or None.")
    return folds, groups


@dataclass(frozen=True)
class Call:
    """The arguments of `fit` that define a run, from which any process can make the job."""

    build: Any
    data: Any
    recipe: Recipe
    seed: int = 0
    transforms: Transforms = ()
    target: Any = None
    output: Any = None
    sample_weight: Any = None
    likelihood: Any = None
    validation: Any = AUTO
    cv: Any = None
    early_stopping: Any = None
    compute: Compute = Compute()
    table: Any = None

    def job(self, parts: Parts | None = None) -> Job:
        """Return the job; InputError or PlanError if it is invalid. One process reads whole batches if parts is None."""
        recipe, compute, seed, stop = self.recipe, self.compute, self.seed, self.early_stopping
        check_runnable(recipe)
        data, target, weight = self.data, self.target, self.sample_weight
        folds, groups = folds_of(self.cv)
        if groups is not None:
            data, target = source_of(data, target).grouped(groups), None
        whole = source_of(data, target, weight)
        wanted = folds is None and (recipe.is_open or wants_validation(stop))
        validation = chosen(self.validation, whole.points, wanted=wanted)
        rules = rules_of(validation, stop, folds)
        source, held = set_apart(whole, validation, seed, target, weight if type(weight) in (str, int) else None)
        recipe = recipe.settled(source.points, batch_size=None if whole.loader is None else whole.loader.batch_size)
        check_batches(whole, recipe.plan)
        if folds is not None:
            source = source.having(folds=partition(source, folds, seed))
        given = {"output": self.output, "likelihood": self.likelihood, "inputs": self.transforms}
        how = {"device": compute.device, "precision": compute.precision}
        parts = parts or parts_of(replace(compute, data_parallel=False))
        if parts.size > 1:  # a stack is trained in one process
            compute = replace(compute, executor="sequential")
        task = make_task(self.build, source, recipe, **given, **how, parts=parts)
        recipe = recipe.settled(source.points, task.parameters)
        _say_doubts(task, source, recipe)
        raw, source = source, source.reading(task.likelihood.read)
        ends = {"stop": None if rules.patience is None else rules.to_dict(), "restore_best": rules.restore_best}
        rules = replace(rules, monitor=rules.monitor or Measure.of(task.likelihood.prediction.score))
        rehearse(task, source, recipe.plan)
        watch: Validation | Folds | None = None
        watched: dict[str, Any] = {}
        if folds is not None:
            if any(phase.select is not None for phase in trainings(recipe.plan)):
                said = f"'{recipe.name}' chooses among networks by points that none of them sees"
                raise PlanError(f"{said}; give validation=0.2 instead of cv.")
            watch = Folds(task, raw, rules.monitor, recipe.combine)
            watched = watch.identity() | ends
        elif held is not None:
            watch = Validation(task, held, rules.monitor, recipe.combine)
            shown = validation if isinstance(validation, int | float) else "data of its own"
            watched = {"validation": shown, "held out": held.digest()} | ends
        return Job(recipe, task, source.placed(task.device), watch, rules, watched, seed, compute)


def _say_doubts(task: Task, source: Source, recipe: Recipe) -> None:
    known = source.targets()
    doubt = task.likelihood.doubt(some_points(source)[1] if known is None else known)
    for said in ([f"y: {doubt}"] if doubt else []) + [*task.findings.doubts]:
        warn(said)
    if plain := left_plain(task.blueprint.network(), task.structure):
        said = "%s leaves the weights of %s as they are, the same for every member and draw"
        _LOG.warning(said, recipe.name, ", ".join(plain))


OPTIONS = tuple(option.name for option in fields(Call))[3:]
"""What `fit` takes that decides the members of a run, or how they are trained."""


def call_of(build: Any, data: Any, recipe: Any, options: dict[str, Any]) -> Call:
    """Return the call that arguments of `fit` make; InputError for one that there is not."""
    options = dict(options)
    compute, device = options.get("compute") or Compute(), options.pop("device", None)
    options["compute"] = compute if device is None else replace(compute, device=device)
    for name in options:
        if name not in OPTIONS:
            raise InputError(unknown_argument("fit", name, OPTIONS))
    recipe, (folds, _) = recipe_of(recipe), folds_of(options.get("cv"))
    return Call(build, data, recipe if folds is None else recipe.in_folds(folds), **options)


WIDEST = 512  # branches stacked at once, at most
_BYTES = 2 << 30  # of stacked parameters, gradients and optimizer memory
STACKED = 200_000  # parameters of a network below which calls, not arithmetic, take the time of a step on a processor
_UNSTACKED = "executor='vectorized' cannot train this network"
_OFF, _ROUNDING = 0.02, 1e-3  # of a gradient, and of the largest one, that rounding may change


def _first_train(plan: Phase, branches: int = 1) -> tuple[Train, int] | None:
    """Return the first training phase that stands in a fork of more than one branch, and the branches."""
    match plan:
        case Train():
            return (plan, branches) if branches > 1 and plan.epochs else None
        case Fork():
            branches *= plan.branches
    found = (_first_train(phase, branches) for phase in plan.children if plan.runs)
    return next(filter(None, found), None)


def choose(job: Job, settled: str | None = None) -> tuple[str, int]:
    """Return the executor, from an earlier part of the run or as requested, and the largest number of branches it stacks."""
    task, found, wanted = job.task, _first_train(job.recipe.plan), settled or job.compute.executor
    network = task.blueprint.network()
    numbers = sum(p.numel() for p in network.parameters())
    widest = max(1, min(WIDEST, _BYTES // (16 * max(numbers, 1))))
    sequential = "sequential", WIDEST if job.is_together else 1
    if wanted == "sequential" or task.structure.own_batches:
        return sequential
    if wanted == "auto":
        heavy = numbers >= STACKED or holds(network, nn.modules.conv._ConvNd)
        slower = widest == 1 or (heavy and devices.is_processor(task.device))
        if slower or found is None or not found[0].optimizer.elementwise:
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
    """Raise InputError, before training, for a network that cannot be trained stacked."""
    task = job.task
    if task.ragged:
        raise InputError(f"{_UNSTACKED}: its batches may differ in shape; use executor='sequential'.")
    if task.findings.remembers:
        raise InputError(f"{_UNSTACKED}: its tensor {task.findings.remembers!r} changes in a call; make it a buffer.")
    many = _gradients(StackedTrainer, job, phase, keys=[0, 1])
    wrong = _differing(_gradients(PlainTrainer, job, phase, keys=[1]), many, task)
    if wrong:
        said = f"{_UNSTACKED}: stacked, its parameter {wrong!r} gets another gradient than alone (by a hook, or a list or dict)"
        raise InputError(f"{said}; use executor='sequential'.")


def _gradients(kind: type[Trainer], job: Job, phase: Train, *, keys: list[int]) -> Params:
    """Return the gradients that a trainer's first step, at a rate of 0, gives the last of equal networks with draws of these keys."""
    task, source = job.task, job.source
    state = state_of(task.blueprint.network())
    slots = {s: {n: torch.zeros_like(p) for n, p in state.params.items()} for s in task.objective.slots}
    trainer = kind(task, phase, [source.points] * len(keys))
    trainer.mount([state.having(slots=slots)] * len(keys), keys)
    order = torch.arange(min(source.points, phase.batch_size))
    stacked = len(keys) > 1
    x, y = next(iter(source.epoch(order.expand(len(keys), -1) if stacked else order, phase.batch_size)))

    def why(error: Exception) -> ChoralError:
        if not stacked:
            return stopped(error, "on a first batch,", x)
        said = f"{_UNSTACKED}: in {running.where or 'its loss'}, torch.func.vmap stops with '{first_line(error)}'"
        return InputError(f"{said}; use executor='sequential'.")

    with Calls(trainer.network) as running, explained(why):
        trainer.step(x, y, Pace(0, 0.0, 0.0))
    grads = {n: p.grad.detach() for n, p in trainer.trained.items() if p.grad is not None}
    return {n: (grad[-1] if stacked else grad).clone() for n, grad in grads.items()}


def _differing(alone: Params, stacked: Params, task: Task) -> str | None:
    """Return a parameter whose gradient in a stack differs beyond rounding: torch.func ignores what is no function of weights and inputs."""
    lost = next((name for name in alone if name not in stacked), None)
    if lost is not None or task.precision != "fp32":  # other gradients are too coarse to tell
        return lost
    own = {name: float(grad.abs().max()) for name, grad in alone.items() if grad.numel()}
    off = {name: float((alone[name] - stacked[name]).abs().max()) for name in own}
    least = _ROUNDING * max(own.values(), default=0.0)
    return next((name for name in own if off[name] > _OFF * own[name] + least), None)


def choose_threads(job: Job, *, stacked: bool) -> int:
    """Return how many threads torch's operations get in a run, whose branches may be trained stacked."""
    phases, found = trainings(job.recipe.plan), _first_train(job.recipe.plan) if stacked else None
    if not phases:
        return torch.get_num_threads()
    phase, branches = (phases[0], 1) if found is None else found
    rows = min(phase.batch_size, job.source.points)
    return threads_for(job.task.findings.operations, rows, job.task.device, together=branches)
