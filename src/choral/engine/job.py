"""Job: all that a run needs, understood and checked before anything is trained."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

from choral.data.sources import Source, check_batches, source_of
from choral.data.weighing import is_key
from choral.engine.task import Task, check_runnable, make_task, some_points
from choral.engine.trying import say_what_is_lost, try_training
from choral.engine.validation import Rules, Validation, set_apart
from choral.recipes.recipe import Recipe


@dataclass(frozen=True)
class Job:
    """What is to be trained, on which points, and when it ends.

    Attributes:
        recipe: the method.
        task: what stays the same over the run.
        source: training points.
        validation: measures networks on held-out points; None does not.
        rules: when training ends before its budget, and what is kept of it.
        watched: what validation was asked for, as part of the run's identity.
    """

    recipe: Recipe
    task: Task
    source: Source
    validation: Validation | None
    rules: Rules
    watched: dict[str, Any]

    @property
    def judged_on(self) -> Source:
        """The points that tell how far off predictions are: held-out ones, or else those trained on."""
        return self.source if self.validation is None else self.validation.source


def understood(
    build: Any,
    data: Any,
    recipe: Recipe,
    rules: Rules,
    *,
    target: str | int | None,
    weights: Any,
    validation: Any,
    seed: int,
    **options: Any,
) -> Job:
    """Return the job that the arguments of `choral.fit` ask for; raises InputError or PlanError where it cannot be done.

    Args:
        build, data, target, weights, validation, seed: as in `choral.fit`.
        recipe: the method.
        rules: when training ends.
        options: further arguments of `make_task`.
    """
    check_runnable(recipe)
    whole = source_of(data, target, weights)
    check_batches(whole, recipe.plan)
    source, held = set_apart(whole, validation, seed, target, weights if is_key(weights) else None)
    task = make_task(build, source, recipe, **options)
    _say_doubt(task, source)
    source = source.reading(task.likelihood.read)
    rules = replace(rules, score=task.likelihood.prediction.score)
    say_what_is_lost(build, recipe)
    task = replace(task, remembers=try_training(task, source, recipe.plan))
    watch = None if held is None else Validation(task, held, rules.measure, recipe.combination.word)
    source = source.placed(task.device)
    return Job(recipe, task, source, watch, rules, rules.identity(validation, held))


def _say_doubt(task: Task, source: Source) -> None:
    """Warn of training targets that are legal but doubtful."""
    known = source.targets()
    doubt = task.likelihood.doubt(some_points(source)[1] if known is None else known)
    if doubt:
        warnings.warn(f"y: {doubt}", stacklevel=4)
