"""Budgets of a comparison in training operations, and recipes that keep within them."""

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from choral.base.errors import InputError
from choral.base.types import Build
from choral.data.sources import source_of
from choral.engine.flops import Flops, forecast
from choral.engine.task import make_task
from choral.plan.cost import short
from choral.recipes import FEW, METHODS, make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

_OF_TASK = {"transforms": "inputs", "output": "output", "likelihood": "likelihood", "device": "device"}
"""Options of `choral.fit` that say how data and outputs are read, with their names in `make_task`."""
_SLACK = 1.005


class Spending:
    """Counts what recipes would spend on a network and data, in epochs of the plain network.

    Args:
        build: the network.
        data: the training data (x, y).
        options: those of `choral.fit`; the ones that say how data and outputs are read are used.
    """

    def __init__(self, build: Build | nn.Module, data: Any, options: Mapping[str, Any]):
        self._build = build
        self._source = source_of(data, options.get("target"))
        self._options = {own: options[name] for name, own in _OF_TASK.items() if options.get(name) is not None}
        self._plain: float | None = None

    @property
    def points(self) -> int:
        """Training points."""
        return self._source.points

    def epochs(self, recipe: Recipe) -> float:
        """Return the epochs of the plain network that cost as many operations as a recipe's training."""
        recipe = recipe.settled(self.points)
        task = make_task(self._build, self._source, recipe, **self._options)
        return forecast(task, self._source, recipe.plan).train_flops / self._one(recipe)

    def _one(self, recipe: Recipe) -> float:
        """Return the operations of an epoch of the plain network, without what only the recipe's objective adds."""
        if self._plain is None:
            plain = Recipe(name="plain", plan=recipe.plan)
            task = make_task(self._build, self._source, plain, **self._options)
            self._plain = max(Flops(task, self._source).train(None) * self._source.points, 1.0)
        return self._plain


def within(
    name: str,
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int | None,
    training: Training,
    spending: Spending | None = None,
    points: int | None = None,
    **said: Any,
) -> Recipe:
    """Return the recipe of a method that takes at most a budget.

    The budget is the operations of so many epochs of the plain network: a method that runs several members on each batch gets
    fewer epochs. Members that the user leaves open are as many as the method has by default, or as many as have the steps they
    need. A sparse method is not given more epochs for the operations that it saves.

    Args:
        name: of the method.
        budget: epochs of the plain network in all.
        epochs: length of one training instead.
        members: members where the method has a choice; None leaves it open.
        training: settings shared by all methods but those that have their own.
        spending: counts operations; None takes the budget for epochs, whatever they cost, and every default as it is.
        points: training points, if they are known: of few, a method may have options of its own (`Method.for_few`).
        said: settings (lr, optimizer, schedule) that replace also those that a method depends on.
    """
    if name not in METHODS:
        make(name)
    options: dict[str, Any] = {"epochs": epochs, "budget": budget, "training": METHODS[name].trained(training, **said)}
    known = points if spending is None else spending.points
    options |= METHODS[name].for_few if known is not None and known < FEW else {}
    chosen = METHODS[name].options.get("members")
    if members is not None and chosen is not None and chosen.default != 1:
        options["members"] = members
    if spending is None or members is not None or chosen is None or chosen.default == 1:
        return _affordable(name, options, spending)
    best = _possible(name, options, spending)
    count = chosen.default if best is None else best.members
    while count and count > 2 and (best is None or short(best.settled(spending.points).plan, spending.points)):
        count -= 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a number that is doubtful is no improvement
            found = _possible(name, options | {"members": count}, spending)
        if found and (not best or _sufficiency(found, spending.points) > _sufficiency(best, spending.points)):
            best = found
    return best or _affordable(name, options, spending)


def _possible(name: str, options: dict[str, Any], spending: Spending) -> Recipe | None:
    """Return a recipe within the budget, None if the budget is too small for its members or they are doubtful."""
    try:
        return _affordable(name, options, spending)
    except (InputError, UserWarning):
        return None


def _sufficiency(recipe: Recipe, points: int) -> float:
    """Return the part of the steps it needs that the worst training phase of a recipe has, at most 1."""
    return min((one.steps / one.least_steps for one in short(recipe.settled(points).plan, points)), default=1.0)


def _affordable(name: str, options: dict[str, Any], spending: Spending | None) -> Recipe:
    """Return a recipe within the budget of its epochs, or the cheapest there is."""
    recipe = make(name, **options)
    if spending is None or options["budget"] is None:
        return recipe
    wanted = budget = options["budget"]
    spent = spending.epochs(recipe)
    while spent > wanted * _SLACK and budget > 1:
        budget = max(1, min(budget - 1, int(budget * wanted / spent)))
        try:
            recipe = make(name, **options | {"budget": budget})
        except InputError:  # too few for its members: what it takes at least is a little more than the budget
            break
        spent = spending.epochs(recipe)
    return recipe
