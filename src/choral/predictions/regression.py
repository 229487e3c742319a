"""Gaussian mixtures: real targets, a mean and a variance from each member."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from choral import metrics
from choral.base.errors import InputError
from choral.base.values import Value
from choral.metrics.regression import gaussian_log_scores
from choral.posthoc import (
    ConformalQuantile,
    ConformalResidual,
    MemberSelection,
    StackingWeights,
    fit_quantile_intervals,
    fit_residual_intervals,
)
from choral.predictions.base import UNFITTED, Prediction

_LEVELS = [round(0.05 * i, 2) for i in range(1, 20)] + [0.99]
_ROWS = 60  # of a picture of intervals, at most


@dataclass(frozen=True)
class Regression(Prediction):
    """The Gaussian mixture an ensemble predicts.

    Args:
        member_means: (member, batch, target).
        member_variances: (member, batch, target).
    """

    task: ClassVar[str] = "regression"
    held: ClassVar[tuple[str, ...]] = ("member_means", "member_variances")
    shown: ClassVar[tuple[str, ...]] = ("rmse", "nll", "crps", "coverage_95")
    alarm: ClassVar[str] = "variance"
    rules: ClassVar[tuple[str, ...]] = ("scaled", "residual", "quantile")
    accepts: ClassVar[tuple[type[Value], ...]] = (
        MemberSelection,
        StackingWeights,
        ConformalResidual,
        ConformalQuantile,
    )

    member_means: Tensor
    member_variances: Tensor

    @property
    def member_values(self) -> Tensor:
        """Means of each member."""
        return self.member_means

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the mixture (batch, target)."""
        return self.average(self.member_means)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean of the member variances (batch, target): noise in the data."""
        return self.average(self.member_variances)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance of the member means (batch, target): what the members disagree about."""
        return self.average((self.member_means - self.mean).square())

    @cached_property
    def variance(self) -> Tensor:
        """Variance of the mixture: aleatoric plus epistemic (batch, target)."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """Standard deviation of the mixture (batch, target)."""
        return self.variance.sqrt()

    def rescaled(self, scale: float, shift: float) -> Self:
        """Return the prediction of targets * scale + shift."""
        means, variances = self.member_means * scale + shift, self.member_variances * scale**2
        return replace(self, member_means=means, member_variances=variances)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the moment-matched Gaussian (batch, target)."""
        width = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
        return self.mean - width * self.std, self.mean + width * self.std

    def mixture_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture itself, from its quantiles (batch, target)."""
        return metrics.mixture_interval(self.member_means, self.member_variances, level=level, weights=self.shares)

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Return the interval that holds the target with the promised probability (batch, target)."""
        if self.conformal is None:
            raise InputError(UNFITTED)
        low, high = _applied(self.conformal, self)
        return low, high

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Value:
        if rule == "quantile":
            return fit_quantile_intervals(*self.mixture_interval(level), targets, level=level)
        scales = self.std.double() if rule == "scaled" else None
        return fit_residual_intervals(self.mean.double(), targets, level=level, scales=scales)

    def targets(self, y: Any) -> Tensor:
        """Return targets in the shape of the predicted mean."""
        return torch.as_tensor(np.asarray(y)).double().reshape(self.mean.shape)

    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log density each member gives to each row of targets (member, batch)."""
        return gaussian_log_scores(self.member_means, self.member_variances, targets).flatten(2).sum(-1)

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return every measure of `choral.metrics.evaluate_regression`; a member alone is the mixture of its draws."""
        found = metrics.evaluate_regression(self.member_means, self.member_variances, targets, weights=self.shares)
        if self.learners is None:
            return found
        parts = [(self.member_means[rows], self.member_variances[rows]) for rows in self.rows_by_member()]
        count = len(parts)
        return found | {
            "member_rmse": sum(metrics.rmse(m, targets) for m, _ in parts) / count,
            "member_nll": sum(metrics.mixture_nll(m, v, targets) for m, v in parts) / count,
            "member_crps": sum(metrics.crps(m, v, targets) for m, v in parts) / count,
            "residual_correlation": metrics.member_correlation(self.by_member(self.member_means) - targets),
        }

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return rmse and nll."""
        return {
            "rmse": metrics.rmse(self.member_means, targets, weights=self.shares),
            "nll": metrics.mixture_nll(self.member_means, self.member_variances, targets, weights=self.shares),
        }

    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return the coverage of central intervals of many levels, and the intervals of some rows."""
        at = metrics.mixture_cdf(self.member_means, self.member_variances, targets, weights=self.shares)
        covered = [{"level": n, "coverage": float(((at - 0.5).abs() <= n / 2).double().mean())} for n in _LEVELS]
        order = self.mean[:, 0].argsort()
        shown = order[torch.linspace(0, len(order) - 1, min(len(order), _ROWS)).round().long()]
        low, high = self.mixture_interval(0.9)
        columns = {"target": targets, "mean": self.mean, "low": low, "high": high}
        return {
            "coverage": covered,
            "intervals": {"level": 0.9, "rows": [{n: v[i, 0] for n, v in columns.items()} for i in shown]},
        }

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return how alike the members' errors are."""
        errors = self.by_member(self.member_means) - targets
        return "correlation of errors", metrics.correlation_matrix(errors)

    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return the deviation of the first target."""
        return "deviation", self.std[:, 0], None

    def alarms(self) -> dict[str, Tensor]:
        """Return the variance of the first target and its parts."""
        return {n: getattr(self, n)[:, 0].double() for n in ("variance", "epistemic", "aleatoric")}

    def columns(self) -> dict[str, list[Any]]:
        """Return mean, std, an interval of 95 % and both parts of the deviation of the first target."""
        low, high = self.interval(0.95)
        found = {"mean": self.mean, "std": self.std, "low_95": low, "high_95": high}
        found |= {"aleatoric_std": self.aleatoric.sqrt(), "epistemic_std": self.epistemic.sqrt()}
        return {name: values[:, 0].tolist() for name, values in found.items()}


def _applied(rule: ConformalResidual | ConformalQuantile, prediction: Regression) -> tuple[Tensor, Tensor]:
    if isinstance(rule, ConformalQuantile):
        return rule.apply(*prediction.mixture_interval(rule.level))
    scales = prediction.std.double() if rule.scaled else None
    return rule.apply(prediction.mean.double(), scales=scales)
