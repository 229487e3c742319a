"""Costs before training: `show` prints a plan with its epochs, members, parameters and FLOPs; `forecast` counts them."""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from choral.base.types import Build
from choral.data.sources import Source, source_of
from choral.engine.flops import Flops, Reached, untrained
from choral.engine.task import Task, make_task
from choral.engine.validation import chosen, set_apart, wants_validation
from choral.plan.cost import batches_in, cost, warning
from choral.plan.early_stopping import EarlyStopping
from choral.plan.phases import Collect, Phase, Train
from choral.plan.walk import Place, walk
from choral.recipes import recipe_of
from choral.recipes.recipe import Recipe


def show(
    recipe: Recipe,
    build: Build | nn.Module | None = None,
    data: Any = None,
    *,
    early_stopping: EarlyStopping | None = None,
    validation: Any = "auto",
    target: str | int | None = None,
    output: Any = None,
    transforms: Any = (),
    likelihood: Any = None,
) -> str:
    """Return a recipe's plan as text, with its cost relative to one plain network.

    Args:
        recipe: the method.
        build: the network; adds the number of parameters.
        data: training data (x, y); adds the FLOPs of training and prediction.
        early_stopping: as in `choral.fit`; epochs and FLOPs are then upper bounds.
        validation: as in `choral.fit`; held-out rows are not counted.
        target, output, transforms, likelihood: as in `choral.fit`.

    >>> from choral.recipes import deep_ensemble
    >>> print(show(deep_ensemble(epochs=8, members=2)).splitlines()[0])
    deep_ensemble: 2 members x 8 epochs (2.0x one network)
    """
    recipe, source, stop = recipe_of(recipe), None, early_stopping
    if build is not None and data is not None:
        given = source_of(data, target)
        wanted = recipe.is_open or wants_validation(stop)
        source, _ = set_apart(given, chosen(validation, given.points, wanted=wanted), 0)
        recipe = recipe.settled(source.points)
    text = [str(recipe)]
    if stop is not None and stop.patience is not None:
        text.append(
            f"epochs are upper bounds: each training ends after {stop.patience} epochs without a better {stop.monitor.name if stop.monitor else 'score'} of "
            f"held-out points, by {stop.by}"
        )
    if build is None:
        return "\n".join(text)
    if source is None:
        return "\n".join([*text, _sizes(recipe, build)])
    options: dict[str, Any] = {"output": output, "inputs": transforms, "likelihood": likelihood}
    alone = make_task(build, source, Recipe(name="plain", plan=recipe.plan), **options)
    one = Flops(alone, source)
    whole = sum(p.numel() for p in alone.blueprint.network().parameters())
    found = forecast(make_task(build, source, recipe, **options), source, recipe.plan)
    epochs = found.train_flops / max(one.train(None) * source.points, 1)  # a network may do nothing that is counted
    text.append(
        f"parameters: {found.parameters:,} stored ({found.parameters / whole:.2f} x the plain network's {whole:,})"
    )
    text.append(
        f"training: {found.train_flops:.3g} FLOPs ({epochs:.1f} epochs of the plain network, {epochs / recipe.epochs:.4f} x the "
        f"FLOPs of {recipe.epochs}); prediction: {found.predict_flops / max(one.predict(None), 1):.2f} x the plain network"
    )
    lacking = warning(recipe.plan, source.points)
    return "\n".join([*text, *([f"warning: {lacking}"] if lacking else [])])


@dataclass
class Forecast:
    """Counts of a plan that has not run."""

    train_flops: float = 0.0  # of all training
    predict_flops: float = 0.0  # of one predicted point by all members, every draw counted
    parameters: int = 0  # that are stored; masked ones do not count


def forecast(task: Task, source: Source, plan: Phase) -> Forecast:
    """Return the cost of a plan by the networks it will train; effects of training (gates that close) are ignored."""
    flops, found = Flops(task, source), Forecast()

    def train(phase: Train, place: Place, reached: Reached) -> Reached:
        state, times = reached
        points = source.drawn(None if state is None else state.subset)  # without a last batch that is left out
        points = min(batches_in(points, phase.batch_size) * phase.batch_size, points)
        found.train_flops += times * phase.epochs * points * flops.train(state)
        return reached

    def collect(phase: Collect, place: Place, reached: Reached) -> Reached:
        state, times = reached
        assert state is not None
        found.parameters += times * state.stored
        found.predict_flops += times * task.structure.draws * flops.predict(state)
        return reached

    walk(plan, Reached(None, 1), replace(untrained(task, source), train=train, collect=collect))
    return found


def _sizes(recipe: Recipe, build: Build | nn.Module) -> str:
    import torch

    from choral.engine.blueprint import Blueprint
    from choral.structures.base import Independent

    def size(structure: Any) -> int:
        made = Blueprint(build, structure, device=torch.device("cpu"), images=False).network()
        return sum(p.numel() for p in made.parameters())

    plain, joint = size(Independent()), cost(recipe.plan).networks * size(recipe.structure)
    return f"parameters: {joint:,} stored ({joint / plain:.2f} x the plain network's {plain:,})"
