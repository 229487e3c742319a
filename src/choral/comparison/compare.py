"""compare: several methods on the same network and data at equal budget, in one table."""

import contextlib
import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from choral import __version__
from choral.base.arguments import guarded, is_whole
from choral.base.errors import DivergedError, InputError, RunError
from choral.base.types import Build
from choral.callbacks import one_of
from choral.comparison.comparison import DIVERGED, Comparison, findings, over_seeds
from choral.comparison.evaluation import (
    Trial,
    corruption_errors,
    judged,
    make_trial,
    measure,
    row_of,
    rows_of,
    shuffled,
)
from choral.data.frames import arranged, columns_in
from choral.data.images import holds_images, strange
from choral.data.problems import Problem
from choral.data.sources import source_of
from choral.engine.compute import Compute, is_far
from choral.engine.events import Callback
from choral.engine.files import read_json, write_json
from choral.engine.flops import Flops, forecast
from choral.engine.folder import folder_name
from choral.engine.job import OPTIONS, Call, call_of
from choral.engine.task import make_task
from choral.fit import check_options, train
from choral.plan.cost import short, steps_of, warning
from choral.recipes import FEW, METHODS, make, recipe_of
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

__all__ = ["Comparison", "compare", "measure", "recipes_for", "trial_of"]


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
    found = short(recipe.settled(points).plan, points)
    return min((steps_of(phase, points) / phase.least_steps for phase in found), default=1.0)


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


def recipes_for(
    methods: str | Sequence[str | Recipe],
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int | None,
    training: Training,
    spending: Spending | None = None,
    said: Mapping[str, Any] | None = None,
    points: int | None = None,
) -> list[Recipe]:
    """Return recipes at the same budget, or of the same epochs; names take the shared settings (`within`), recipes stay as they are.

    `members` is given to the methods for which more than one member makes sense. One name is that method, 'all' all of them.
    `said` are settings that replace also those that a method depends on, `points` how many there are to train on where `spending` does
    not tell.
    """
    if isinstance(methods, str | Recipe):
        methods = list(METHODS) if methods == "all" else [methods]
    if not isinstance(methods, Sequence):
        raise InputError(f"methods is {methods!r}; give names of methods, recipes, or 'all'.")
    found = []
    for method in methods:
        if not isinstance(method, str):
            found.append(recipe_of(method))
            continue
        try:
            options: dict[str, Any] = {"members": members, "training": training, "spending": spending, "points": points}
            found.append(within(method, epochs=epochs, budget=budget, **options, **(said or {})))
        except InputError as error:
            raise InputError(f"{method}: {error}") from error
    if not found:
        raise InputError("methods is empty; name at least one method.")
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
    """Fit several methods with the same budget and return one table.

    >>> x, y = np.random.default_rng(0).normal(size=(80, 3)).astype("f"), np.arange(80) % 2
    >>> data = x[:60], y[:60], x[60:], y[60:]
    >>> found = compare(lambda: nn.Linear(3, 2), data, ["single", "snapshot"], budget=4, progress=False)
    >>> [row["method"] for row in found.rows]
    ['single', 'snapshot']

    Args:
        build: the network, as for `fit`.
        data: (x_train, y_train, x_test, y_test) or a problem.
        methods: names or recipes; 'all' is all methods.
        budget: of each method named, in epochs of one plain network.
        equal: what is the same for all: 'operations' gives methods that run several members on each batch fewer epochs, and sparse
            ones no more; 'epochs' counts epochs alone.
        members: members where a method has a choice; if None its own default, or as many as have the steps they need.
        training: optimizer, learning rate, batch size and schedule shared by all but the methods that depend on their own, which take the batch
            size.
        run_dir: a folder for all runs: each resumes by itself; `comparison.json` holds the table.
        seed: root seed of every method; or several: the table then holds means, with standard deviations and the differences to a
            baseline (single, or the first method), paired by seed. Each seed has a folder of its own in run_dir.
        ood: inputs of another data set; made from the test inputs (`choral.data.images.strange`) if None.
        corruptions: names of corruptions, 'all' or none; images only.
        options: further arguments of `fit`, for every method; `sample_weight` may be a pair, of training rows and of test rows; a cluster in `compute` trains all methods and seeds side by side.

    Returns:
        The table as `rows`, `findings` in words, and what the report shows.
    """
    return compared(**locals())


def compared(
    build: Build | nn.Module,
    data: Problem | tuple[Any, Any, Any, Any],
    methods: str | Sequence[str | Recipe],
    *,
    budget: int,
    equal: Literal["operations", "epochs"],
    members: int | None,
    training: Training,
    run_dir: str | Path | None,
    seed: int | Sequence[int],
    options: dict[str, Any],
    ood: Any = None,
    corruptions: Sequence[str] | str = "all",
    hearing: Callable[[str], Callback] | None = None,
) -> Comparison:
    """Return what `compare` does; `hearing` gives the callback of each method by its name."""
    check_options("compare", list(inspect.signature(compare).parameters)[:-1], options)
    problem, compute = _problem(data), options.get("compute") or Compute()
    counted = options.get("sample_weight")
    if isinstance(counted, tuple) and len(counted) == 2:
        options["sample_weight"], counted = counted
    else:
        counted = None
    if problem.likelihood is not None and options.get("likelihood") is None:
        options["likelihood"] = problem.likelihood
    spending = spending_of(build, problem, options, equal=equal)
    recipes = recipes_for(methods, budget=budget, members=members, training=training, spending=spending)
    strange_rows = arranged(ood, _columns(data))
    trial = trial_of(problem, weights=counted, ood=strange_rows, corruptions=corruptions)
    owns, several = _checked_seeds(seed), not is_whole(seed)
    settings = {"data": problem.name, "budget": budget, "seed": owns[0], "training": training.to_dict()}
    settings |= {"choral": __version__, "train_rows": len(problem.y_train), "test_rows": len(problem.y_test)}
    settings |= {"equal": equal, "below": below(recipes, len(problem.y_train))}

    def of_seed(own: int, folder: Path | None) -> Comparison:
        rows, details = _measured(build, problem, recipes, trial, folder, hearing, options | {"seed": own})
        return Comparison(rows, settings | {"seed": own}, details)

    if is_far(run_dir):
        raise InputError(f"run_dir is {run_dir}; a comparison is written into a folder of this machine: give a path.")
    place = None if run_dir is None else Path(run_dir)
    folders = {own: place / f"seed-{own}" if several and place is not None else place for own in owns}
    if compute.cluster is not None:
        extends = options.get("on_existing") == "extend"
        from choral.cluster.run import check_cluster, train_apart

        check_cluster(
            compute.cluster, run_dir, time_limit=compute.time_limit, on_existing="extend" if extends else None
        )
        options = options | {"compute": replace(compute, cluster=None)}
        train_apart(_asked(build, problem, recipes, folders, hearing, options), compute.cluster)
        options, hearing = options | {"on_existing": "resume"}, _silent  # all is trained, and was heard
    parts = {own: of_seed(own, folder) for own, folder in folders.items()}
    names = [row["method"] for row in next(iter(parts.values())).rows if DIVERGED not in row]
    baseline = "single" if "single" in names else names[0]
    comparison = over_seeds(parts, baseline=baseline) if several else parts[owns[0]]
    found = findings([part.rows for part in parts.values()], baseline=baseline)
    comparison = replace(comparison, details=comparison.details | {"findings": found})
    if place is not None:
        _write_changes(place / "comparison.json", comparison.to_dict() | comparison.details)
    return comparison


def spending_of(
    build: Build | nn.Module, problem: Problem, options: Mapping[str, Any], *, equal: str = "operations"
) -> Spending | None:
    """Return what counts the operations of methods on a problem; None where budgets are counted in epochs."""
    return None if equal == "epochs" else Spending(build, problem.points, options)


def below(recipes: Sequence[Recipe], points: int) -> dict[str, str]:
    """Return, by method, a sentence on a budget that is below what it needs."""
    said = {recipe.name: warning(recipe.settled(points).plan, points) for recipe in recipes}
    return {name: sentence for name, sentence in said.items() if sentence}


def _checked_seeds(seed: Any) -> list[int]:
    if is_whole(seed):
        return [int(seed)]
    found = list(seed) if isinstance(seed, Iterable) and not isinstance(seed, str) else []
    if len(found) < 2 or not all(map(is_whole, found)) or len(set(found)) < len(found):
        raise InputError(f"seed is {seed!r}; give a whole number, or two or more different ones, such as (0, 1, 2).")
    return [int(s) for s in found]


def _problem(data: Any) -> Problem:
    if isinstance(data, Problem):
        return data
    if not isinstance(data, tuple | list) or len(data) != 4:
        parts = f"{len(data)} parts" if isinstance(data, tuple | list) else f"a {type(data).__name__}"
        raise InputError(
            f"data is {parts}; methods are compared on rows they were not trained on: give (x_train, y_train, x_test, y_test), or a "
            "Problem."
        )
    x_train, y_train, x_test, y_test = data
    columns = _columns(data)
    x_test, y_test = arranged(x_test, columns), arranged(y_test, columns, "y")
    return Problem("arrays", rows_of(x_train), np.asarray(y_train), rows_of(x_test), np.asarray(y_test))


def _columns(data: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the columns of training data that are data frames."""
    return {} if isinstance(data, Problem) else columns_in(data[0]) | columns_in(data[1], "y")


def _named(recipes: Sequence[Recipe]) -> list[tuple[str, Recipe]]:
    """Return the recipes with names that differ."""
    twins = [sum(r.name == recipe.name for r in recipes[:number]) for number, recipe in enumerate(recipes)]
    return [(recipe.name + (f"_{twin + 1}" if twin else ""), recipe) for recipe, twin in zip(recipes, twins)]


def _silent(name: str) -> Callback:
    return lambda event: None


def _asked(
    build: Build | nn.Module,
    problem: Problem,
    recipes: Sequence[Recipe],
    folders: dict[int, Path | None],
    hearing: Callable[[str], Callback] | None,
    options: dict[str, Any],
) -> list[tuple[Call, Path, Callback | None, Any]]:
    """Return the runs of all methods and seeds, for a cluster to train."""
    found = []
    data, known = problem.points, {n: v for n, v in options.items() if n in (*OPTIONS, "device")}
    for own, folder in folders.items():
        for name, recipe in _named(recipes):
            assert folder is not None
            call = call_of(build, data, recipe, known | {"seed": own, "table": problem.table})
            hear = one_of(options.get("callbacks")) if hearing is None else hearing(name)
            place = (folder / folder_name(name)).resolve()
            found.append((call, place, hear, options.get("on_existing", "resume")))
    return found


def _measured(
    build: Build | nn.Module,
    problem: Problem,
    recipes: Sequence[Recipe],
    trial: Trial,
    run_dir: Path | None,
    hearing: Callable[[str], Callback] | None,
    options: dict[str, Any],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Fit and judge every recipe with one seed; return the rows and what a report shows beyond them."""
    rows, evaluations = [], {}
    for name, recipe in _named(recipes):
        folder = None if run_dir is None else run_dir / folder_name(name)
        try:
            heard = {} if hearing is None else {"callbacks": hearing(name), "progress": False}
            ensemble = train(build, problem.points, recipe, run_dir=folder, table=problem.table, **options | heard)
        except DivergedError as error:  # the other methods get their rows
            rows.append({"method": name, "members": recipe.members, "epochs": recipe.epochs, DIVERGED: str(error)})
            continue
        evaluations[name] = judged(folder, ensemble, trial)
        rows.append(row_of(ensemble, evaluations[name]) | {"method": name})
    if not evaluations:
        raise DivergedError("; ".join(f"{row['method']}: {row[DIVERGED]}" for row in rows))
    details: dict[str, Any] = {"evaluation": evaluations}
    errors = corruption_errors(evaluations, baseline="single" if "single" in evaluations else next(iter(evaluations)))
    if errors is not None:
        details["corruption_errors"] = errors
        rows = [row | errors["methods"].get(row["method"], {}) for row in rows]
    return rows, details


def _write_changes(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file unless it says all that already: what was made from it is then still good."""
    held: dict[str, Any] = {}
    with contextlib.suppress(RunError):  # all that a damaged file says is said again
        held = read_json(path) or {}
    said = json.loads(json.dumps(content))
    if any(held.get(key) != value for key, value in said.items()):
        write_json(path, content, within=path.parent)


def trial_of(
    problem: Problem, *, weights: Any = None, ood: Any = None, corruptions: Sequence[str] | str = "all"
) -> Trial:
    """Return what all methods are judged by: the test rows, strange ones, and corrupted ones if they are images.

    Args:
        problem: gives the test rows.
        weights: what each test row counts.
        ood: inputs of another data set; made from the test rows if None.
        corruptions: names of corruptions, 'all' (of images; none of others) or none.
    """
    shape = problem.image_shape
    name = "the given second data set"
    several = not isinstance(problem.x_test, np.ndarray)
    if ood is None:
        ood, name = shuffled(problem.x_test) if several else strange(problem.x_test, shape=shape)
    images = not several and problem.task == "classification" and holds_images(problem.x_test, shape=shape)
    if not images and corruptions == "all":
        corruptions = ()
    return make_trial(
        problem.x_test,
        problem.y_test,
        sample_weight=weights,
        ood=ood,
        ood_name=name,
        corruptions=corruptions,
        image_shape=shape,
        corrupted_rows=200,
    )
