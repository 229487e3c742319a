"""Estimators for scikit-learn: a regressor with intervals, and a classifier with probabilities and conformal sets.

A pickle contains the estimator's parameters, the ensemble as bytes of a saved file, and plain values. It names no class of torch and
none of choral but the estimator's own. The bytes are checked like those of any file.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import (
    Bunch,
    assert_all_finite,
    check_array,
    check_consistent_length,
    check_random_state,
    column_or_1d,
    compute_class_weight,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from choral.base.errors import InputError
from choral.base.values import BelowOne, Count, Inside, check_types, is_number
from choral.calibration import fit_conformal_sets, fit_residual_intervals
from choral.data.problems import Problem
from choral.engine.compute import Compute
from choral.engine.validation import Limit
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.saving import load_bytes
from choral.objectives.likelihoods import LearnedGaussian, Likelihood
from choral.objectives.likelihoods.regression import TargetScale
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.sklearn import inputs
from choral.tables.defaults import LEAST_ROWS
from choral.tables.fit import AUTO, METHOD, Ready, can_choose, check_members, prepared
from choral.tables.table import Table

_SEEDS = 2**31 - 1
_LISTED = "OUbiuf"  # kinds of arrays that lists say in full
_NO_OTHER = "no other class"


class EnsembleEstimator(BaseEstimator, ABC):
    """An ensemble of neural networks with scikit-learn's interface.

    Args:
        method: 'auto', the search of `choral.fit_table` (seconds below 1,000 rows, a minute for numeric targets with little noise); the name
            of a method (`choral methods` lists them); or a recipe, which has its own members and epochs.
        n_estimators: number of members; None uses the default of the method.
        epochs: length of one training (of each separate member); an upper bound if rows are held out. None chooses it by the data.
        time_limit: seconds of wall time after which `fit` stops training.
        validation_fraction: share of the rows held out for early stopping; nothing is held out from fewer than 100 rows, or with None.
            'auto' holds out another eighth for each member.
        device: where to train and predict; 'auto' is CUDA, MPS or the CPU.
        random_state: an integer gives the same ensemble for the same data, bit for bit on one machine, and trains in one thread. None,
            or a RandomState, gives another ensemble in every `fit`.
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
        """Return targets (row,) or (row, target) checked by scikit-learn; `name` is for messages."""

    @abstractmethod
    def _learn_targets(self, y: np.ndarray) -> tuple[np.ndarray, Table, Likelihood | None]:
        """Return encoded targets, their table, and the likelihood (None for the table's default)."""

    @abstractmethod
    def _encode_targets(self, y: np.ndarray, name: str = "y") -> np.ndarray:
        """Return further targets in the same encoding; InputError for unknown classes."""

    def _weigh(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        return weights

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None, groups: Any = None
    ) -> Self:
        """Train the ensemble. If an error interrupts it, the estimator stays as it was.

        Args:
            X: inputs (n_samples, n_features): an array, or a data frame whose columns may contain categories, text, dates and missing values.
            y: targets.
            sample_weight: a weight of 0 or more for each row; 0 removes the row.
            X_val: validation rows for early stopping, instead of `validation_fraction` of X.
            y_val: their targets.
            groups: a group for each row of X; rows of one group are held out together.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._learn(X, y, sample_weight, X_val, y_val, groups)
        self.__dict__ = twin.__dict__
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any, groups: Any) -> None:
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
        """Return the share of rows to hold out, 0 for none; InputError for invalid parameters."""
        hints = {"n_estimators": Count | None, "epochs": Count | None, "validation_fraction": BelowOne | None}
        check_types(type(self).__name__, vars(self), hints)
        share = self.validation_fraction or 0.0
        if isinstance(self.method, Recipe):
            if self.n_estimators is not None or self.epochs is not None:
                raise InputError(
                    "method is a recipe, which has its own members and epochs; leave n_estimators and epochs out."
                )
        elif self.method != AUTO:
            check_members(make(self.method).name, self.n_estimators, "n_estimators")
        return float(share)

    def _ready(self, problem: Problem, held: Any) -> Ready:
        """Return the prepared fit; `held` is the share of rows to hold out, or validation rows with their targets."""
        recipe = self.method if isinstance(self.method, Recipe) else None
        watched = is_number(held) and held > 0
        in_turn = None if watched else held  # a search holds each row out of one member
        free = self.epochs is None and self.n_estimators is None and can_choose(problem, in_turn)
        searched = self.method == AUTO and free
        ready = prepared(
            problem,
            method=METHOD if recipe is not None or (self.method == AUTO and not free) else str(self.method),
            epochs=None if self.epochs is None else int(self.epochs),
            members=None if self.n_estimators is None else int(self.n_estimators),
            validation=in_turn if searched else held,
        )
        return ready if recipe is None else replace(ready, recipe=recipe)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "ensemble_")

    def _held(self, table: Table, X_val: Any, y_val: Any, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the user's validation rows as numbers, with targets in the shape of the others."""
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
        """Return the prediction in double precision, in which a row does not depend on the other rows."""
        check_is_fitted(self)
        frame = inputs.read(self, X, reset=False)
        table = self.ensemble_.table
        assert table is not None  # given by fit, and kept in every saved form
        return self.ensemble_._predictive(table.inputs(frame, path="X"), precision="fp64", device=str(self.device))

    def _said_to_calibrate(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
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


class EnsembleRegressor(RegressorMixin, EnsembleEstimator):
    """An ensemble of neural networks for regression. Each predicts a mean and a variance.

    Args:

    Attributes:
        ensemble_: the `choral.Ensemble`.

    Targets and predictions are (n_samples,) or (n_samples, n_outputs).

    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = EnsembleRegressor("packed", random_state=0).fit(X, 3 * X[:, 0])
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - 1.5) < 0.2), bool(std[0] > 0)
    (True, True)
    """

    calibration_: np.ndarray

    def _read_targets(self, y: Any, name: str = "y") -> np.ndarray:
        given = np.asarray(y)
        times = (isinstance(cell, np.datetime64 | np.timedelta64) for cell in given.flat if given.dtype.kind == "O")
        if given.dtype.kind in "mM" or any(times):  # which would be counts of whatever unit the type has
            raise InputError(
                f"{name} holds spans of time or dates; give numbers, such as {name} / np.timedelta64(1, 's'), or days since a first date."
            )
        found = np.asarray(check_array(y, ensure_2d=False, dtype=np.float64, input_name=name))
        if found.ndim not in (1, 2) or 0 in found.shape:
            raise InputError(f"{name} has shape {found.shape}; give (n_samples,) or (n_samples, n_outputs).")
        return found

    def _learn_targets(self, y: np.ndarray) -> tuple[np.ndarray, Table, Likelihood | None]:
        self._is_flat = y.ndim == 1
        scale = TargetScale.of(torch.tensor(y.reshape(len(y), -1)))  # given, so that equal targets are learned too
        return y, Table(task="regression", reason="as asked"), LearnedGaussian(scale=scale)

    def _encode_targets(self, y: np.ndarray, name: str = "y") -> np.ndarray:
        return y

    def _shaped(self, values: torch.Tensor) -> np.ndarray:
        found = values.double().numpy()
        return np.asarray(found[:, 0] if self._is_flat else found)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean for each row and, with `return_std`, the standard deviation of the mixture (noise and disagreement)."""
        said = self._prediction(X)
        return (self._shaped(said.mean), self._shaped(said.std)) if return_std else self._shaped(said.mean)

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Return one or several quantiles of the mixture: (n_samples, n_quantiles), or (n_samples, n_outputs, n_quantiles)."""
        levels = [quantiles] if is_number(quantiles) else list(quantiles)
        if not levels or not all(is_number(level) and 0 < level < 1 for level in levels):
            raise InputError(f"quantiles is {quantiles!r}; give shares above 0 and below 1, such as (0.05, 0.5, 0.95).")
        return self._shaped(self._prediction(X).quantiles_at([float(level) for level in levels]))

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the low and high ends of an interval of probability `level`.

        After `calibrate` it is the conformal interval, before it is the central interval of the mixture.
        """
        check_types("predict_interval", {"level": level}, {"level": Inside})
        said = self._prediction(X)
        if not hasattr(self, "calibration_"):
            low, high = said.mixture_interval(float(level))
        else:
            mean, std, y = (torch.tensor(part) for part in self.calibration_)
            rule = fit_residual_intervals(mean, y, level=float(level), scales=std)
            low, high = rule.apply(said.mean.double(), scales=said.std.double())
        return self._shaped(low), self._shaped(high)

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Return variances of each prediction: `total`, `aleatoric` and `epistemic`, each in the shape of predictions.

        The aleatoric part is the mean variance that members predict (noise in the data). The epistemic part is the variance of their means
        (disagreement), which more data would reduce.
        """
        said = self._prediction(X)
        parts = {"total": said.variance, "aleatoric": said.aleatoric, "epistemic": said.epistemic}
        return Bunch(**{name: self._shaped(part) for name, part in parts.items()})

    def calibrate(self, X: Any, y: Any) -> Self:
        """Fit conformal intervals on held-out rows, and return the estimator. `predict_interval` then covers its level on such rows."""
        check_is_fitted(self)
        said, targets = self._said_to_calibrate(X, y)
        if targets.size != said.mean.numel():
            raise InputError(
                f"y has shape {targets.shape}, and predictions {tuple(said.mean.shape)}; give one target for each."
            )
        self.calibration_ = np.stack([said.mean.double(), said.std.double(), targets.reshape(said.mean.shape)])
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class EnsembleClassifier(ClassifierMixin, EnsembleEstimator):
    """An ensemble of neural networks for classification.

    Args:
        class_weight: a weight by class, or 'balanced', as in scikit-learn; it multiplies `sample_weight`.

    Attributes:
        ensemble_: the `choral.Ensemble`.
        classes_: the classes, sorted.

    >>> X = np.array([[0.0], [0.1], [0.9], [1.0]] * 5)
    >>> y = np.array(["low", "low", "high", "high"] * 5)
    >>> model = EnsembleClassifier("packed", random_state=0).fit(X, y)
    >>> model.predict([[0.05], [0.95]]).tolist()
    ['low', 'high']
    """

    classes_: np.ndarray
    calibration_: np.ndarray

    def __init__(
        self,
        method: str | Recipe = "auto",
        *,
        n_estimators: int | None = None,
        epochs: int | None = None,
        time_limit: float | None = None,
        validation_fraction: float | None = 0.2,
        class_weight: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        super().__init__(
            method,
            n_estimators=n_estimators,
            epochs=epochs,
            time_limit=time_limit,
            validation_fraction=validation_fraction,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def _read_targets(self, y: Any, name: str = "y") -> np.ndarray:
        found = column_or_1d(y, warn=True)
        assert_all_finite(found, input_name=name)
        check_classification_targets(found)
        return np.asarray(found)

    def _learn_targets(self, y: np.ndarray) -> tuple[np.ndarray, Table, Likelihood | None]:
        self.classes_, numbers = np.unique(y, return_inverse=True)
        names = tuple(str(c) for c in self.classes_)
        if len(names) == 1:  # a network has two outputs at least; the second is never shown
            names = (*names, _NO_OTHER)
        return numbers.astype(np.int64), Table(task="classification", reason="as asked", classes=names), None

    def _encode_targets(self, y: np.ndarray, name: str = "y") -> np.ndarray:
        odd = [c for c in np.unique(y).tolist() if c not in self.classes_.tolist()]
        if odd:
            known = ", ".join(map(repr, self.classes_.tolist()[:10])) + ", ..." * (len(self.classes_) > 10)
            raise InputError(f"{name} holds {odd[0]!r}, a class that training did not have; it had {known}.")
        return np.searchsorted(self.classes_, y)

    def _weigh(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        if self.class_weight is None:
            return weights
        own = np.ones(len(y)) if weights is None else weights
        each = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[y], sample_weight=own)
        return own * each[y]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class (n_samples, n_classes), in the order of `classes_`."""
        return self._probs(self._prediction(X))

    def _probs(self, said: Any) -> np.ndarray:
        found = said.probs.double().numpy()[:, : len(self.classes_)]
        return np.asarray(found / found.sum(1, keepdims=True))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row (n_samples,)."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Return the uncertainty of each row in nats: `total`, `aleatoric` and `epistemic`, each (n_samples,).

        The total is the entropy of the mean prediction. The aleatoric part is the mean entropy of the members (noise in the data). The
        epistemic part is their disagreement (mutual information), which more data would reduce.
        """
        said = self._prediction(X)
        parts = {"total": said.entropy, "aleatoric": said.aleatoric, "epistemic": said.epistemic}
        return Bunch(**{name: part.double().numpy() for name, part in parts.items()})

    def calibrate(self, X: Any, y: Any) -> Self:
        """Fit conformal sets of classes on held-out rows, and return the estimator."""
        said, numbers = self._said_to_calibrate(X, y)
        self.calibration_ = np.column_stack([numbers, self._probs(said)])
        return self

    def predict_set(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Return the set of classes of each row (n_samples, n_classes), which contains the true class with probability `level`.

        Requires `calibrate`. The sets are adaptive prediction sets (`choral.calibration.ConformalSets`).
        """
        check_is_fitted(
            self, "calibration_", msg="predict_set of this %(name)s needs calibrate(X, y) with held-out rows first."
        )
        held, numbers = torch.tensor(self.calibration_[:, 1:]), torch.tensor(self.calibration_[:, 0]).long()
        rule = fit_conformal_sets(held, numbers, level=level)
        return np.asarray(rule.apply(torch.tensor(self.predict_proba(X))).numpy())
