"""What all predictions of numbers share: moments of the mixture, intervals, coverage, errors."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from choral import metrics
from choral.base import rng
from choral.base.arrays import tensor_of
from choral.base.errors import InputError
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
from choral.predictions.base import UNFITTED, Predictive

LEVELS = [round(0.05 * i, 2) for i in range(1, 20)] + [0.99]
SHOWN_LEVELS = (0.5, 0.9, 0.95)
MOMENTS = ("mean", "std", "aleatoric_std", "epistemic_std")
_ROWS = 60  # of a picture of intervals, at most


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
        """Return the coverage of central intervals of many levels, and the intervals of some rows."""
        at = self.ranks(targets)
        covered = [{"level": n, "coverage": float(((at - 0.5).abs() <= n / 2).double().mean())} for n in LEVELS]
        low, high = self.mixture_interval(0.9)
        columns = {
            n: v.flatten(1)[:, 0] for n, v in {"target": targets, "mean": self.mean, "low": low, "high": high}.items()
        }
        order = columns["mean"].argsort()
        shown = order[torch.linspace(0, len(order) - 1, min(len(order), _ROWS)).round().long()]
        rows = [{n: v[i] for n, v in columns.items()} for i in shown]
        return {"coverage": covered, "intervals": {"level": 0.9, "rows": rows}}

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
