"""Conformal intervals for regression: split conformal (plain or scaled residuals) and conformalized quantiles.

Each target of a row has a threshold of its own, so the promise holds target by target.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration.coverage import check_rule, conformal_threshold
from choral.metrics.inputs import checked_finite


@dataclass(frozen=True, kw_only=True)
class ConformalResidual(Value):
    """Intervals of prediction ± threshold x scale.

    Args:
        thresholds: one for each target; None (too few held-out rows) gives the whole line.
        level: the promised coverage, 1 - alpha.
        scaled: the threshold multiplies a predicted scale instead of standing alone.

    >>> lower, upper = ConformalResidual(thresholds=(2.0,), level=0.9).apply(torch.tensor([1.0, 5.0]))
    >>> lower.tolist(), upper.tolist()
    ([-1.0, 3.0], [3.0, 7.0])
    """

    thresholds: tuple[float | None, ...]
    level: float
    scaled: bool = False

    def __post_init__(self) -> None:
        check_rule(self.level, self.thresholds)

    def apply(self, predictions: Tensor, *, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends.

        Args:
            predictions: (batch,) or (batch, target).
            scales: positive, of the same shape; given exactly when the thresholds were fitted with scales.
        """
        if (scales is not None) != self.scaled:
            given, wanted = ("given", "without") if scales is not None else ("missing", "with")
            raise InputError(f"scales is {given} but these intervals were fitted {wanted} scales.")
        predictions = checked_finite(predictions, "predictions")
        half = _per_target(self.thresholds, predictions)
        if scales is not None:
            half = half * _checked_scales(scales, predictions)
        return predictions - half, predictions + half


@dataclass(frozen=True, kw_only=True)
class ConformalQuantile(Value):
    """Intervals given by predicted quantiles, widened (or narrowed) by a threshold at both ends.

    Args:
        thresholds: one for each target, negative to narrow; None (too few held-out rows) gives the whole line.
        level: the promised coverage, 1 - alpha.
    """

    thresholds: tuple[float | None, ...]
    level: float

    def __post_init__(self) -> None:
        check_rule(self.level, self.thresholds)

    def apply(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the corrected ends; ends that would cross meet halfway.

        Shapes: lower and upper (batch,) or (batch, target) -> the same.
        """
        lower, upper = checked_finite(lower, "lower"), checked_finite(upper, "upper")
        _same_shape(lower=lower, upper=upper)
        shift = _per_target(self.thresholds, lower)
        middle = 0.5 * (lower + upper)
        return torch.minimum(lower - shift, middle), torch.maximum(upper + shift, middle)


def fit_residual_intervals(
    predictions: Tensor, targets: Tensor, *, level: float = 0.9, scales: Tensor | None = None
) -> ConformalResidual:
    """Return intervals around predictions that hold a new target with probability `level`.

    The score of a held-out row is |target - prediction|, divided by its predicted scale if scales are given: then
    the intervals are wide where the ensemble is unsure.

    Args:
        predictions: (batch,) or (batch, target), the ensemble's means for held-out rows.
        targets: of the same shape.
        level: probability to cover, 1 - alpha.
        scales: positive, of the same shape; for example the mixture's standard deviation.

    Reference: Lei et al., "Distribution-Free Predictive Inference for Regression", 2018, arXiv:1604.04173, sections
    2.2 and 5.2.
    """
    predictions, targets = checked_finite(predictions, "predictions"), checked_finite(targets, "targets")
    _same_shape(predictions=predictions, targets=targets)
    scores = (targets - predictions).abs()
    if scales is not None:
        scores = scores / _checked_scales(scales, predictions)
    return ConformalResidual(thresholds=_thresholds(scores, level), level=level, scaled=scales is not None)


def fit_quantile_intervals(lower: Tensor, upper: Tensor, targets: Tensor, *, level: float = 0.9) -> ConformalQuantile:
    """Return a correction of predicted intervals so that they hold a new target with probability `level`.

    The score of a held-out row is max(lower - target, target - upper): how far outside (or, if negative, inside) it is.

    Args:
        lower: (batch,) or (batch, target), for example of `choral.metrics.mixture_interval` at the same level.
        upper: of the same shape.
        targets: of the same shape.
        level: probability to cover, 1 - alpha.

    Reference: Romano, Patterson & Candès, "Conformalized Quantile Regression", 2019, arXiv:1905.03222, algorithm 1.
    """
    lower, upper = checked_finite(lower, "lower"), checked_finite(upper, "upper")
    targets = checked_finite(targets, "targets")
    _same_shape(lower=lower, upper=upper, targets=targets)
    return ConformalQuantile(
        thresholds=_thresholds(torch.maximum(lower - targets, targets - upper), level), level=level
    )


def _same_shape(**tensors: Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    first = next(iter(shapes.values()))
    if len(set(shapes.values())) > 1 or len(first) not in (1, 2) or 0 in first:
        raise InputError(f"the shapes are {shapes}; they must be equal, (batch,) or (batch, target), and not empty.")


def _checked_scales(scales: Tensor, predictions: Tensor) -> Tensor:
    scales = checked_finite(scales, "scales").to(predictions.device)
    _same_shape(predictions=predictions, scales=scales)
    if float(scales.min()) <= 0:
        raise InputError(f"scales goes down to {float(scales.min()):.4g}; every scale must be positive.")
    return scales


def _thresholds(scores: Tensor, level: float) -> tuple[float | None, ...]:
    columns = scores.reshape(len(scores), -1)
    return tuple(conformal_threshold(column, level) for column in columns.T)


def _per_target(thresholds: tuple[float | None, ...], values: Tensor) -> Tensor:
    """Return the thresholds in the shape of one row of the values, infinite where there is none."""
    targets = values[0].numel() if len(values) else len(thresholds)
    if values.ndim not in (1, 2) or targets != len(thresholds):
        raise InputError(
            f"shape {tuple(values.shape)} does not fit {len(thresholds)} thresholds; it must be (batch,) or "
            "(batch, target) with one threshold for each target."
        )
    row = [torch.inf if t is None else t for t in thresholds]
    return torch.tensor(row, dtype=values.dtype, device=values.device).reshape(values.shape[1:])
