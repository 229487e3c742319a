"""EnsembleRegressor: numbers with their deviation, quantiles and intervals."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import Bunch, check_array
from sklearn.utils.validation import check_is_fitted

from choral.base.errors import InputError
from choral.base.values import is_number
from choral.calibration import fit_residual_intervals
from choral.objectives.likelihoods import LearnedGaussian, Likelihood
from choral.objectives.likelihoods.regression import TargetScale
from choral.sklearn.estimator import EnsembleEstimator
from choral.tables.table import Table


class EnsembleRegressor(RegressorMixin, EnsembleEstimator):
    """A regressor that is an ensemble of neural networks, each of which predicts a mean and a variance.

    Args:

    Attributes:
        ensemble_: the `choral.Ensemble`.

    Targets are (n_samples,) or (n_samples, n_outputs), and so are predictions.

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
        """Return (row, target, ...) as targets were given."""
        found = values.double().numpy()
        return np.asarray(found[:, 0] if self._is_flat else found)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean of what is predicted for each row, and its standard deviation if asked.

        The deviation is that of the mixture: noise in the data and disagreement of the members together.
        """
        said = self._prediction(X)
        return (self._shaped(said.mean), self._shaped(said.std)) if return_std else self._shaped(said.mean)

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Return quantiles of the mixture, one or several shares: (n_samples, n_quantiles), or (n_samples, n_outputs, n_quantiles)."""
        levels = [quantiles] if is_number(quantiles) else list(quantiles)
        if not levels or not all(is_number(level) and 0 < level < 1 for level in levels):
            raise InputError(f"quantiles is {quantiles!r}; give shares above 0 and below 1, such as (0.05, 0.5, 0.95).")
        return self._shaped(self._prediction(X).quantiles_at([float(level) for level in levels]))

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the low and high ends of an interval that holds the target with probability `level`.

        After `calibrate` it is the conformal one, whose promise holds whatever the data; before, the central interval of the mixture.
        """
        if not is_number(level) or not 0 < level < 1:
            raise InputError(f"level is {level!r}; give a probability above 0 and below 1, such as 0.9.")
        said = self._prediction(X)
        if not hasattr(self, "calibration_"):
            low, high = said.mixture_interval(float(level))
        else:
            mean, std, y = (torch.tensor(part) for part in self.calibration_)
            rule = fit_residual_intervals(mean, y, level=float(level), scales=std)
            low, high = rule.apply(said.mean.double(), scales=said.std.double())
        return self._shaped(low), self._shaped(high)

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Return variances of each prediction: `total`, and its parts `aleatoric` and `epistemic`, each in the shape of predictions.

        The aleatoric part is the mean variance that members predict (noise in the data), the epistemic one the variance of their means
        (what they disagree about), which more data would lower.
        """
        said = self._prediction(X)
        parts = {"total": said.variance, "aleatoric": said.aleatoric, "epistemic": said.epistemic}
        return Bunch(**{name: self._shaped(part) for name, part in parts.items()})

    def calibrate(self, X: Any, y: Any) -> Self:
        """Learn from rows that no member was trained on how wide intervals must be; return the estimator.

        `predict_interval` then promises its level for rows like these, whatever the ensemble thinks of itself.
        """
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
