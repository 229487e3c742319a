"""compare: several methods on the same network and data at the same budget, in one table."""

import inspect
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from choral import __version__
from choral.base.errors import DivergedError, InputError
from choral.base.types import Build
from choral.base.values import guarded, is_whole
from choral.callbacks import Bars
from choral.comparison.comparison import DIVERGED, Comparison, over_seeds, verdict
from choral.comparison.evaluation import Trial, judged, make_trial, row_of
from choral.data.images import holds_images, strange
from choral.data.problems import Problem
from choral.data.sources import as_inputs, source_of
from choral.data.tensors import arranged, check_same_order, columns_in
from choral.engine.compute import Compute, is_far
from choral.engine.events import Callback, one_of
from choral.engine.files import write_json
from choral.engine.flops import Flops
from choral.engine.folder import folder_name
from choral.engine.job import OPTIONS, Call, call_of
from choral.engine.task import Task, make_task
from choral.fit import check_options, train
from choral.plan.cost import short, steps_of, warning
from choral.preview import forecast
from choral.recipes import FEW, METHODS, make, recipe_of
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

_OF_TASK = {"transforms": "inputs", "output": "output", "likelihood": "likelihood", "device": "device"}
"""Options of `choral.fit` that say how data and outputs are read, with their names in `make_task`."""
_SLACK = 1.005


class Spending:
    """Counts the cost of recipes on a network and training data, in epochs of the plain network; `options` as in `choral.fit`."""

    def __init__(self, build: Build | nn.Module, data: Any, options: Mapping[str, Any]):
        self._build = build
        self._source = source_of(data, options.get("target"))
        self._options = {own: options[name] for name, own in _OF_TASK.items() if options.get(name) is not None}
        self.points, self._plain = self._source.points, 0.0
        self._tasks = dict[str, Task]()  # by structure and objective: the network is inspected once for all budgets

    def epochs(self, recipe: Recipe) -> float:
        """Return the epochs of the plain network that cost as many FLOPs as training by a recipe."""
        recipe = recipe.settled(self.points)
        if not self._plain:  # operations of an epoch, without what only the recipe's objective adds
            one = Flops(self._task(Recipe(name="plain", plan=recipe.plan)), self._source).train(None)
            self._plain = max(one * self.points, 1.0)
        return forecast(self._task(recipe), self._source, recipe.plan).train_flops / self._plain

    def _task(self, recipe: Recipe) -> Task:
        kind = repr((recipe.structure, recipe.objective))
        if kind not in self._tasks:
            self._tasks[kind] = make_task(self._build, self._source, recipe, **self._options)
        return self._tasks[kind]


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
    """Return the recipe of a method that costs at most a budget.

    A method that runs several members on each batch gets fewer epochs; a sparse method gets no more for the FLOPs that it saves.

    Args:
        budget: FLOPs, as a number of epochs of the plain network.
        epochs: length of one training instead.
        members: number of members, for methods that have a choice; None is the default, or as many as get enough steps.
        training: settings shared by all methods but those that have their own.
        spending: counts FLOPs; None counts epochs only and keeps all defaults.
        points: number of training rows, if known; a method may have other options for few rows (`Method.for_few`).
        said: settings (lr, optimizer, schedule) that also replace the settings that a method depends on.
    """
    make(name)  # raises for one that there is not
    options: dict[str, Any] = {"epochs": epochs, "budget": budget, "training": METHODS[name].trained(training, **said)}
    known = points if spending is None else spending.points
    options |= METHODS[name].for_few if known is not None and known < FEW else {}
    chosen = METHODS[name].options.get("members")
    if chosen is not None and chosen.default == 1:
        chosen = None
    if members is not None and chosen is not None:
        options["members"] = members
    if spending is None or members is not None or chosen is None:
        return _affordable(name, options, spending)
    best, most = _attempt(name, options, spending)
    count = chosen.default if best is None else best.members
    while count and count > 2 and most < 1:
        count -= 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a number that is doubtful is no improvement
            found, part = _attempt(name, options | {"members": count}, spending)
        best, most = (found, part) if part > most else (best, most)
    return best or _affordable(name, options, spending)


def _attempt(name: str, options: dict[str, Any], spending: Spending) -> tuple[Recipe | None, float]:
    """Return a recipe within the budget and its share of the steps it needs; None for the recipe if it has too many members."""
    try:
        recipe = _affordable(name, options, spending)
    except (InputError, UserWarning):
        return None, 0.0
    points = spending.points
    lacking = short(recipe.settled(points).plan, points)
    return recipe, min((steps_of(phase, points) / phase.least_steps for phase in lacking), default=1.0)


def _affordable(name: str, options: dict[str, Any], spending: Spending | None) -> Recipe:
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


def _lasting(recipe: Recipe, budget: int | None, spending: Spending | None) -> Recipe:
    if not recipe.enough or budget is None:
        return recipe
    made = recipe.lasting(budget)
    over = 1.0 if spending is None else spending.epochs(made) / budget
    return made if over <= _SLACK else recipe.lasting(max(1, int(budget / over)))


def recipes_for(
    methods: str | Sequence[str | Recipe], *, said: Mapping[str, Any] | None = None, **options: Any
) -> list[Recipe]:
    """Return recipes at the same budget; those given by name get the shared `options` of `within` and the settings in `said`.

    Recipes given as values stay as they are, except that those without epochs get the budget. `members` is used for methods that can have
    more than one. 'all' is every method.
    """
    if isinstance(methods, str | Recipe):
        methods = list(METHODS) if methods == "all" else [methods]
    if not isinstance(methods, Sequence) or not methods:
        raise InputError(f"methods is {methods!r}; give names of methods, recipes, or 'all'.")
    found = []
    for method in methods:
        if not isinstance(method, str):
            found.append(_lasting(recipe_of(method), options.get("budget"), options.get("spending")))
            continue
        try:
            found.append(within(method, **options, **(said or {})))
        except InputError as error:
            raise InputError(f"{method}: {error}") from error
    return found


@guarded
def compare(
    build: Build | nn.Module,
    data: Problem | tuple[Any, Any, Any, Any],
    methods: str | Sequence[str | Recipe],
    *,
    budget: int = 60,
    equal: Literal["operations", "epochs"] = "operations",
    members: int | None = None,
    training: Training = Training(),
    run_dir: str | Path | None = None,
    seed: int | Sequence[int] = 0,
    ood: Any = None,
    corruptions: Sequence[str] | str = "all",
    **options: Any,
) -> Comparison:
    """Train several methods with the same budget and return one table: its `rows`, and its `findings` as sentences.

    >>> x, y = np.random.default_rng(0).normal(size=(80, 3)).astype("f"), np.arange(80) % 2
    >>> data = x[:60], y[:60], x[60:], y[60:]
    >>> found = compare(lambda: nn.Linear(3, 2), data, ["single", "snapshot"], budget=4, progress=False)
    >>> [row["method"] for row in found.rows]
    ['single', 'snapshot']

    Args:
        build: the network, as in `fit`.
        data: (x_train, y_train, x_test, y_test) or a problem.
        methods: names or recipes; 'all' is all methods.
        budget: the budget of each method, in epochs of one plain network; a recipe with epochs of its own keeps them.
        equal: 'operations' gives all methods the same FLOPs, so that methods that run several members on each batch get fewer epochs;
            'epochs' gives them the same epochs.
        members: number of members, for methods that have a choice; None is the method's default, or as many as get enough steps.
        training: optimizer, learning rate, batch size and schedule of the methods given by name. Methods that depend on their own settings
            use only the batch size.
        run_dir: a folder for all runs, each of which can be resumed; `comparison.json` in it contains the table.
        seed: the seed of every method, or several. With several, the table contains means, standard deviations, and differences to a
            baseline (single, or the first method), paired by seed. Each seed has its own folder in run_dir.
        ood: inputs of another data set; by default they are made from the test inputs (`choral.data.images.strange`).
        corruptions: names of corruptions (`choral.corruptions`), 'all', or () for none; images only.
        options: further arguments of `fit`, for every method; a cluster in `compute` trains all methods and seeds in parallel.
    """
    check_options("compare", list(inspect.signature(compare).parameters)[:-1], options)
    (problem, columns), compute = _problem(data), options.get("compute") or Compute()
    if problem.likelihood is not None and options.get("likelihood") is None:
        options["likelihood"] = problem.likelihood
    spending = None if equal == "epochs" else Spending(build, problem.points, options)
    recipes = recipes_for(methods, budget=budget, members=members, training=training, spending=spending)
    trial = trial_of(problem, ood=arranged(ood, columns), corruptions=corruptions)
    owns, several = _checked_seeds(seed), not is_whole(seed)
    settings = {"data": problem.name, "budget": budget, "seed": owns[0], "training": training.to_dict()}
    settings |= {"choral": __version__, "train_rows": len(problem.y_train), "test_rows": len(problem.y_test)}
    settings |= {"equal": equal}
    if is_far(run_dir):
        raise InputError(f"run_dir is {run_dir}; a comparison is written into a folder of this machine: give a path.")
    place = None if run_dir is None else Path(run_dir)
    folders = {own: place / f"seed-{own}" if several and place is not None else place for own in owns}
    named = _named(recipes)
    if compute.cluster is not None:
        from choral.cluster.run import check_cluster, train_apart

        check_cluster(compute, run_dir, options.get("on_existing", "resume"))
        options["compute"] = replace(compute, cluster=None)
        known = {n: v for n, v in options.items() if n in (*OPTIONS, "device")} | {"table": problem.table}
        asked: list[tuple[Call, Path, Callback | None, Any]] = []
        for (own, folder), (name, recipe) in itertools.product(folders.items(), named.items()):
            assert folder is not None
            call = call_of(build, problem.points, recipe, known | {"seed": own})
            hear, where = heard(options.get("callbacks"), name, recipe), (folder / folder_name(name)).resolve()
            asked.append((call, where, hear, options.get("on_existing", "resume")))
        train_apart(asked, compute.cluster)
        options |= {"on_existing": "resume", "callbacks": None, "progress": False}  # all is trained, and was heard
    parts = {}
    for own, folder in folders.items():
        rows, lacking, details = _measured(build, problem, named, trial, folder, options | {"seed": own})
        parts[own] = Comparison(rows, settings | {"seed": own, "below": lacking}, details)
    names = [row["method"] for row in next(iter(parts.values())).rows if DIVERGED not in row]
    baseline = "single" if "single" in names else names[0]
    comparison = over_seeds(parts, baseline=baseline) if several else parts[owns[0]]
    best, found = verdict([part.rows for part in parts.values()], baseline=baseline)
    comparison = replace(comparison, details=comparison.details | {"best": best, "findings": found})
    if place is not None:
        write_json(place / "comparison.json", comparison.to_dict() | comparison.details, within=place)
    return comparison


def _checked_seeds(seed: Any) -> list[int]:
    found = list(seed) if np.iterable(seed) else [seed]
    differ = len(found) > 1 and len(set(found)) == len(found)
    if not all(map(is_whole, found)) or (np.iterable(seed) and not differ):
        raise InputError(f"seed is {seed!r}; give a whole number, or two or more different ones, such as (0, 1, 2).")
    return [int(s) for s in found]


def _problem(data: Any) -> tuple[Problem, dict[str, tuple[str, ...]]]:
    """Return data as a problem, and the column names of data frames among the training data."""
    if isinstance(data, Problem):
        return data, {}
    if not isinstance(data, tuple | list) or len(data) != 4:
        raise InputError(
            f"data is a {type(data).__name__}; give a tuple of arrays, (x_train, y_train, x_test, y_test)."
        )
    columns = columns_in(data[0]) | columns_in(data[1], "y")
    check_same_order(data[0], data[1])
    check_same_order(data[2], data[3])
    x_test, y_test = arranged(data[2], columns), arranged(data[3], columns, "y")
    inputs: list[Any] = [as_inputs(x) for x in (data[0], x_test)]
    x, x_test = (made.numpy() if isinstance(made, Tensor) else made for made in inputs)
    return Problem("arrays", x, np.asarray(data[1]), x_test, np.asarray(y_test)), columns


def _named(recipes: Sequence[Recipe]) -> dict[str, Recipe]:
    twins = [sum(r.name == recipe.name for r in recipes[:number]) for number, recipe in enumerate(recipes)]
    return {recipe.name + (f"_{twin + 1}" if twin else ""): recipe for recipe, twin in zip(recipes, twins)}


def heard(callbacks: Any, name: str, recipe: Recipe) -> Callback | None:
    """Return the callback of one method: a bar of its own if `callbacks` draws bars."""
    return callbacks(name, recipe.epochs, recipe.length) if isinstance(callbacks, Bars) else one_of(callbacks)


def _measured(
    build: Build | nn.Module,
    problem: Problem,
    recipes: Mapping[str, Recipe],
    trial: Trial,
    run_dir: Path | None,
    options: dict[str, Any],
) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, Any]]:
    """Train and score every recipe with one seed; return the rows, the warnings about budgets by method, and the details for a report."""
    rows, below, evaluations = [], dict[str, str](), {}
    for name, recipe in recipes.items():
        folder = None if run_dir is None else run_dir / folder_name(name)
        try:
            own = options | {"callbacks": heard(options.get("callbacks"), name, recipe)}
            ensemble = train(build, problem.points, recipe, run_dir=folder, table=problem.table, **own)
        except DivergedError as error:  # the other methods get their rows
            rows.append({"method": name, "members": recipe.members, "epochs": recipe.epochs, DIVERGED: str(error)})
            continue
        trained = len(problem.y_train) - ensemble.info.get("validation_rows", 0)
        if lacking := warning(ensemble.recipe.plan, trained):
            below[name] = lacking
        evaluations[name] = judged(folder, ensemble, trial)
        rows.append(row_of(ensemble, evaluations[name]) | {"method": name})
    if not evaluations:
        raise DivergedError("; ".join(f"{row['method']}: {row[DIVERGED]}" for row in rows))
    return rows, below, {"evaluation": evaluations}


def trial_of(problem: Problem, *, ood: Any = None, corruptions: Sequence[str] | str = "all") -> Trial:
    """Return the rows on which all methods are scored: test rows, out-of-distribution rows (`ood`, or made from them), corrupted images."""
    x, shape, name = problem.x_test, problem.image_shape, "the given second data set"
    if ood is None:
        ood, name = strange(x, shape=shape)
    images = isinstance(x, np.ndarray) and problem.task == "classification" and holds_images(x, shape=shape)
    if corruptions == "all" and not images:
        corruptions = ()
    strangers: dict[str, Any] = {"ood": ood, "ood_name": name, "corruptions": corruptions}
    return make_trial(x, problem.y_test, image_shape=shape, corrupted_rows=200, labels=problem.labels, **strangers)
