"""Gaussian mixtures: real targets, a mean and a variance from each member, everything in closed form."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from choral import metrics
from choral.metrics.regression import crps_rows, gaussian_log_scores
from choral.predictions.numbers import SHOWN_LEVELS, Numbers


@dataclass(frozen=True)
class Regression(Numbers):
    """The Gaussian mixture an ensemble predicts.

    Args:
        member_means: (member, batch, target).
        member_variances: (member, batch, target).
    """

    task: ClassVar[str] = "regression"
    held: ClassVar[tuple[str, ...]] = ("member_means", "member_variances")
    shown: ClassVar[tuple[str, ...]] = ("rmse", "nll", "crps", "coverage_95")

    member_means: Tensor
    member_variances: Tensor

    def log_densities(self, targets: Tensor) -> Tensor:
        """Return Gaussian log densities."""
        return gaussian_log_scores(self.member_means, self.member_variances, targets)

    def cdf(self, values: Tensor) -> Tensor:
        """Return the mixture's distribution function."""
        return metrics.mixture_cdf(self.member_means, self.member_variances, values, weights=self.shares)

    def quantile(self, level: float) -> Tensor:
        """Return a quantile of the mixture (batch, target)."""
        return metrics.mixture_quantile(self.member_means, self.member_variances, level, weights=self.shares)

    def mixture_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture itself, from its quantiles (batch, target)."""
        return metrics.mixture_interval(self.member_means, self.member_variances, level=level, weights=self.shares)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture (batch, target): as much of it lies below as above."""
        low, high = self.mixture_interval(level)
        return low.to(self.mean.dtype), high.to(self.mean.dtype)

    def ranks(self, targets: Tensor) -> Tensor:
        """Return the distribution function at the targets."""
        return self.cdf(targets)

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return errors, nll, crps and coverage of each point."""
        errors = (self.mean.double() - targets).flatten(1)
        at = (self.cdf(targets) - 0.5).abs().flatten(1)
        score = crps_rows(self.member_means, self.member_variances, targets, weights=self.shares).flatten(1).mean(1)
        found = {"mse": errors.square().mean(1), "mae": errors.abs().mean(1), "nll": self.nll_rows(targets)}
        covered = {f"coverage_{round(100 * n)}": (at <= 0.5 * n).double().mean(1) for n in SHOWN_LEVELS}
        return found | {"crps": score} | covered

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

    def _drawn(self, which: Tensor) -> Tensor:
        return torch.normal(self.member_means[which], self.member_variances[which].sqrt())
