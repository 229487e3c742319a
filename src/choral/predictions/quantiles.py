"""Quantiles of real targets: each member's, averaged level by level."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from torch import Tensor

from choral import metrics
from choral.base.batches import tensor_of
from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration import ConformalQuantile, MemberSelection, StackingWeights, fit_quantile_intervals
from choral.calibration.selection import Loss
from choral.predictions.base import UNFITTED, Predictive, means_of
from choral.predictions.regression import MOMENTS


@dataclass(frozen=True)
class QuantileRegression(Predictive):
    """Predicted quantiles; the ensemble's are the members' average (Vincent's).

    Args:
        member_quantiles: (member, batch, target, level), rising along the levels.
        levels: their shares.
    """

    task: ClassVar[str] = "quantiles"
    held: ClassVar[tuple[str, ...]] = ("member_quantiles",)
    score: ClassVar[str] = "pinball"
    shown: ClassVar[tuple[str, ...]] = ("pinball", "mae", "coverage", "width")
    alarm: ClassVar[str] = "width"
    offers: ClassVar[tuple[str, ...]] = (*MOMENTS, "interval", "conformal_interval", "quantiles")
    rules: ClassVar[tuple[str, ...]] = ("quantile",)
    accepts: ClassVar[tuple[type[Value], ...]] = (MemberSelection, StackingWeights, ConformalQuantile)

    member_quantiles: Tensor
    levels: tuple[float, ...]

    @cached_property
    def quantiles(self) -> Tensor:
        """Quantiles of the ensemble (batch, target, level)."""
        return self.average(self.member_quantiles)

    @property
    def _middle(self) -> int:
        return min(range(len(self.levels)), key=lambda i: abs(self.levels[i] - 0.5))

    @property
    def mean(self) -> Tensor:
        """The quantile nearest to the median (batch, target)."""
        return self.quantiles[..., self._middle]

    @property
    def member_values(self) -> Tensor:
        """The members' quantiles nearest to the median."""
        return self.member_quantiles[..., self._middle]

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance of the members' medians (batch, target)."""
        return self.average((self.member_values - self.mean).square())

    @cached_property
    def aleatoric(self) -> Tensor:
        """Squared half width between the outermost levels, in deviations of a Gaussian (batch, target)."""
        first, last = (NormalDist().inv_cdf(level) for level in (self.levels[0], self.levels[-1]))
        width = self.quantiles[..., -1] - self.quantiles[..., 0]
        return (width / (last - first)).square() if len(self.levels) > 1 else torch.zeros_like(width)

    @property
    def variance(self) -> Tensor:
        """Both parts of the uncertainty (batch, target)."""
        return self.aleatoric + self.epistemic

    def quantiles_at(self, levels: Sequence[float] | None) -> Tensor:
        """Return the quantiles of some of the fitted levels, of all if None (batch, target, level)."""
        if levels is None:
            return self.quantiles
        near = [[i for i, known in enumerate(self.levels) if abs(known - level) < 1e-9] for level in levels]
        if not all(near):
            raise InputError(
                f"levels are {tuple(levels)}; the members predict the quantiles {self.levels}: give some of these."
            )
        return self.quantiles[..., [i for (i,) in near]]

    def interval(self, level: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the outermost quantiles, or those between which lies a share of the targets (batch, target)."""
        if level is None:
            return self.quantiles[..., 0], self.quantiles[..., -1]
        low, high = self.quantiles_at(((1 - level) / 2, (1 + level) / 2)).unbind(-1)
        return low, high

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Return the outermost quantiles, corrected to hold the target with the promised probability."""
        if self.conformal is None:
            raise InputError(UNFITTED)
        low, high = self.conformal.apply(*self.interval())
        return low, high

    def covered(self, targets: Tensor) -> Tensor:
        """Return whether each interval holds its target (batch, target)."""
        low, high = self.conformal_interval()
        return (low <= targets) & (targets <= high)

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Value:
        return fit_quantile_intervals(*self.interval(), targets, level=level)

    @property
    def mixes(self) -> bool:
        """Averaged quantiles are no mixture."""
        return False

    def check_mixture(self) -> None:
        """Refuse: quantiles have no density, so no log score."""
        raise InputError(
            "quantiles have no log score by which members could be weighed or selected; leave select and stacking out."
        )

    def targets(self, y: Any) -> Tensor:
        """Return targets in the shape of the median."""
        found = tensor_of(y).double()
        if found.numel() != self.mean.numel():
            raise InputError(f"y has shape {tuple(found.shape)} and the ensemble predicts {tuple(self.mean.shape)}.")
        return found.reshape(self.mean.shape)

    def log_scores(self, targets: Tensor) -> Tensor:
        """Refuse: there is no density."""
        self.check_mixture()
        raise AssertionError

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return the members' quantiles, and the pinball loss of averaged ones."""
        shares = torch.tensor(self.levels, dtype=torch.float64)

        def loss(average: Tensor) -> Tensor:
            errors = targets.unsqueeze(-1) - average
            return torch.maximum(shares * errors, (shares - 1) * errors).flatten(2).mean(-1)

        return self.member_quantiles.double(), loss

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return pinball loss, absolute error of the median and coverage of the outermost levels."""
        errors = targets.unsqueeze(-1) - self.quantiles.double()
        shares = torch.tensor(self.levels, dtype=torch.float64)
        low, high = self.interval()
        return {
            "pinball": torch.maximum(shares * errors, (shares - 1) * errors).flatten(1).mean(1),
            "mse": (targets - self.mean.double()).square().flatten(1).mean(1),
            "mae": (targets - self.mean.double()).abs().flatten(1).mean(1),
            "coverage": ((low <= targets) & (targets <= high)).double().flatten(1).mean(1),
            "width": (high - low).double().flatten(1).mean(1),
        }

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return the means of `row_scores`, the promised coverage, and the pinball loss of members alone."""
        parts = [self.of_rows(rows).row_scores(targets)["pinball"] for rows in self.rows_by_member()]
        promised = self.levels[-1] - self.levels[0]
        found = means_of(self.row_scores(targets)) | {"promised": promised}
        return found | {"member_pinball": sum(float(p.mean()) for p in parts) / len(parts)}

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return pinball and rmse."""
        found = means_of(self.row_scores(targets))
        return {"pinball": found["pinball"], "rmse": found["rmse"]}

    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return the share of targets below each level, and the outermost quantiles of some rows."""
        below = [float((targets <= self.quantiles[..., i]).double().mean()) for i in range(len(self.levels))]
        low, high = self.interval()
        columns = {
            n: v.flatten(1)[:, 0] for n, v in {"target": targets, "mean": self.mean, "low": low, "high": high}.items()
        }
        order = columns["mean"].argsort()
        shown = order[torch.linspace(0, len(order) - 1, min(len(order), 60)).round().long()]
        return {
            "coverage": [{"level": n, "coverage": b} for n, b in zip(self.levels, below)],
            "intervals": {
                "level": self.levels[-1] - self.levels[0],
                "rows": [{n: v[i] for n, v in columns.items()} for i in shown],
            },
        }

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return how alike the errors of the members' medians are."""
        return "correlation of errors", metrics.correlation_matrix(self.by_member(self.member_values) - targets)

    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return the width of the first target's outermost quantiles."""
        low, high = self.interval()
        return "width", (high - low).flatten(1)[:, 0], None

    def alarms(self) -> dict[str, Tensor]:
        """Return width and disagreement of the first target."""
        return {"width": self.sureness()[1].double(), "epistemic": self.epistemic.flatten(1)[:, 0].double()}

    def columns(self) -> dict[str, list[Any]]:
        """Return each quantile of each target, and the deviation of the members' medians."""
        several = self.mean.shape[1]
        found = {
            f"q_{level:g}" + (f"_{t}" if several > 1 else ""): self.quantiles[:, t, i].tolist()
            for t in range(several)
            for i, level in enumerate(self.levels)
        }
        return found | {"epistemic_std": self.epistemic.sqrt()[:, 0].tolist()}
