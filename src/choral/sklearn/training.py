"""From numbers and an estimator's settings to an ensemble: what `choral fit` does for a table, for arrays in memory."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from choral.base.border import is_number, is_whole
from choral.base.errors import InputError
from choral.data.cells import Cells
from choral.data.problems import Problem
from choral.data.splitting import split_by_group
from choral.data.tables import Table
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.judging.compare import recipes_for
from choral.judging.defaults import LEAST_ROWS, MEMBERS, default_model, factory, training_for, usual
from choral.objectives.likelihoods import Likelihood
from choral.plan import EarlyStop
from choral.recipes import METHODS, make
from choral.recipes.recipe import Recipe

AUTO = "deep_ensemble"
_STEPS = 300  # of each member, at least, where nothing says when to stop


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
        elif self.method != "auto":
            self._check_named(str(self.method))

    def _check_named(self, method: str) -> None:
        make(method)  # raises for a name there is not
        option = METHODS[method].options.get("members")
        if self.members not in (None, 1) and (option is None or option.default == 1):
            raise InputError(
                f"n_estimators is {self.members}, but {method} trains one network and has no choice; leave it out, or take a method with "
                "members such as 'deep_ensemble'."
            )


@dataclass(frozen=True)
class Rows:
    """What is trained on, as numbers.

    Attributes:
        x: inputs, float32 (row, width).
        y: class numbers, or real targets in their own units.
        weights: of the rows, None for equal ones.
        groups: which rows belong together when some are held out, None if they do not.
        held: (x, y) of rows the user held out, None to hold out a share.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    held: tuple[np.ndarray, np.ndarray] | None = None

    def holds_out(self, share: float, rows: int) -> bool:
        """Return whether some of the rows themselves are held out."""
        return self.held is None and share > 0 and rows >= LEAST_ROWS


def usable_device(asked: Any) -> str:
    """Return the device that 'auto' means here, or the one that was asked for."""
    if asked != "auto":
        return str(asked)
    return "cuda" if torch.cuda.is_available() else "cpu"


def train(rows: Rows, table: Table, likelihood: Likelihood, wishes: Wishes, *, watch: bool) -> Ensemble:
    """Return the ensemble of some rows.

    Args:
        rows: what to train on.
        table: how columns became inputs.
        likelihood: what outputs mean.
        wishes: settings.
        watch: whether a share of the rows is held out.
    """
    problem = Problem("X", rows.x, rows.y, rows.x[:0], rows.y[:0], table)
    watched = watch or rows.held is not None
    model = default_model(problem, validated=watched)
    training = training_for(problem, model=model if watched else None)
    recipe, patience = _recipe(problem, wishes, model=model if watched else "mlp", training=training)
    data, validation = _split(rows, wishes) if watched else (rows, None)
    stop = EarlyStop(patience=patience) if patience and validation is not None else None
    return fit(
        factory(problem, model),
        (data.x, data.y),
        recipe,
        weights=data.weights,
        seed=wishes.seed,
        likelihood=likelihood,
        validation=validation,
        stop=stop,
        time_limit=wishes.seconds,
        executor="vectorised" if wishes.fixed else "auto",
        threads=1 if wishes.fixed else None,
        device=wishes.device,
        progress=wishes.progress,
        table=table,
    )


def _recipe(problem: Problem, wishes: Wishes, *, model: str, training: Any) -> tuple[Recipe, int | None]:
    """Return the recipe, and the epochs without improvement after which its members stop."""
    if isinstance(wishes.method, Recipe):
        return wishes.method, usual(problem, wishes.method.plan, training, model=model).patience
    name = AUTO if wishes.method == "auto" else wishes.method
    members = wishes.members
    if members is None and name == AUTO and wishes.epochs is None:
        members = MEMBERS
    plan = (
        make(name, members=members).plan
        if members is not None and "members" in METHODS[name].options
        else make(name).plan
    )
    found = usual(problem, plan, training, model=model)
    epochs = wishes.epochs or (found.epochs if found.patience else _enough(problem, plan, training))
    (recipe,) = recipes_for([name], epochs=epochs, members=members, training=training)
    return recipe, found.patience


def _enough(problem: Problem, plan: Any, training: Any) -> int:
    """Return epochs that give every branch enough steps."""
    steps = math.ceil(len(problem.x_train) / training.batch_size)
    return max(60, math.ceil(_STEPS / steps)) * getattr(plan, "branches", 1)


def _split(rows: Rows, wishes: Wishes) -> tuple[Rows, Any]:
    """Return the rows to train on, and what to validate on."""
    if rows.held is not None:
        return rows, rows.held
    if rows.groups is None:
        return rows, wishes.share
    import pandas as pd

    kept, held = split_by_group(Cells(pd.Series(rows.groups, name="groups")), wishes.share, wishes.seed)
    weights = None if rows.weights is None else rows.weights[kept]
    apart = (rows.x[held], rows.y[held])
    validation = apart if rows.weights is None else (*apart, rows.weights[held])
    return Rows(rows.x[kept], rows.y[kept], weights), validation
