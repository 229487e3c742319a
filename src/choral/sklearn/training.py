"""From numbers and an estimator's settings to an ensemble: what `choral fit` does for a table, for arrays in memory."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from choral.base.arguments import is_number, is_whole
from choral.base.errors import InputError
from choral.data.problems import Problem
from choral.engine.compute import Compute
from choral.ensemble.ensemble import Ensemble
from choral.recipes import METHODS, make
from choral.recipes.recipe import Recipe
from choral.tables.defaults import LEAST_ROWS
from choral.tables.fit import AUTO, METHOD, can_choose, prepared


@dataclass(frozen=True)
class Wishes:
    """What an estimator asks for, checked.

    Attributes:
        method: name of a method, 'auto', or a recipe.
        members: how many; None leaves it to the method.
        epochs: the whole budget; None leaves it to the data.
        seconds: after which training ends.
        share: of the rows to hold out; 0 for none.
        seed: root of every draw.
        device: where to train.
        fixed: whether the same seed must give the same bits, so that nothing is decided by measuring time.
        progress: whether to draw a bar.
    """

    method: str | Recipe
    members: int | None
    epochs: int | None
    seconds: float | None
    share: float
    seed: int
    device: str
    fixed: bool
    progress: bool

    def __post_init__(self) -> None:
        for name, value in (("n_estimators", self.members), ("epochs", self.epochs)):
            if value is not None and not is_whole(value, 1):
                raise InputError(f"{name} is {value!r}; give a whole number of 1 or more, or None.")
        if not is_number(self.share, 0) or self.share >= 1:
            raise InputError(
                f"validation_fraction is {self.share!r}; give a part of the rows below 1, or None for none."
            )
        if isinstance(self.method, Recipe):
            if self.members is not None or self.epochs is not None:
                raise InputError(
                    "method is a recipe, which has its own members and epochs; leave n_estimators and epochs out."
                )
        elif self.method != AUTO:
            self._check_named(str(self.method))

    def _check_named(self, method: str) -> None:
        make(method)  # raises for a name there is not
        option = METHODS[method].options.get("members")
        if self.members not in (None, 1) and (option is None or option.default == 1):
            raise InputError(
                f"n_estimators is {self.members}, but {method} trains one network and has no choice; leave it out, or take a method with "
                "members such as 'deep_ensemble'."
            )


def holds_out(wishes: Wishes, rows: int, held: Any) -> bool:
    """Return whether some of the rows themselves are held out: not of few, nor where the user gives others."""
    return held is None and wishes.share > 0 and rows >= LEAST_ROWS


def train(problem: Problem, wishes: Wishes, *, watch: bool, held: Any = None) -> Ensemble:
    """Return the ensemble of some rows.

    Args:
        problem: the rows.
        wishes: settings.
        watch: whether a share of the rows is held out.
        held: (x, y) of rows that the user held out.
    """
    if watch and problem.groups is None:  # which are held out whole, one at least
        _check_share(wishes.share, len(problem.x_train))
    given = wishes.method if isinstance(wishes.method, Recipe) else None
    validation = held if held is not None else wishes.share if watch else 0.0
    in_turn = None if watch else validation  # a search holds each row out of one member
    free = wishes.epochs is None and wishes.members is None and can_choose(problem, in_turn)
    searched = wishes.method == AUTO and free
    ready = prepared(
        problem,
        method=METHOD if given is not None or (wishes.method == AUTO and not free) else str(wishes.method),
        epochs=wishes.epochs,
        members=wishes.members,
        validation=in_turn if searched else validation,
    )
    if given is not None:
        ready = replace(ready, recipe=given)
    with _untroubled(problem):
        return ready.run(
            seed=wishes.seed,
            compute=Compute(
                device=wishes.device,
                executor="vectorized" if wishes.fixed else "auto",
                threads=1 if wishes.fixed else None,
                time_limit=wishes.seconds,
            ),
            progress=wishes.progress,
        )


def _check_share(share: float, rows: int) -> None:
    """Raise InputError if a part of the rows is none or all of them."""
    held = round(share * rows)
    if not 0 < held < rows:
        raise InputError(
            f"validation_fraction is {share:g}, which would hold out {held} of {rows} rows; give a part that leaves at least one row on both "
            "sides, or None to hold out none."
        )


@contextmanager
def _untroubled(problem: Problem) -> Iterator[None]:
    """Say nothing of a single class: a fold of cross-validation may well have no other."""
    if problem.task != "classification" or np.ptp(problem.y_train):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="y: the label of every training point")
        yield
