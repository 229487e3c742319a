"""fit_table: `choral fit FILE` in Python. Default choices are made here for the shell, Python and the estimators."""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn

from choral import models
from choral.base import rng
from choral.base.errors import InputError
from choral.base.values import guarded, is_number, is_whole, typed
from choral.callbacks import Bars, bars, somebody_watches, write_line
from choral.comparison.compare import heard, recipes_for
from choral.data.problems import Problem, balanced
from choral.data.sources import source_of
from choral.engine.compute import Compute, OnExisting, is_far
from choral.engine.events import one_of
from choral.engine.validation import Limit, set_apart
from choral.ensemble.ensemble import Ensemble
from choral.fit import check_options, train
from choral.objectives import GaussianKL, SpikeSlabKL
from choral.plan import EarlyStopping
from choral.plan.cost import begun, raised
from choral.recipes import METHODS, make
from choral.recipes.recipe import Recipe
from choral.recipes.training import SCHEDULES, Training
from choral.tables import defaults
from choral.tables.defaults import AUTO, FOLDS, LEAST_IN_TURN, LEAST_ROWS, METHOD, SMALL, is_table
from choral.tables.problems import Columns, load_problem, weights_in
from choral.tables.reading import as_frame, is_frame, read_table
from choral.tables.search import Candidate, Judge, search, training_ends
from choral.tables.table import Kind

_OPEN = Training()


@guarded
@typed
def fit_table(
    data: Any,
    target: str | None = None,
    *,
    method: str | None = None,
    members: int | None = None,
    epochs: int | None = None,
    budget: int | None = None,
    model: str | None = None,
    training: Training | None = None,
    columns: Columns | None = None,
    task: Kind | None = None,
    validation: Any = None,
    sample_weight: Any = None,
    class_weight: str | Mapping[str, float] | None = None,
    **options: Any,
) -> Ensemble:
    """Train an ensemble on a table, as `choral fit` does.

    All rows are used for training or validation; none are held out for testing. The ensemble predicts data frames: `ensemble.predict(frame)`,
    and `ensemble.evaluate(frame)` if the frame contains the target.

    >>> import pandas as pd
    >>> frame = pd.DataFrame(
    ...     {"rooms": ["3", "4", "?", "2"] * 10, "town": ["Ulm", "Bonn"] * 20, "sold": ["yes", "no"] * 20}
    ... )
    >>> ensemble = fit_table(frame, "sold", members=2, epochs=8, progress=False)
    >>> prediction = ensemble.predict(pd.DataFrame({"rooms": ["3", None], "town": ["Bonn", "Ulm"]}))
    >>> prediction.to_frame()["prediction"].tolist(), tuple(prediction.probs.shape)
    (['no', 'yes'], (2, 2))

    Args:
        data: a pandas data frame, the path of a table, or other data of `choral fit`.
        target: the column to predict.
        method: the name of a method (`choral.recipes.METHODS`), or 'auto', a search that selects members by held-out rows. By default 'auto'
            for 32 rows or more, unless members, epochs or model are given, or several processes, a cluster or a URL; else deep_ensemble.
        members: number of members, for methods that have a choice.
        epochs: length of each member's training, an upper bound if rows are held out; by default chosen by the number of rows.
        budget: total in epochs of one network instead.
        model: the name of the network; by default chosen by the data.
        training: optimizer, learning rate, batch size and schedule; settings that are None are chosen by the data.
        columns: `choral.Columns`: which columns are not inputs, identify a row, are ordered, or define groups or time.
        task: 'classification' or 'regression'; by default inferred from the target.
        validation: share of the rows on which no member is trained, or a data frame (or path) with such rows; 0 for none. By default, from 100
            rows on, each of 8 members holds out another eighth ('auto'), or all of them the same fifth.
        sample_weight: a weight for each row: the name of a column, which is then not an input, or numbers.
        class_weight: 'balanced', or a dict of weights by class (1 for others), used in training and validation. Probabilities then refer to
            the weighted classes.
        options: further arguments of `choral.fit`: cv (a number of folds; groups of `Columns.group` stay together), likelihood (by name),
            early_stopping, run_dir, on_existing, seed, callbacks, progress, device, compute.

    Returns:
        The trained ensemble.
    """
    check_options("fit_table", list(inspect.signature(fit_table).parameters)[:-1], options)
    compute = options.get("compute") or Compute()
    if compute.time_limit is not None:  # reading and choosing count
        options["compute"] = replace(compute, time_limit=Limit.of(compute.time_limit, perf_counter()))
    asked: dict[str, Any] = {"likelihood": options.pop("likelihood", None), "weights": sample_weight}
    problem = load_problem(data, target=target, task=task, holdout=None, columns=columns, **asked)
    problem, each = (problem, {}) if class_weight is None else balanced(problem, class_weight)
    apart = compute.data_parallel or compute.cluster is not None or is_far(options.get("run_dir"))
    apart = apart or options.get("on_existing") == "extend"
    settings = {name: value for name, value in vars(training or _OPEN).items() if value != getattr(_OPEN, name)}
    ready = prepared(
        problem,
        method=METHOD if method is None and apart else method,
        epochs=epochs,
        budget=budget,
        members=members,
        model=model,
        validation=_validation(validation, problem, sample_weight if isinstance(sample_weight, str) else None, each),
        early_stopping=options.pop("early_stopping", None),
        folds=options.pop("cv", None),
        **settings,
    )
    return ready.run(**options)


def _validation(validation: Any, problem: Problem, column: str | None, each: Mapping[str, float]) -> Any:
    """Return validation rows as `fit` takes them: a share as it is; of a table inputs, targets and weights by a `column` and by class."""
    if validation is None or is_number(validation):
        return validation
    if problem.table is None or not (is_frame(validation) or isinstance(validation, str | Path)):
        what = "give a part of the rows, such as 0.2, or a data frame with the target"
        raise InputError(f"validation is {type(validation).__name__}; {what}.")
    where = "validation" if is_frame(validation) else str(validation)
    frame = as_frame(validation, where) if is_frame(validation) else read_table(Path(validation))
    x, y = problem.table.inputs(frame, path=where), problem.table.targets(frame, path=where)
    weights = None if column is None else weights_in(frame, column, where)
    if each:
        own = np.array(list(each.values()))[np.asarray(y).astype(np.int64).reshape(-1)]  # in the order of the classes
        weights = own if weights is None else weights * own
    return (x, y) if weights is None else (x, y, weights)


@dataclass(frozen=True)
class Ready:
    """Everything that one fit needs: the data, the network, the method and how rows are held out.

    `validation` is a part of the training rows, data of its own, or None. A search has candidates, of which `recipe` is the first.
    """

    problem: Problem
    build: Callable[[], nn.Module]
    recipe: Recipe
    training: Training
    validation: Any
    early_stopping: EarlyStopping | None
    folds: int | None = None
    candidates: tuple[Candidate, ...] = ()

    @property
    def name(self) -> str:
        """The method, in a word."""
        return AUTO if self.candidates else self.recipe.name

    def run(self, **options: Any) -> Ensemble:
        """Return the trained ensemble; options are those of `choral.fit`, and callbacks may be `Bars`."""
        if self.candidates:
            return choose(self, **options)
        options["callbacks"] = heard(options.get("callbacks"), self.recipe.name, self.planned)
        compute = options.get("compute") or Compute()
        if compute.time_limit is not None and compute.cluster is None:
            options["compute"] = replace(compute, time_limit=training_ends(compute.time_limit))
        (build, data, recipe), known = self.arguments()
        return train(build, data, recipe, **known, **options)

    def arguments(self) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        """Return the network, data and recipe that `choral.fit` gets, and the options that go with them."""
        trained, held = self.problem.validating(self.validation) if self.shares else (self.problem, self.validation)
        cv: Any = self.folds if self.folds is None or trained.groups is None else (self.folds, trained.groups)
        known: dict[str, Any] = {"likelihood": trained.likelihood, "table": trained.table, "cv": cv}
        known |= {"validation": held, "early_stopping": self.early_stopping}
        return (self.build, trained.points, self.recipe), known

    @property
    def rows(self) -> int:
        """The rows that are trained on."""
        rows, part = len(self.problem.x_train), 1 / self.folds if self.folds else self.validation
        return max(1, rows - round(rows * part)) if self.shares and part and 0 < part < 1 else rows

    @property
    def planned(self) -> Recipe:
        """The recipe as it is run: in folds, if there are any."""
        return self.recipe if self.folds is None else self.recipe.in_folds(self.folds)

    @property
    def shares(self) -> bool:
        """Whether the validation rows are a part of the training rows."""
        return self.validation is None or isinstance(self.validation, int | float)


def prepared(
    problem: Problem,
    *,
    method: str | None = None,
    epochs: int | None = None,
    budget: int | None = None,
    members: int | None = None,
    model: str | None = None,
    validation: Any = None,
    patience: int | None = None,
    restore_best: bool = True,
    early_stopping: EarlyStopping | None = None,
    folds: int | None = None,
    **settings: Any,
) -> Ready:
    """Return what is done with some data: arguments as in `fit_table` (folds are its `cv`), those that are None by the data.

    Patience and restore_best are those of early stopping, and `settings` those of `choral.tables.defaults.training_for`.
    """
    for what, value in (("epochs", epochs), ("budget", budget)):
        if value is not None and not is_whole(value, 1):
            raise InputError(f"{what} is {value!r}; give a whole number of 1 or more, or leave it to the data.")
    length, none = budget if epochs is None else epochs, is_number(validation) and validation == 0
    searched = _is_searched(problem, method, validation, {"epochs": length, "members": members, "model": model})
    if searched and folds is None and validation is None:
        folds = _parts(problem)
    method = None if method == AUTO else method
    name = method or METHOD
    _check_schedule(name, settings.get("schedule"))
    check_members(name, members)
    if folds is not None:
        if validation is not None or problem.times is not None:
            other = "validation" if validation is not None else "time"
            raise InputError(f"{other} and cv both say which rows are held out; give one of them.")
        if members is None and begun(make(name).plan) > 1:  # branches, of which each can hold out a part
            members = folds
    default = method in (None, METHOD) and (searched or folds is None)
    looked = {} if members in (None, 1) else {"members": members} | ({"budget": 9 * members} if members > 20 else {})
    asked = None if default else make(name, **looked)
    # the many weights behind bins leave a distribution of weights where it began
    drawn = asked is not None and any(isinstance(p, GaussianKL | SpikeSlabKL) for p in asked.objective.penalties)
    watched = not (none or drawn or (asked is not None and asked.structure.widens_input))
    least, networks = LEAST_IN_TURN if searched else LEAST_ROWS, 1 if asked is None else begun(asked.plan)
    quick = defaults.is_quick(problem, searched=searched)
    model = model or defaults.default_model(problem, validated=watched, least=least, networks=networks, quick=quick)
    training = defaults.training_for(problem, model=model if watched else None, quick=quick, **settings)
    most = defaults.EPOCHS if asked is None else defaults.ASKED
    each = defaults.epochs_of(problem, training, model=model if watched else "mlp", most=most)
    if length is None and members is None and asked is None and each is not None:
        members = defaults.MEMBERS
    count = networks if asked is not None else members if searched else defaults.MEMBERS
    total = None if each is None else each * (count or 1)
    if folds is not None and total is None:  # too few rows for a share of them, but not for folds
        total = 60 * (members or 1)
    share = (None if total is None else defaults.SHARE) if validation is None else None if none else validation
    if early_stopping is None and patience is not None:
        early_stopping = EarlyStopping(patience=patience)
    stops = [early_stopping] * 2
    if early_stopping is None and share is not None:
        stops = [defaults.stopping(problem, training.batch_size, **how) for how in ({"quick": quick}, defaults.LATE)]
    early_stopping, late = (one if one is None or restore_best else replace(one, restore_best=False) for one in stops)
    said = {option: value for option, value in settings.items() if value is not None}
    asking: dict[str, Any] = {"epochs": epochs, "budget": total if length is None else budget, "members": members}
    (recipe,) = recipes_for([name], **asking, training=training, said=said, points=len(problem.x_train))
    share = share if folds is None else None
    if share is None and validation is None and folds is None and problem.groups is None and problem.times is None:
        share = AUTO
    ready = Ready(problem, defaults.factory(problem, model), recipe, training, share, early_stopping, folds)
    if length is not None or total is None:
        return ready
    if searched:
        assert each is not None
        patient = None
        if quick and problem.task == "regression":
            model, training = "tabular", defaults.training_for(problem, model="tabular", quick=False, **settings)
            patient = replace(ready, build=defaults.factory(problem, model), training=training, early_stopping=late)
        return replace(ready, candidates=tuple(short_list(ready, each, patient)))
    return replace(ready, recipe=replace(recipe, plan=raised(recipe.settled(ready.rows).plan, ready.rows)))


def _is_searched(problem: Problem, method: str | None, validation: Any, decided: dict[str, Any]) -> bool:
    """Return whether candidates are tried: if there are rows enough to choose by, and nothing is said that the choice decides."""
    said = [name for name, value in decided.items() if value is not None]
    if method == AUTO and said:
        what = "but 'auto' chooses these by itself; leave them out, or name a method such as"
        raise InputError(f"method is 'auto' and {' and '.join(said)} given, {what} {METHOD}.")
    free = can_choose(problem, validation)
    if method == AUTO and not free:
        least, rows = _least(problem, validation), len(problem.x_train)
        why = f"there are {rows}" if rows < least else "validation is 0, or the data is no table"
        what = f"held-out rows of a table of {least} training rows or more"
        raise InputError(f"method is 'auto', which chooses by {what}, but {why}; name a method such as {METHOD}.")
    return free and method in (None, AUTO) and not said


def _least(problem: Problem, validation: Any) -> int:
    """Return the rows that are needed to choose by: fewer where each member holds out others."""
    return LEAST_IN_TURN if validation is None and _parts(problem) is not None else LEAST_ROWS


def can_choose(problem: Problem, validation: Any) -> bool:
    """Return whether 'auto' has rows to choose by."""
    return is_table(problem, _least(problem, validation)) and not (is_number(validation) and validation == 0)


def _parts(problem: Problem) -> int | None:
    """Return in how many parts the rows are held out; None where the last ones are, or there are too few groups of them."""
    few = problem.groups is not None and len(set(problem.groups)) < 2 * FOLDS
    return None if problem.times is not None or few else FOLDS


def _check_schedule(method: str, schedule: str | None) -> None:
    """Raise InputError where a schedule is asked of a method that has its own."""
    if schedule is None or method not in METHODS or schedule not in SCHEDULES:
        return
    one, other = (make(method, training=Training(schedule=shape)).plan for shape in ("cosine", "constant"))
    if one == other:
        raise InputError(f"--schedule is {schedule}, but {method} has a schedule of its own; leave it out.")


def check_members(method: str, members: int | None, called: str = "--members") -> None:
    """Raise InputError if members, by the name that the user has for them, are asked of a method that has no choice of them."""
    option = METHODS[method].options.get("members") if method in METHODS else None
    if members not in (None, 1) and (option is None or option.default == 1):
        raise InputError(
            f"{called} is {members}, but {method} trains one network and has no choice; leave it out, or take a method "
            "with members such as deep_ensemble."
        )


def check_one_process(several: bool) -> None:
    """Raise InputError where a search would be shared by several processes."""
    if several:
        what = "name a method, such as deep_ensemble, for several processes, leaves or a URL"
        raise InputError(f"method auto chooses within one process, in a folder of this machine; {what}.")


def short_list(ready: Ready, epochs: int, patient: Ready | None) -> list[Candidate]:
    """Return the candidates of a table, the default first; networks are `choral.models.tabular`.

    `patient` has wide networks and long training, for regression of small tables: where the first candidate leaves little noise, it
    follows. The list was made on parts of training rows (`benchmarks/small_tables.py`), never on test rows.
    """
    small = len(ready.problem.x_train) < SMALL

    def entry(of: Ready, name: str, why: str, lr: float = 1.0, *, light: bool = False, **changes: Any) -> Candidate:
        with rng.seeded(0, "look"):
            spec = models.spec_of(of.build())
        assert spec is not None
        changed = {"name": spec["name"], "arguments": spec["arguments"] | changes}
        training = of.training if of.training.lr is None else replace(of.training, lr=lr * of.training.lr)

        def recipe(each: int, members: int) -> Recipe:
            return make(METHOD, budget=each * members, members=members, training=training)

        count, build = of.folds or defaults.MEMBERS, lambda: models.rebuild(changed)
        own: dict[str, Any] = {"early_stopping": of.early_stopping, "stacked": small and name == "periodic"}
        own["clean"] = None if light or name == METHOD or patient is None else of is patient
        each = round(defaults.LONGER * epochs) if of is patient else epochs
        return Candidate(name, recipe, each, count, why, light, build, **own)

    bins, waves = "networks of their own on bins of each column", "waves of each column, for smooth curves"
    steps, lines = "a residual block, for steps and interactions", "a straight line in each column, for few rows"
    found = [entry(ready, METHOD, bins)]
    if patient is not None or not small:
        found += [entry(patient or ready, "residual", steps, **defaults.BLOCK)]
    if patient is not None:
        found += [entry(patient, "waves", waves, **defaults.WAVES)]
    found += [entry(ready, "periodic", waves, **defaults.WAVES)]
    return [*found, entry(ready, "linear", lines, defaults.QUICK, light=True, **defaults.LINES)]


def choose(
    ready: Ready,
    *,
    run_dir: Any = None,
    on_existing: OnExisting = "resume",
    seed: int = 0,
    progress: bool | None = None,
    callbacks: Any = None,
    compute: Compute | None = None,
    **options: Any,
) -> Ensemble:
    """Return the best ensemble that the candidates give for a table; arguments as in `Ready.run`.

    The run folder and the time limit are of the whole search, and the cluster is connected once.
    """
    compute = compute or Compute()
    cluster, time_limit = compute.cluster, compute.time_limit
    check_one_process(compute.data_parallel or is_far(run_dir))
    if on_existing == "extend":
        raise InputError("on_existing is 'extend', which adds members of one method; name one, such as deep_ensemble.")
    if cluster is not None:
        from choral.cluster.run import check_cluster

        check_cluster(compute, run_dir)
    (_, points, _), known = ready.arguments()
    source, judge = source_of(points), Judge()
    if ready.folds is None:
        source, known["validation"] = set_apart(source, known["validation"], seed)
        judge = Judge(known["validation"])

    def trained(candidate: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        build, own = candidate.build or ready.build, replace(compute, time_limit=limits.pop("time_limit"))
        told_to = [line.of(candidate.name, candidate.members, recipe.epochs), *others]
        own_seed = rng.key(seed, "round", candidate.round) if candidate.round else seed
        told: dict[str, Any] = {"callbacks": told_to, "progress": False, "seed": own_seed}
        told = known | limits | options | told | {"early_stopping": candidate.early_stopping}
        if candidate.stacked and own.executor == "auto":
            with contextlib.suppress(InputError):  # where rounding keeps them from being stacked
                return train(build, source, recipe, **told, compute=replace(own, executor="vectorized"))
        return train(build, source, recipe, **told, compute=own)

    drawn = somebody_watches() if progress is None else progress
    is_bars = isinstance(callbacks, Bars)
    others = [one for one in [None if is_bars else one_of(callbacks)] if one is not None]
    shown = contextlib.nullcontext(callbacks) if is_bars else bars(drawn=drawn, say=write_line)
    with contextlib.nullcontext() if cluster is None else cluster.connected(), shown as bar, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*budget is below what the method needs")  # members stop early
        line = bar.search(len(ready.candidates), time_limit)
        folder: dict[str, Any] = {"run_dir": run_dir, "overwrite": on_existing == "overwrite"}
        folder |= {"time_limit": time_limit, "rounds": 1 if time_limit is None else defaults.ROUNDS}
        found = search(ready.candidates, trained, judge, **folder, seed=seed, tell=line.tell)
        line.end()
        return found
