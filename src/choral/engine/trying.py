"""Try one training call before a run begins: what fails, fails here, and state that members would share is said."""

import copy
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import batches, draws, rng
from choral.base.errors import ChoralError, InputError
from choral.base.interface import is_lazy
from choral.data.sources import Source
from choral.engine.blueprint import redraw
from choral.engine.fingerprint import attributes
from choral.engine.task import Task
from choral.plan.cost import batches_in
from choral.plan.phases import Phase
from choral.plan.walk import Visitor, trainings, walk
from choral.recipes.recipe import Recipe

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


_TELLING = 64  # numbers of a tensor from which its spread tells a drawn one from a trained one


def say_what_is_lost(build: Any, recipe: Recipe) -> None:
    """Warn if the network handed over has weights of its own, and the recipe draws all of them anew."""
    taken: list[bool] = []
    walk(recipe.plan, None, Visitor(start=lambda phase, _, __: taken.append(phase.takes_given)))
    if isinstance(build, nn.Module) and not any(taken) and _has_learned(build):
        warnings.warn(
            f"the network handed over has weights of its own, but '{recipe.name}' draws its weights anew; use a recipe that starts from "
            "them (pretrained=True, or parent_epochs=0, where there is one), or give a function that builds the network.",
            stacklevel=3,
        )


def _has_learned(network: nn.Module) -> bool:
    """Return whether weights are others than a new network of these layers would have: by traces of training, or by size."""
    if is_lazy(network):
        return False
    if any(p.grad is not None for p in network.parameters()):
        return True
    new = copy.deepcopy(network)
    with rng.seeded(0, "new"):
        redraw(new)
    return any(_is_of_other_size(a, b) for a, b in zip(network.state_dict().values(), new.state_dict().values()))


def _is_of_other_size(given: Tensor, new: Tensor) -> bool:
    """Return whether the spread of two tensors differs by more than chance explains, or one is constant and they differ."""
    if given.shape != new.shape or not given.is_floating_point() or given.numel() < 2:
        return not torch.equal(given, new) if given.shape == new.shape and not given.is_floating_point() else False
    one, other = (float(t.double().square().mean().sqrt()) for t in (given, new))
    if float(new.double().std()) == 0:
        return not torch.allclose(given, new)
    if given.numel() < _TELLING:  # the spread of a few drawn numbers says nothing
        return False
    return abs(one / other - 1) > 0.02 + 6 / math.sqrt(given.numel())


def _smallest(points: int, plan: Phase) -> int:
    """Return the rows of the smallest batch of a plan, 0 if it trains nothing."""
    sizes = [t.batch_size for t in trainings(plan) if t.epochs]
    return min((min(n, points - (batches_in(points, n) - 1) * n) for n in sizes), default=0)


def _advice(rows: int) -> str:
    if rows > 1:
        return "give data and a loss that fit its outputs."
    return "layers that normalise over a batch need two rows in each: give more rows, or a batch_size of 2 or more."
