"""Job: all that a run needs, understood and checked before anything is trained."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from choral.base.arguments import is_whole
from choral.base.errors import InputError, PlanError, unknown_argument, warn
from choral.data.datasets import is_key
from choral.data.sources import Source, check_batches, source_of
from choral.data.splitting import partition
from choral.engine.compute import Compute
from choral.engine.flops import rehearse
from choral.engine.identity import differences, identity_of
from choral.engine.inspect import left_plain
from choral.engine.parallel import Parts, parts_of
from choral.engine.task import Task, check_runnable, make_task, some_points
from choral.engine.validation import AUTO, Folds, Rules, Validation, chosen, rules_of, set_apart, wants_validation
from choral.plan.walk import trainings
from choral.recipes import recipe_of
from choral.recipes.recipe import Recipe

_LOG = logging.getLogger("choral")


@dataclass(frozen=True)
class Job:
    """What is to be trained, on which points, and when it ends."""

    recipe: Recipe
    task: Task  # what stays the same over the run
    source: Source  # training points
    validation: Validation | Folds | None  # measures networks on held-out points
    rules: Rules  # when training ends before its budget, and what is kept of it
    watched: dict[str, Any]  # what validation was asked for, as part of the run's identity
    seed: int  # root of every draw
    compute: Compute = Compute()  # where and how, as the user asked for

    @property
    def judged_on(self) -> Source:
        """The points that tell how far off predictions are: held-out ones, or else those trained on."""
        return self.source if self.validation is None else self.validation.source

    @property
    def selects(self) -> bool:
        """Whether networks are chosen while they train."""
        return self.validation is not None and any(phase.select for phase in trainings(self.recipe.plan))

    @property
    def is_together(self) -> bool:
        """Whether branches must be trained side by side, stacked or in turns: they stop together, or are chosen among."""
        return (self.rules.stop is not None and self.rules.stop.by == "ensemble") or self.selects


def in_agreement(parts: Parts, make: Callable[[], Job]) -> Job:
    """Return the job that this process makes; InputError in all processes that share batches if one fails, or makes another job."""
    if parts.size == 1:
        return make()
    job, failed, own = None, None, None
    try:
        job = make()
        own = identity_of(job)
    except Exception as error:  # the others wait to hear of it, whatever it is
        failed = error
    told: list[Any] = [None] * parts.size
    dist.all_gather_object(told, (None if failed is None else str(failed), own))
    if failed is not None:
        raise failed
    assert job is not None
    for rank, (said, other) in enumerate(told):
        if said is not None:
            raise InputError(f"process {rank} of {parts.size} cannot take part: {said}")
        apart = differences(told[0][1], other)
        if apart:
            how = apart[0].replace(" was changed", " is another").replace(" was ", " is ").replace(", now ", " and ")
            raise InputError(
                f"processes 0 and {rank} were given different runs ({how}); give every process the same call with all of the data: choral shares batches out itself."
            )
    return job


def folds_of(cv: Any) -> tuple[int | None, Any]:
    """Return the number of folds of a cross-validation and the groups of its points; InputError for something else."""
    folds, groups = cv if isinstance(cv, tuple) and len(cv) == 2 else (cv, None)
    if folds is not None and not is_whole(folds, 2):
        raise InputError(f"cv is {cv!r}; give a whole number of 2 or more, (number, groups), or None.")
    return folds, groups


OPTIONS: dict[str, Any] = {
    "seed": 0,
    "transforms": (),
    "target": None,
    "output": None,
    "sample_weight": None,
    "likelihood": None,
    "validation": AUTO,
    "cv": None,
    "early_stopping": None,
    "compute": Compute(),
    "table": None,
}
"""What `fit` takes that decides the members of a run, or how they are trained, and what it is if it is left out."""


@dataclass(frozen=True)
class Call:
    """The arguments that make a run what it is, as `fit` got them: any process can understand them again."""

    build: Any
    data: Any
    recipe: Recipe
    options: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    @property
    def compute(self) -> Compute:
        """Where and how it is trained."""
        found: Compute = self["compute"]
        return found

    def job(self, parts: Parts | None = None) -> Job:
        """Return what is to be done; raises InputError or PlanError where it cannot be. One process takes whole batches if parts is None."""
        recipe, compute, seed, stop = self.recipe, self.compute, self["seed"], self["early_stopping"]
        check_runnable(recipe)
        data, target, weight = self.data, self["target"], self["sample_weight"]
        folds, groups = folds_of(self["cv"])
        if groups is not None:
            data, target = source_of(data, target).grouped(groups), None
        whole = source_of(data, target, weight)
        wanted = folds is None and (recipe.is_open or wants_validation(stop))
        validation = chosen(self["validation"], whole.points, wanted=wanted)
        rules = rules_of(validation, stop, folds)
        source, held = set_apart(whole, validation, seed, target, weight if is_key(weight) else None)
        recipe = recipe.settled(source.points, batch_size=None if whole.loader is None else whole.loader.batch_size)
        check_batches(whole, recipe.plan)
        if folds is not None:
            source = source.folded(partition(source, folds, seed))
        given = {name: self[name] for name in ("output", "likelihood")} | {"inputs": self["transforms"]}
        how = {"device": compute.device, "precision": compute.precision}
        parts = parts or parts_of(replace(compute, data_parallel=False))
        if parts.size > 1:  # a stack is trained in one process
            compute = replace(compute, executor="sequential")
        task = make_task(self.build, source, recipe, **given, **how, parts=parts)
        recipe = recipe.settled(source.points, task.parameters)
        _say_doubts(task, source, recipe)
        raw, source = source, source.reading(task.likelihood.read)
        rules = replace(rules, score=task.likelihood.prediction.score)
        rehearse(task, source, recipe.plan)
        watch: Validation | Folds | None = None
        watched = rules.identity(validation, held)
        if folds is not None:
            if any(phase.select is not None for phase in trainings(recipe.plan)):
                raise PlanError(
                    f"'{recipe.name}' chooses among networks by points that none of them sees, but every fold sees others; give "
                    "validation=0.2 instead of cv."
                )
            watch = Folds(task, raw, rules.measure, recipe.combine)
            watched = watch.identity(rules)
        elif held is not None:
            watch = Validation(task, held, rules.measure, recipe.combine)
        return Job(recipe, task, source.placed(task.device), watch, rules, watched, seed, compute)


def _say_doubts(task: Task, source: Source, recipe: Recipe) -> None:
    """Warn of targets and networks that are legal but doubtful."""
    known = source.targets()
    doubt = task.likelihood.doubt(some_points(source)[1] if known is None else known)
    for said in ([f"y: {doubt}"] if doubt else []) + [*task.findings.doubts]:
        warn(said)
    if plain := left_plain(task.blueprint.network(), task.structure):
        said = "%s leaves the weights of %s as they are, the same for every member and draw"
        _LOG.warning(said, recipe.name, ", ".join(plain))


def call_of(build: Any, data: Any, recipe: Any, options: dict[str, Any]) -> Call:
    """Return the call that arguments of `fit` make; InputError for one that there is not."""
    options = dict(options)
    compute, device = options.get("compute") or Compute(), options.pop("device", None)
    options["compute"] = compute if device is None else replace(compute, device=device)
    for name in options:
        if name not in OPTIONS:
            raise InputError(unknown_argument("fit", name, OPTIONS))
    recipe, (folds, _) = recipe_of(recipe), folds_of(options.get("cv"))
    return Call(build, data, recipe if folds is None else recipe.in_folds(folds), OPTIONS | options)
