"""Predicted numbers: Gaussian mixtures and mixtures of any torch distribution.

Gaussian mixtures: real targets, a mean and a variance from each member, everything in closed form.

What all predictions of numbers share: moments of the mixture, intervals, coverage, errors.

Mixtures of any torch distribution, of real numbers or of counts.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, NegativeBinomial, Poisson, StudentT

from choral import metrics
from choral.base import rng
from choral.base.batches import tensor_of
from choral.base.errors import InputError
from choral.base.rng import generator
from choral.base.values import Value
from choral.calibration import (
    ConformalQuantile,
    ConformalResidual,
    MemberSelection,
    StackingWeights,
    fit_quantile_intervals,
    fit_residual_intervals,
)
from choral.calibration.selection import Loss, mixture
from choral.metrics.inputs import checked_weights
from choral.metrics.regression import crps_rows, gaussian_log_scores
from choral.predictions.base import UNFITTED, Predictive, means_of

LEVELS = [round(0.05 * i, 2) for i in range(1, 20)] + [0.99]
SHOWN_LEVELS = (0.5, 0.9, 0.95)
MOMENTS = ("mean", "std", "aleatoric_std", "epistemic_std")
_ROWS, _WORST = 400, 10  # of pictures, and of a table, at most


class Numbers(Predictive):
    """Numbers with a mean and a variance from each member, (member, batch, target)."""

    shown: ClassVar[tuple[str, ...]] = ("rmse", "nll", "mae", "coverage_95")
    alarm: ClassVar[str] = "variance"
    offers: ClassVar[tuple[str, ...]] = (*MOMENTS, "interval", "conformal_interval", "quantiles", "samples")
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

    @abstractmethod
    def log_densities(self, targets: Tensor) -> Tensor:
        """Return each member's log density, or log probability, of each target. Shapes: (batch, target) -> (member, batch, target)."""

    @abstractmethod
    def cdf(self, values: Tensor) -> Tensor:
        """Return the mixture's distribution function. Shapes: (batch, target) -> (batch, target)."""

    @abstractmethod
    def quantile(self, level: float) -> Tensor:
        """Return the value below which the mixture puts probability `level` (batch, target)."""

    def quantiles_at(self, levels: Sequence[float] | None) -> Tensor:
        """Return quantiles of the mixture (batch, target, level); of 5, 50 and 95 % if None."""
        found = [self.quantile(level) for level in ((0.05, 0.5, 0.95) if levels is None else levels)]
        return torch.stack(found, -1).to(self.mean.dtype)

    def samples(self, count: int, *, seed: int = 0) -> Tensor:
        """Return draws of the mixture (draw, batch, target): one member for each draw."""
        shares = torch.ones(len(self)) if self.weights is None else torch.tensor(self.weights)
        with rng.seeded(seed, "samples"):
            return self._drawn(torch.multinomial(shares, count, replacement=True))

    @abstractmethod
    def _drawn(self, which: Tensor) -> Tensor:
        """Return one draw of each of these members, (draw,) -> (draw, batch, target)."""

    @abstractmethod
    def mixture_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture itself, from its quantiles (batch, target)."""

    @abstractmethod
    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval that is shown (batch, target)."""

    @abstractmethod
    def ranks(self, targets: Tensor) -> Tensor:
        """Return the share of the mixture below each target (batch, target): uniform if the ensemble is calibrated."""

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Return the interval that holds the target with the promised probability (batch, target)."""
        rule = self.conformal
        if rule is None:
            raise InputError(UNFITTED)
        low, high = (
            rule.apply(*self.mixture_interval(rule.level))
            if isinstance(rule, ConformalQuantile)
            else rule.apply(self.mean.double(), scales=self.std.double() if rule.scaled else None)
        )
        return low, high

    def covered(self, targets: Tensor) -> Tensor:
        """Return whether each interval holds its target (batch, target)."""
        low, high = self.conformal_interval()
        return (low <= targets) & (targets <= high)

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Value:
        if rule == "quantile":
            return fit_quantile_intervals(*self.mixture_interval(level), targets, level=level)
        scales = self.std.double() if rule == "scaled" else None
        return fit_residual_intervals(self.mean.double(), targets, level=level, scales=scales)

    def targets(self, y: Any) -> Tensor:
        """Return targets in the shape of the predicted mean."""
        found = tensor_of(y).double()
        if found.numel() != self.mean.numel() or len(found) != len(self.mean):
            raise InputError(
                f"y has shape {tuple(found.shape)} and the ensemble predicts {tuple(self.mean.shape)}; give one target for each."
            )
        return found.reshape(self.mean.shape)

    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log density each member gives to each row of targets (member, batch)."""
        return self.log_densities(targets).flatten(2).sum(-1)

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return a mixture for each target."""
        return mixture(self.log_densities(targets))

    def nll_rows(self, targets: Tensor) -> Tensor:
        """Return minus the log score of the mixture, the mean over targets (batch,)."""
        found = self.log_densities(targets).double()
        shares = checked_weights(self.shares, members=len(found), like=found)
        logs = found + shares.log().reshape(-1, *[1] * (found.dim() - 1))
        return -logs.logsumexp(0).flatten(1).mean(1)

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return rmse and nll."""
        error = float((self.mean.double() - targets).square().mean()) ** 0.5
        return {"rmse": error, "nll": float(self.nll_rows(targets).mean())}

    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return the coverage of central intervals, the histogram of ranks (PIT), the intervals of some rows and the worst rows."""
        at = self.ranks(targets)
        covered = [{"level": n, "coverage": float(((at - 0.5).abs() <= n / 2).double().mean())} for n in LEVELS]
        low, high = self.mixture_interval(0.9)
        columns = {
            n: v.flatten(1)[:, 0] for n, v in {"target": targets, "mean": self.mean, "low": low, "high": high}.items()
        }
        order = columns["mean"].argsort()
        shown = order[torch.linspace(0, len(order) - 1, min(len(order), _ROWS)).round().long()]
        worst = (columns["mean"] - columns["target"]).abs().argsort(descending=True)[:_WORST]
        rows, errors = ([{"row": int(i)} | {n: v[i] for n, v in columns.items()} for i in w] for w in (shown, worst))
        apart = columns["target"].double() - columns["target"].double().mean()
        return {
            "coverage": covered,
            "pit": torch.histc(at.double(), bins=20, min=0, max=1) / at.numel(),
            "intervals": {"level": 0.9, "rows": rows},
            "worst": errors,
            "baseline": {"rmse": apart.square().mean().sqrt(), "mae": apart.abs().mean()},  # of predicting the mean
        }

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return how alike the members' errors are."""
        errors = self.by_member(self.member_means) - targets
        return "correlation of errors", metrics.correlation_matrix(errors)

    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return the deviation of the first target."""
        return "deviation", self.std.flatten(1)[:, 0], None

    def alarms(self) -> dict[str, Tensor]:
        """Return the variance of the first target and its parts."""
        return {n: getattr(self, n).flatten(1)[:, 0].double() for n in ("variance", "epistemic", "aleatoric")}

    def columns(self) -> dict[str, list[Any]]:
        """Return mean, std, an interval of 95 % and both parts of the deviation, of each target if there are several."""
        low, high = self.interval(0.95)
        found = {"mean": self.mean, "std": self.std, "low_95": low, "high_95": high}
        found |= {"aleatoric_std": self.aleatoric.sqrt(), "epistemic_std": self.epistemic.sqrt()}
        several = self.mean.flatten(1).shape[1]
        return {
            name if several == 1 else f"{name}_{i}": (values.flatten(1)[:, i] + 0.0).tolist()  # no -0
            for i in range(several)
            for name, values in found.items()
        }


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


_STEPS = 48  # halvings until an interval is as exact as its numbers


def member_cdf(found: Distribution, values: Tensor) -> Tensor:
    """Return a distribution's function at some values; torch lacks three that scipy has.

    >>> round(float(member_cdf(Poisson(torch.tensor(1.0)), torch.tensor(0.0))), 4)
    0.3679
    """
    if isinstance(found, StudentT):
        from scipy.special import stdtr

        z = (values - found.loc) / found.scale
        return torch.as_tensor(stdtr(found.df.numpy(), z.numpy()))
    if isinstance(found, Poisson):
        whole = values.floor()
        return torch.where(whole < 0, 0.0, torch.special.gammaincc(whole.clamp_min(0) + 1, found.rate))
    if isinstance(found, NegativeBinomial):
        from scipy.special import betainc

        whole = values.floor()
        inside = betainc(found.total_count.numpy(), whole.clamp_min(0).numpy() + 1, 1 - found.probs.numpy())
        return torch.where(whole < 0, 0.0, torch.as_tensor(inside))
    try:
        return found.cdf(values)
    except NotImplementedError as error:
        raise InputError(
            f"{type(found).__name__} has no distribution function, which intervals and coverage need; use mean, variance and nll."
        ) from error


class _Mixed(Numbers):
    """Members whose outputs describe torch distributions; float64 throughout."""

    outputs: Tensor
    distribution: Callable[[Tensor], Distribution]
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None

    @cached_property
    def _found(self) -> Distribution:
        return self.distribution(self.outputs.double())

    @cached_property
    def _shift_and_size(self) -> tuple[Tensor, Tensor]:
        mean, std = ((0.0,), (1.0,)) if self.scale is None else self.scale
        return torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)

    @cached_property
    def member_means(self) -> Tensor:  # type: ignore[override]  # a field elsewhere, computed here
        """Means of each member."""
        shift, size = self._shift_and_size
        return self._found.mean * size + shift

    @cached_property
    def member_variances(self) -> Tensor:  # type: ignore[override]  # a field elsewhere, computed here
        """Variances of each member."""
        return self._found.variance * self._shift_and_size[1].square()

    def log_densities(self, targets: Tensor) -> Tensor:
        """Return each member's log density in units of the data."""
        shift, size = self._shift_and_size
        return self._found.log_prob((targets.double() - shift) / size) - size.log()

    def cdf(self, values: Tensor) -> Tensor:
        """Return the mixture's distribution function."""
        shift, size = self._shift_and_size
        each = member_cdf(self._found, ((values.double() - shift) / size).expand(self._found.mean.shape))
        shares = checked_weights(self.shares, members=len(each), like=each)
        return torch.einsum("m,m...->...", shares, each).clamp(0.0, 1.0)

    def _reached(self, level: float) -> Tensor:
        """Return where the mixture's distribution function reaches a level, by bisection (batch, target)."""
        if not 0.0 < level < 1.0:
            raise InputError(f"level is {level}; it must lie strictly between 0 and 1.")
        reach = self.member_variances.sqrt() * (2.0 / min(level, 1 - level)) ** 0.5  # Chebyshev's inequality
        low, high = (self.member_means - reach).min(0).values, (self.member_means + reach).max(0).values
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high

    def _drawn(self, which: Tensor) -> Tensor:
        shift, size = self._shift_and_size
        return torch.stack([self._found.sample()[i] for i in which]) * size + shift

    def mixture_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture itself."""
        if level not in self._intervals:
            tail = 0.5 * (1.0 - level)
            self._intervals[level] = self.quantile(tail), self.quantile(1.0 - tail)
        return self._intervals[level]

    @cached_property
    def _intervals(self) -> dict[float, tuple[Tensor, Tensor]]:
        return {}

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture: no Gaussian stands in for it."""
        return self.mixture_interval(level)

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return squared and absolute errors, nll and coverage of each point."""
        errors, at = (self.mean.double() - targets).flatten(1), (self.ranks(targets) - 0.5).abs().flatten(1)
        found = {"mse": errors.square().mean(1), "mae": errors.abs().mean(1), "nll": self.nll_rows(targets)}
        return found | {f"coverage_{round(100 * n)}": (at <= 0.5 * n).double().mean(1) for n in SHOWN_LEVELS}

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return errors, nll, coverage and width of intervals, and the measures of members alone."""
        found = means_of(self.row_scores(targets)) | {"width_90": metrics.interval_width(*self.mixture_interval(0.9))}
        parts = [self.of_rows(rows) for rows in self.rows_by_member()]
        errors = self.by_member(self.member_means).double() - targets
        return found | {
            "member_rmse": sum(float((p.mean.double() - targets).square().mean()) ** 0.5 for p in parts) / len(parts),
            "member_nll": sum(float(p.nll_rows(targets).mean()) for p in parts) / len(parts),
            "aleatoric": float(self.aleatoric.double().mean()),
            "epistemic": float(self.epistemic.double().mean()),
            "residual_correlation": metrics.member_correlation(errors),
        }


@dataclass(frozen=True)
class Mixture(_Mixed):
    """A mixture of real distributions.

    Args:
        outputs: raw outputs (member, batch, output).
        distribution: what outputs describe, a torch distribution of (member, batch, target) in units of training.
        scale: mean and deviation of each target, by which training divided; None for none.
    """

    task: ClassVar[str] = "regression"
    held: ClassVar[tuple[str, ...]] = ("outputs",)

    outputs: Tensor
    distribution: Callable[[Tensor], Distribution]
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def quantile(self, level: float) -> Tensor:
        """Return the value below which the mixture puts probability `level`."""
        return self._reached(level)

    def ranks(self, targets: Tensor) -> Tensor:
        """Return the distribution function at the targets."""
        return self.cdf(targets)


@dataclass(frozen=True)
class Counts(_Mixed):
    """A mixture of distributions of counts.

    Args:
        outputs: raw outputs (member, batch, output).
        distribution: what outputs describe, a torch distribution of (member, batch, target).
    """

    task: ClassVar[str] = "counts"
    held: ClassVar[tuple[str, ...]] = ("outputs",)

    outputs: Tensor
    distribution: Callable[[Tensor], Distribution]
    scale: None = None

    def quantile(self, level: float) -> Tensor:
        """Return the smallest count at which the mixture's distribution function reaches `level`."""
        found = (self._reached(level) - 1e-9).ceil().clamp_min(0) + 0.0
        return torch.where(
            (found > 0) & (self.cdf(found - 1) >= level), found - 1, found
        )  # a wide bracket ends above the step

    def ranks(self, targets: Tensor) -> Tensor:
        """Return a uniform draw from the step of the distribution function at each target."""
        low, high = self.cdf(targets - 1), self.cdf(targets)
        return low + torch.rand(low.shape, dtype=torch.float64, generator=generator(0, "ranks")) * (high - low)
