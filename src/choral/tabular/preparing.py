"""What a fit does with some data: what was said, and the usual where nothing was."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from choral.base.arguments import is_whole
from choral.base.errors import InputError
from choral.callbacks import Bars
from choral.comparison.compare import recipes_for
from choral.comparison.defaults import (
    LEAST_IN_TURN,
    LEAST_ROWS,
    MEMBERS,
    SHARE,
    Usual,
    default_model,
    factory,
    is_small,
    is_table,
    stopping,
    training_for,
    usual,
)
from choral.data.problems import Problem
from choral.ensemble.ensemble import Ensemble
from choral.fit import train
from choral.objectives import GaussianKL, SpikeSlabKL
from choral.plan import EarlyStopping
from choral.plan.cost import begun, raised
from choral.plan.early_stopping import By
from choral.recipes import METHODS, make
from choral.recipes.recipe import Recipe
from choral.recipes.training import SCHEDULES, Training
from choral.tabular.choosing import AUTO, Entry, choose, short_list

METHOD = "deep_ensemble"
"""What is done where no method is named and nothing can be chosen."""
FOLDS = 8
"""Parts of the rows of which each member of a table's ensemble holds out one, unless other rows are said to watch."""
_FIXED = "'auto' chooses these by itself; leave them out, or name a method such as deep_ensemble"


@dataclass(frozen=True)
class Ready:
    """Everything that one fit needs.

    Attributes:
        problem: the data.
        build: makes the network.
        recipe: the method with its budget.
        training: its settings.
        validation: the part of the training rows that watches, data of its own, or None.
        early_stopping: when a member stops by itself.
        folds: parts of cross-validation, of which every member holds out one instead; None for none.
        entries: candidates of a search by validation, of which `recipe` is the first; none where a method was named.
    """

    problem: Problem
    build: Callable[[], nn.Module]
    recipe: Recipe
    training: Training
    validation: Any
    early_stopping: EarlyStopping | None
    folds: int | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def name(self) -> str:
        """What is done, in a word."""
        return AUTO if self.entries else self.recipe.name

    def run(self, *, hearing: Bars | None = None, **options: Any) -> Ensemble:
        """Return the ensemble, trained; `options` as in `choral.fit`.

        Args:
            hearing: draws the progress.
            options: of `fit`.
        """
        if self.entries:
            what = (self.problem, self.entries, self.validation, self.early_stopping)
            return choose(*what, folds=self.folds, hearing=hearing, **options)
        if hearing is not None:
            options["callbacks"] = hearing(self.recipe.name, self.planned.epochs, self.planned.length)
        (build, data, recipe), known = self.arguments()
        return train(build, data, recipe, **known, **options)

    def arguments(self) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        """Return the network, data and recipe that `choral.fit` gets, and the options that go with them."""
        trained, held = (self.problem, self.validation)
        if self.shares:
            trained, held = self.problem.validating(self.validation)
        known: dict[str, Any] = {"likelihood": self.problem.likelihood, "table": self.problem.table}
        if self.folds is not None:
            known["cv"] = self.problem.folds(self.folds)
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
        """Whether the rows that watch are a part of the training rows."""
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
    """Return what is done with some data.

    Args:
        problem: the data.
        method: its name; if None, 'auto' where nothing is said that it decides, else `METHOD`.
        epochs: length of one training, by the data if None: of each member for methods that train each by itself.
        budget: total in epochs of one network instead.
        members: where the method has a choice.
        model: the network's name in `choral.comparison.defaults.SIZES`; by the data if None.
        validation: part of the training rows that no member is trained on, or data of its own; 0 for none, the usual if None.
        patience: epochs without a better score after which a member stops.
        restore_best: whether members keep their best weights.
        early_stopping: instead of these two.
        folds: parts of cross-validation, of which every member holds out one, instead of validation.
        settings: of the optimizer, as in `choral.comparison.defaults.training_for`.
    """
    for what, value in (("epochs", epochs), ("budget", budget)):
        if value is not None and not is_whole(value, 1):
            raise InputError(f"{what} is {value!r}; give a whole number of 1 or more, or leave it to the data.")
    length = budget if epochs is None else epochs
    searched = _is_searched(problem, method, validation, {"epochs": length, "members": members, "model": model})
    if searched and folds is None and validation is None:
        folds = _parts(problem)
    method = None if method == AUTO else method
    _check_schedule(method or METHOD, settings.get("schedule"))
    check_members(method or METHOD, members)
    if folds is not None:
        _check_folds(problem, validation)
        members = _one_for_each(folds, budget) if members is None and _is_fork(method or METHOD) else members
    default = method in (None, METHOD) and (searched or folds is None)
    asked = None if default else make(method or METHOD, **_some(members))
    none = isinstance(validation, int | float) and validation == 0
    watched = not none and not (asked is not None and (asked.structure.widens_input or _samples_weights(asked)))
    least, networks = LEAST_IN_TURN if searched else LEAST_ROWS, 1 if asked is None else begun(asked.plan)
    name = model or default_model(problem, validated=watched, least=least, networks=networks)
    training = training_for(problem, model=name if watched else None, **settings)
    found = usual(problem, None if asked is None else asked.plan, training, model=name if watched else "mlp")
    if length is None and members is None:
        members = found.members
    if folds is not None and found.validation is None:  # too few rows for a share of them, but not for folds
        found = Usual(epochs=60 * (members or 1), validation=SHARE)
    share = found.validation if validation is None else None if none else validation
    by: By = "ensemble" if searched else "member"
    if early_stopping is None and patience is not None:
        early_stopping = EarlyStopping(patience=patience)
    if early_stopping is None and share is not None:
        early_stopping = stopping(len(problem.x_train), training.batch_size, by=by)
    if early_stopping is not None and not restore_best:
        early_stopping = replace(early_stopping, restore_best=False)
    said = {option: value for option, value in settings.items() if value is not None}
    each = (found.epochs or 0) // (found.members or 1)
    if length is None:
        budget = each * (members or 1) if searched else found.epochs
    points = len(problem.x_train)
    (recipe,) = recipes_for(
        [method or METHOD], epochs=epochs, budget=budget, members=members, training=training, said=said, points=points
    )
    share = share if folds is None else None
    if share is None and validation is None and folds is None and problem.groups is None and problem.times is None:
        share = AUTO
    ready = Ready(problem, factory(problem, name), recipe, training, share, early_stopping, folds)
    if length is not None or found.epochs is None:
        return ready
    if searched:
        listed = short_list(ready.build, training, each, folds or MEMBERS, small=is_small(problem))
        return replace(ready, entries=tuple(listed))
    return replace(ready, recipe=replace(recipe, plan=raised(recipe.settled(ready.rows).plan, ready.rows)))


def _samples_weights(recipe: Recipe) -> bool:
    """Return whether a method learns a distribution of weights, which many weights and few rows leave where it began.

    RMSE on a linear function of 150 rows (deviation 3.8), the network of tables (256-256 units behind bins) against the plain perceptron: `bnn` 1.26 and
    0.17, `rank1_bnn` 1.70 and 0.12, `sebays_freeze` 32 and 1.2.
    """
    return any(isinstance(penalty, GaussianKL | SpikeSlabKL) for penalty in recipe.objective.penalties)


def _is_searched(problem: Problem, method: str | None, validation: Any, decided: dict[str, Any]) -> bool:
    """Return whether candidates are tried: if there are rows enough to choose by, and nothing is said that the choice decides.

    Raises InputError where 'auto' is asked for together with that, or cannot choose.

    Args:
        problem: the data.
        method: that was asked for.
        validation: rows that watch.
        decided: what was said of the rest, by option, None for nothing.
    """
    said = [name for name, value in decided.items() if value is not None]
    if method == AUTO and said:
        raise InputError(f"method is 'auto' and {' and '.join(said)} given, but {_FIXED}.")
    free = can_choose(problem, validation)
    if method == AUTO and not free:
        raise InputError(
            f"method is 'auto', which chooses by held-out rows of a table of {_least(problem, validation)} training rows or more, but "
            f"{_why_not(problem, validation)}; "
            f"name a method such as {METHOD}."
        )
    return free and method in (None, AUTO) and not said


def _why_not(problem: Problem, validation: Any) -> str:
    least, rows = _least(problem, validation), len(problem.x_train)
    if is_table(problem, least):
        return "validation is 0"
    return f"there are {rows}" if rows < least else "the data is no table"


def _least(problem: Problem, validation: Any) -> int:
    """Return the rows that are needed to choose by: fewer where each member holds out others."""
    return LEAST_IN_TURN if validation is None and _parts(problem) is not None else LEAST_ROWS


def can_choose(problem: Problem, validation: Any) -> bool:
    """Return whether 'auto' has rows to choose by."""
    none = isinstance(validation, int | float) and validation == 0
    return is_table(problem, _least(problem, validation)) and not none


def _parts(problem: Problem) -> int | None:
    """Return in how many parts the rows are held out; None where the last ones watch, or there are too few groups of them."""
    if problem.times is not None:
        return None
    if problem.groups is not None and len(set(problem.groups.words.astype(str))) < 2 * FOLDS:
        return None
    return FOLDS


def _is_fork(method: str) -> bool:
    """Return whether a method's members are branches, of which each can hold out a part."""
    return begun(make(method).plan) > 1


def _one_for_each(folds: int, budget: int | None) -> int:
    """Return the members of so many folds; InputError if the budget that was given does not reach."""
    if budget is not None and budget < folds:
        raise InputError(
            f"budget is {budget}, too few for {folds} folds, each of which a member of at least 1 epoch holds out; give at least {folds} "
            "epochs or fewer folds (cv)."
        )
    return folds


def _some(members: int | None) -> dict[str, int]:
    """Return the options of a recipe that is only looked at, with epochs enough."""
    return (
        {}
        if members is None or members == 1
        else {"members": members, **({"budget": 9 * members} if members > 20 else {})}
    )


def _check_folds(problem: Problem, validation: Any) -> None:
    """Raise InputError where rows would be held out in two ways."""
    if validation is not None:
        raise InputError("validation and cv both say which rows are held out; give one of them.")
    if problem.times is not None:
        raise InputError(
            "cv holds out rows of any time, but time says that the last ones are; give one of them (validation=0.2 goes with time)."
        )


def _check_schedule(method: str, schedule: str | None) -> None:
    """Raise InputError where a schedule is asked of a method that has its own."""
    if schedule is None or method not in METHODS or schedule not in SCHEDULES:
        return
    one, other = (make(method, training=Training(schedule=shape)).plan for shape in ("cosine", "constant"))
    if one == other:
        raise InputError(f"--schedule is {schedule}, but {method} has a schedule of its own; leave it out.")


def check_members(method: str, members: int | None) -> None:
    """Raise InputError if members are asked of a method that has no choice of them."""
    if members is None or members == 1:
        return
    option = METHODS[method].options.get("members") if method in METHODS else None
    if option is None or option.default == 1:
        raise InputError(
            f"--members is {members}, but {method} trains one network and has no choice; leave it out, or take a method "
            "with members such as deep_ensemble."
        )
