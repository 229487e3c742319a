"""EnsembleClassifier: class probabilities, and how sure they are."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import Bunch, assert_all_finite, column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from choral.base.errors import InputError
from choral.calibration import fit_conformal_sets
from choral.objectives.likelihoods import Likelihood
from choral.recipes.recipe import Recipe
from choral.sklearn.estimator import EnsembleEstimator
from choral.tables.table import Table

_NO_OTHER = "no other class"


class EnsembleClassifier(ClassifierMixin, EnsembleEstimator):
    """A classifier that is an ensemble of neural networks.

    Args:
        class_weight: what a row of each class counts, by class, or 'balanced', as other classifiers of scikit-learn; it multiplies
            `sample_weight`.

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
        """Return the likeliest class of each row (n_samples,)."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Return how unsure the ensemble is of each row, in nats: `total`, `aleatoric` and `epistemic`, each (n_samples,).

        The total is the entropy of the mean prediction, its aleatoric part the mean entropy of the members (noise in the data), and its
        epistemic part what they disagree about (mutual information), which more data would lower.
        """
        said = self._prediction(X)
        parts = {"total": said.entropy, "aleatoric": said.aleatoric, "epistemic": said.epistemic}
        return Bunch(**{name: part.double().numpy() for name, part in parts.items()})

    def calibrate(self, X: Any, y: Any) -> Self:
        """Learn from rows that no member was trained on how large sets of classes must be; return the estimator."""
        said, numbers = self._said_to_calibrate(X, y)
        self.calibration_ = np.column_stack([numbers, self._probs(said)])
        return self

    def predict_set(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Return which classes are in the set of each row (n_samples, n_classes): it holds the right one with probability `level`.

        Needs `calibrate` first. Sets are those of adaptive prediction sets (`choral.calibration.ConformalSets`).
        """
        check_is_fitted(
            self, "calibration_", msg="predict_set of this %(name)s needs calibrate(X, y) with held-out rows first."
        )
        held, numbers = torch.tensor(self.calibration_[:, 1:]), torch.tensor(self.calibration_[:, 0]).long()
        rule = fit_conformal_sets(held, numbers, level=level)
        return np.asarray(rule.apply(torch.tensor(self.predict_proba(X))).numpy())
