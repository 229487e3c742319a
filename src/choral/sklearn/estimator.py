"""What both estimators share: parameters, the way from X and y to an ensemble, and what a pickle holds.

A pickle holds the estimator's parameters, the ensemble as the bytes of a saved file, and plain values. Nothing of torch and no class of
choral but the estimator's own is ever named in it; bytes are checked, as those of any file, before they become an ensemble.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted

from choral.base.errors import InputError
from choral.base.values import is_number, is_whole
from choral.data.problems import Problem
from choral.engine.compute import Compute
from choral.engine.validation import Limit
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.saving import load_bytes
from choral.objectives.likelihoods import Likelihood
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.sklearn import inputs
from choral.tables.defaults import LEAST_ROWS
from choral.tables.fit import AUTO, METHOD, Ready, can_choose, check_members, prepared
from choral.tables.table import Table

_SEEDS = 2**31 - 1
_LISTED = "OUbiuf"  # kinds of arrays that lists say in full


class EnsembleEstimator(BaseEstimator, ABC):
    """An ensemble of neural networks with scikit-learn's interface.

    Args:
        method: how members are made: 'auto', the search of `choral.fit_table` (5 to 20 seconds below 1,000 rows), the name of a method (`choral methods` lists them), or a recipe, which then has its own
            members and epochs.
        n_estimators: members; None leaves it to the method.
        epochs: length of one training, of each member where members are trained apart; an upper bound where rows are held out. None
            leaves it to the data.
        time_limit: seconds of wall time of a fit, after which training ends with what is there.
        validation_fraction: part of the rows that is held out to say when to stop; none of fewer than 100 rows, or with None. 'auto' holds
            out an eighth of each member in turn instead.
        device: where to train and predict; 'auto' is CUDA, MPS or the CPU.
        random_state: a whole number makes the same ensemble from the same data, bit for bit on one machine; training then takes one
            thread, and nothing is decided by measuring. None draws anew, and a RandomState is drawn from, in every `fit`.
        verbose: 1 shows progress.
    """

    ensemble_: Ensemble
    feature_names_in_: np.ndarray
    n_features_in_: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        shared = (EnsembleEstimator.__doc__ or "").partition("    Args:\n")[2].rstrip()
        cls.__doc__ = (cls.__doc__ or "").replace("    Args:\n", f"    Args:\n{shared}\n")

    def __init__(
        self,
        method: str | Recipe = "auto",
        *,
        n_estimators: int | None = None,
        epochs: int | None = None,
        time_limit: float | None = None,
        validation_fraction: float | None = 0.2,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.method = method
        self.n_estimators = n_estimators
        self.epochs = epochs
        self.time_limit = time_limit
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @abstractmethod
    def _read_targets(self, y: Any, name: str = "y") -> np.ndarray:
        """Return targets (row,) or (row, target) as scikit-learn accepts them; `name` is what the user calls them."""

    @abstractmethod
    def _learn_targets(self, y: np.ndarray) -> tuple[np.ndarray, Table, Likelihood | None]:
        """Return targets as numbers to train on, a table that says what they are, and what outputs mean (None: as the table says)."""

    @abstractmethod
    def _encode_targets(self, y: np.ndarray, name: str = "y") -> np.ndarray:
        """Return more targets in the same way; InputError for classes that training did not have."""

    def _weigh(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """Return what each row counts in training, where targets have a say in it."""
        return weights

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None, groups: Any = None
    ) -> Self:
        """Train the ensemble.

        Args:
            X: inputs (n_samples, n_features): an array, or a data frame whose columns may hold categories, text, dates and missing values.
            y: targets.
            sample_weight: what each row counts, 0 or more: 0 is a row that is not there. See the page on estimators for how far 2 is the
                row twice.
            X_val: rows of your own to say when to stop, in place of `validation_fraction` of X.
            y_val: their targets.
            groups: a name for each row of X; rows of one group are held out together.

        An estimator is all of the new fit or, if it ends early for whatever reason, all of what it was before.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._learn(X, y, sample_weight, X_val, y_val, groups)
        self.__dict__ = twin.__dict__
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any, groups: Any) -> None:
        """Set all attributes that a fit has, one after the other."""
        limit = None if self.time_limit is None else Limit.of(self.time_limit, perf_counter())
        share = self._checked_share()
        fixed = self.random_state is not None and not isinstance(self.random_state, np.random.RandomState)
        drawn = check_random_state(self.random_state)  # refuses what is no seed
        if (X_val is None) != (y_val is None):
            raise InputError(f"{'y_val' if y_val is None else 'X_val'} is missing; give X_val and y_val, or neither.")
        X, y, weights, groups = inputs.present(X, y, sample_weight, groups)
        frame = inputs.read(self, X, y, reset=True)
        y = self._read_targets(y)
        check_consistent_length(frame, y, groups)
        groups = None if groups is None else column_or_1d(groups)
        watched = X_val is None and share > 0 and inputs.counted(weights, len(y)) >= LEAST_ROWS
        chosen, weights = inputs.chosen_rows(frame, y, weights, repeat=not watched)
        frame = frame.iloc[chosen]
        targets, table, likelihood = self._learn_targets(y[chosen])
        table = replace(table, columns=inputs.learn_columns(frame))
        x = table.inputs(frame, path="X")
        problem = Problem(
            "X",
            x,
            targets,
            x[:0],
            targets[:0],
            table,
            likelihood=likelihood,
            weights=self._weigh(targets, weights),
            groups=None if groups is None else groups[chosen].astype(str),
        )
        held: Any = share if watched else 0.0
        if X_val is not None:
            held = self._held(table, X_val, y_val, targets)
        compute = Compute(
            device=str(self.device),
            threads=1 if fixed else None,  # the same seed is to give the same bits
            time_limit=limit,
        )
        seed = int(self.random_state) if fixed else int(drawn.randint(_SEEDS))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="y: all targets are")  # of a fold, say
            self.ensemble_ = self._ready(problem, held).run(seed=seed, compute=compute, progress=bool(self.verbose))
        self.__dict__.pop("calibration_", None)

    def _checked_share(self) -> float:
        """Return the part of the rows to hold out, 0 for none; InputError for parameters that are none."""
        share = self.validation_fraction or 0.0
        for name, value in (("n_estimators", self.n_estimators), ("epochs", self.epochs)):
            if value is not None and not is_whole(value, 1):
                raise InputError(f"{name} is {value!r}; give a whole number of 1 or more, or None.")
        if not is_number(share, 0) or share >= 1:
            raise InputError(f"validation_fraction is {share!r}; give a part of the rows below 1, or None for none.")
        if isinstance(self.method, Recipe):
            if self.n_estimators is not None or self.epochs is not None:
                raise InputError(
                    "method is a recipe, which has its own members and epochs; leave n_estimators and epochs out."
                )
        elif self.method != AUTO:
            check_members(make(self.method).name, self.n_estimators, "n_estimators")
        return float(share)

    def _ready(self, problem: Problem, held: Any) -> Ready:
        """Return what is done with the rows; `held` is the part of them that is held out, or others with their targets."""
        given, watched = self.method, isinstance(held, float) and held > 0
        in_turn = None if watched else held  # a search holds each row out of one member
        free = self.epochs is None and self.n_estimators is None and can_choose(problem, in_turn)
        own, searched = isinstance(given, Recipe), given == AUTO and free
        ready = prepared(
            problem,
            method=METHOD if own or (given == AUTO and not free) else str(given),
            epochs=None if self.epochs is None else int(self.epochs),
            members=None if self.n_estimators is None else int(self.n_estimators),
            validation=in_turn if searched else held,
        )
        return replace(ready, recipe=given) if isinstance(given, Recipe) else ready

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "ensemble_")

    def _held(self, table: Table, X_val: Any, y_val: Any, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows that the user held out, as numbers; their targets in the shape of the others."""
        X_val = inputs.read(self, X_val, reset=False, name="X_val")
        y_val = self._read_targets(y_val, "y_val")
        check_consistent_length(X_val, y_val)
        if y_val.size * len(targets) != targets.size * len(y_val):
            raise InputError(
                f"y_val has shape {y_val.shape}, and y {targets.shape}; give as many targets for each row."
            )
        encoded = self._encode_targets(y_val, "y_val").reshape(-1, *targets.shape[1:])
        return table.inputs(X_val, path="X_val"), encoded

    def _prediction(self, X: Any) -> Any:
        """Return all the ensemble says about some rows, in double precision: a row gets the same whatever other rows there are."""
        check_is_fitted(self)
        frame = inputs.read(self, X, reset=False)
        table = self.ensemble_.table
        assert table is not None  # given by fit, and kept in every saved form
        return self.ensemble_._predictive(table.inputs(frame, path="X"), precision="fp64", device=str(self.device))

    def _said_to_calibrate(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        """Return the prediction for held-out rows and their targets as numbers."""
        check_is_fitted(self)
        y = self._read_targets(y)
        check_consistent_length(X, y)
        return self._prediction(X), self._encode_targets(y)

    def __getstate__(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in super().__getstate__().items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: _restored(value) for name, value in state.items()})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags


def _plain(value: Any) -> Any:
    if isinstance(value, Ensemble):
        return {"choral": "ensemble", "bytes": value._to_bytes()}
    if isinstance(value, np.ndarray) and value.dtype.kind in _LISTED:
        return {"choral": "array", "type": value.dtype.str, "values": value.tolist()}
    return value


def _restored(value: Any) -> Any:
    kind = value.get("choral") if isinstance(value, dict) else None
    if kind == "ensemble":
        return load_bytes(value["bytes"], "the pickled estimator")
    if kind == "array":
        return np.array(value["values"], dtype=value["type"])
    return value
