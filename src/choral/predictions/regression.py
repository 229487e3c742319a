"""Predictions of numbers: Gaussian mixtures, mixtures of other torch distributions, and quantiles."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, NegativeBinomial, Normal, Poisson, StudentT

from choral import metrics
from choral.base.batches import tensor_of
from choral.base.errors import InputError
from choral.base.rng import generator, seeded
from choral.calibration import (
    ConformalQuantile,
    ConformalResidual,
    StackingWeights,
    fit_quantile_intervals,
    fit_residual_intervals,
)
from choral.calibration.members import Correction, Loss, mixture
from choral.metrics.inputs import check_level, mixture_log
from choral.metrics.regression import crps_rows
from choral.predictions.prediction import Predictive

LEVELS = [round(0.05 * i, 2) for i in range(1, 20)] + [0.99]
SHOWN_LEVELS = (0.5, 0.9, 0.95)
MOMENTS = ("mean", "std", "aleatoric_std", "epistemic_std")
_ROWS, _WORST = 400, 10  # of pictures, and of a table, at most


class _Real(Predictive):
    """Real targets: errors of the members' centers, and coverage of intervals."""

    @cached_property
    def epistemic(self) -> Tensor:
        return self.member_variance(self.member_values)

    @cached_property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @abstractmethod
    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Return the interval that contains the target with the nominal probability (batch, target)."""

    def covered(self, targets: Tensor) -> Tensor:
        low, high = self.conformal_interval()
        return (low <= targets) & (targets <= high)

    def targets(self, y: Any) -> Tensor:
        found = tensor_of(y).double()
        if found.numel() != self.mean.numel() or len(found) != len(self.mean):
            raise InputError(
                f"y has shape {tuple(found.shape)} and the ensemble predicts {tuple(self.mean.shape)}; give one target for each."
            )
        return found.reshape(self.mean.shape)

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        return "correlation of errors", metrics.correlation_matrix(self.by_member(self.member_values) - targets)

    def _drawn_intervals(self, targets: Tensor, ends: tuple[Tensor, Tensor], level: float) -> dict[str, Any]:
        named = {"target": targets, "mean": self.mean, "low": ends[0], "high": ends[1]}
        columns = {n: v.flatten(1)[:, 0] for n, v in named.items()}
        order = columns["mean"].argsort()
        shown = order[torch.linspace(0, len(order) - 1, min(len(order), _ROWS)).round().long()]
        worst = (columns["mean"] - columns["target"]).abs().argsort(descending=True)[:_WORST]
        rows, errors = ([{"row": int(i)} | {n: v[i] for n, v in columns.items()} for i in w] for w in (shown, worst))
        return {"intervals": {"level": level, "rows": rows}, "worst": errors}


class Numbers(_Real):
    """A mixture of the members' distributions (member, batch, target); scores are computed in float64."""

    shown = ("rmse", "nll", "mae", "coverage_95")
    alone = ("rmse", "nll", "crps")
    alarming = ("variance", "epistemic", "aleatoric")
    offers = (*MOMENTS, "interval", "conformal_interval", "quantiles", "samples")
    rules = ("scaled", "residual", "quantile")
    accepts = (StackingWeights, ConformalResidual, ConformalQuantile)
    counted = False  # whether targets are counts

    member_means: Tensor
    member_variances: Tensor

    @property
    @abstractmethod
    def _each(self) -> Distribution:
        """The members' distributions in float64, in units of training."""

    @property
    def _units(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)

    @property
    def member_values(self) -> Tensor:
        return self.member_means

    @cached_property
    def mean(self) -> Tensor:
        return self.average(self.member_means)

    @cached_property
    def aleatoric(self) -> Tensor:
        return self.average(self.member_variances)

    def log_densities(self, targets: Tensor) -> Tensor:
        """Return each member's log density, or log probability, of each target. Shapes: (batch, target) -> (member, batch, target)."""
        shift, size = self._units
        return self._each.log_prob((targets.double() - shift) / size) - size.log()

    def cdf(self, values: Tensor) -> Tensor:
        """Return the mixture's distribution function. Shapes: (..., batch, target) -> the same."""
        shift, size = self._units
        each = member_cdf(self._each, ((values.double() - shift) / size).unsqueeze(-3))  # (..., member, batch, target)
        return (each * self._shares.view(-1, 1, 1)).sum(-3).clamp(0.0, 1.0)

    @property
    def _shares(self) -> Tensor:
        return torch.full((len(self),), 1 / len(self), dtype=torch.float64) if self.shares is None else self.shares

    def _reached(self, levels: Sequence[float]) -> Tensor:
        """Return where the mixture reaches each level, by bisection; for counts the smallest such number (level, batch, target)."""
        for level in levels:
            check_level(level)
        wanted = torch.tensor(levels, dtype=torch.float64).view(-1, 1, 1)
        tail = min(min(level, 1 - level) for level in levels)
        reach = self.member_variances.double().sqrt() * (2.0 / tail) ** 0.5  # Chebyshev's inequality
        low, high = (self.member_means - reach).amin(0), (self.member_means + reach).amax(0)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < wanted
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        if not self.counted:
            return high
        found = (high - 1e-9).ceil().clamp_min(0) + 0.0
        before = (found > 0) & (self.cdf(found - 1) >= wanted)  # a wide bracket ends above the step
        return torch.where(before, found - 1, found)

    def quantiles_at(self, levels: Sequence[float] | None) -> Tensor:
        """Return quantiles of the mixture (batch, target, level), by default of 5, 50 and 95 %."""
        return self._reached((0.05, 0.5, 0.95) if levels is None else levels).movedim(0, -1).to(self.mean.dtype)

    def samples(self, count: int, *, seed: int = 0) -> Tensor:
        """Return draws of the mixture (draw, batch, target), each from one member."""
        shift, size = self._units
        with seeded(seed, "samples"):
            chosen = torch.multinomial(self._shares, count, replacement=True).tolist()
            drawn = torch.stack([self.of_rows([i])._each.sample()[0] for i in chosen])
        return (drawn * size + shift).to(self.mean.dtype)

    def mixture_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture itself, from its quantiles, in float64 (batch, target)."""
        check_level(level)
        low, high = self._reached((0.5 * (1.0 - level), 0.5 * (1.0 + level)))
        return low, high

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture (batch, target), with equal tails."""
        low, high = self.mixture_interval(level)
        return low.to(self.mean.dtype), high.to(self.mean.dtype)

    def ranks(self, targets: Tensor) -> Tensor:
        """Return the CDF at each target (batch, target), uniform if the ensemble is calibrated; randomized for counts."""
        high = self.cdf(targets)
        if not self.counted:
            return high
        low = self.cdf(targets - 1)
        return low + torch.rand(low.shape, dtype=torch.float64, generator=generator(0, "ranks")) * (high - low)

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        rule = self.rule
        if isinstance(rule, ConformalQuantile):
            return rule.apply(*self.mixture_interval(rule.level))
        low, high = rule.apply(self.mean, scales=self.std if rule.scaled else None)
        return low, high

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Correction:
        if rule == "quantile":
            return fit_quantile_intervals(*self.mixture_interval(level), targets, level=level)
        return fit_residual_intervals(self.mean, targets, level=level, scales=self.std if rule == "scaled" else None)

    def log_scores(self, targets: Tensor) -> Tensor:
        return self.log_densities(targets).flatten(2).sum(-1)

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        return mixture(self.log_densities(targets))

    def nll_rows(self, targets: Tensor) -> Tensor:
        """Return minus the log score of the mixture, averaged over targets (batch,)."""
        return -mixture_log(self.log_densities(targets), self.shares).flatten(1).mean(1)

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        errors, at = (self.mean.double() - targets).flatten(1), (self.ranks(targets) - 0.5).abs().flatten(1)
        found = {"mse": errors.square().mean(1), "mae": errors.abs().mean(1), "nll": self.nll_rows(targets)}
        found |= {f"coverage_{round(100 * n)}": (at <= 0.5 * n).double().mean(1) for n in SHOWN_LEVELS}
        if "crps" in self.shown:
            each = crps_rows(self.member_means, self.member_variances, targets, weights=self.shares)
            found["crps"] = each.flatten(1).mean(1)
        return found

    def joint_scores(self, targets: Tensor) -> dict[str, float]:
        widths = {n: metrics.interval_width(*self.mixture_interval(n)) for n in SHOWN_LEVELS}
        return {f"width_{round(100 * n)}": width for n, width in widths.items()} | {
            "aleatoric_std": float(self.aleatoric.double().mean().sqrt()),
            "epistemic_std": float(self.epistemic.double().mean().sqrt()),
            "residual_correlation": metrics.member_correlation(self.by_member(self.member_means).double() - targets),
        }

    def brief(self, targets: Tensor) -> dict[str, float]:
        error = float((self.mean.double() - targets).square().mean()) ** 0.5
        return {"rmse": error, "nll": float(self.nll_rows(targets).mean())}

    def details(self, targets: Tensor) -> dict[str, Any]:
        at = self.ranks(targets)
        covered = [{"level": n, "coverage": float(((at - 0.5).abs() <= n / 2).double().mean())} for n in LEVELS]
        apart = (targets - targets.mean(0)).flatten(1)[:, 0]
        return {
            "coverage": covered,
            "pit": torch.histc(at.double(), bins=20, min=0, max=1) / at.numel(),
            **self._drawn_intervals(targets, self.mixture_interval(0.9), 0.9),
            "baseline": {"rmse": apart.square().mean().sqrt(), "mae": apart.abs().mean()},  # of predicting the mean
        }

    def columns(self, level: float = 0.95) -> dict[str, list[Any]]:
        (low, high), percent = self.interval(level), f"{100 * level:g}"
        found = {"mean": self.mean, "std": self.std, f"low_{percent}": low, f"high_{percent}": high}
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

    task = "regression"
    held: ClassVar[tuple[str, ...]] = ("member_means", "member_variances")
    shown = ("rmse", "nll", "crps", "coverage_95")

    member_means: Tensor
    member_variances: Tensor

    @property
    def _each(self) -> Distribution:
        return Normal(self.member_means.double(), self.member_variances.double().sqrt(), validate_args=False)


_STEPS = 42  # halvings: exact to 1e-10 deviations


def member_cdf(found: Distribution, values: Tensor) -> Tensor:
    """Return the cumulative distribution function at some values; by scipy where torch lacks it.

    >>> round(float(member_cdf(Poisson(torch.tensor(1.0)), torch.tensor(0.0))), 4)
    0.3679
    """
    from scipy import special

    whole = values.floor().clamp_min(0)
    match found:
        case StudentT():
            z = (values - found.loc) / found.scale
            return torch.as_tensor(special.stdtr(found.df.numpy(), z.numpy()))
        case Poisson():
            return torch.where(values < 0, 0.0, torch.special.gammaincc(whole + 1, found.rate))
        case NegativeBinomial():
            inside = special.betainc(found.total_count.numpy(), whole.numpy() + 1, 1 - found.probs.numpy())
            return torch.where(values < 0, 0.0, torch.as_tensor(inside))
    return found.cdf(values)


@dataclass(frozen=True)
class Mixture(Numbers):
    """A mixture of real distributions, in float64.

    Args:
        outputs: raw outputs (member, batch, output).
        distribution: maps outputs to a torch distribution of (member, batch, target) in units of training.
        scale: mean and standard deviation of each target before standardization; None if not standardized.
    """

    task = "regression"
    held = ("outputs",)

    outputs: Tensor
    distribution: Callable[[Tensor], Distribution]
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @cached_property
    def _each(self) -> Distribution:
        return self.distribution(self.outputs.double())

    @cached_property
    def _units(self) -> tuple[Tensor, Tensor]:
        mean, std = ((0.0,), (1.0,)) if self.scale is None else self.scale
        return torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)

    @cached_property
    def member_means(self) -> Tensor:  # type: ignore[override]  # a field elsewhere, computed here
        """Means of each member."""
        shift, size = self._units
        return self._each.mean * size + shift

    @cached_property
    def member_variances(self) -> Tensor:  # type: ignore[override]  # a field elsewhere, computed here
        """Variances of each member."""
        return self._each.variance * self._units[1].square()


@dataclass(frozen=True)
class Counts(Mixture):
    """A mixture of distributions of counts, without a scale; arguments as in `Mixture`."""

    task = "counts"
    counted = True


@dataclass(frozen=True)
class QuantileRegression(_Real):
    """Predicted quantiles; those of the ensemble are the members' averages (Vincent's).

    Args:
        member_quantiles: (member, batch, target, level), rising along the levels.
        levels: the probabilities of the quantiles.
    """

    task = "quantiles"
    held = ("member_quantiles",)
    score = "pinball"
    shown = ("pinball", "mae", "coverage", "width")
    alone = ("pinball",)
    followed = ("pinball", "rmse")
    unsure = "width"
    alarming = ("width", "epistemic")
    offers = (*MOMENTS, "interval", "conformal_interval", "quantiles")
    rules = ("quantile",)
    accepts = (StackingWeights, ConformalQuantile)

    member_quantiles: Tensor
    levels: tuple[float, ...]
    mixes = False

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
        return self.member_quantiles[..., self._middle]

    @cached_property
    def aleatoric(self) -> Tensor:
        """Squared half-width between the outermost quantiles, in standard deviations of a Gaussian (batch, target)."""
        first, last = (NormalDist().inv_cdf(level) for level in (self.levels[0], self.levels[-1]))
        return (self.width / (last - first)).square() if last > first else torch.zeros_like(self.width)

    @property
    def width(self) -> Tensor:
        """Distance of the outermost quantiles (batch, target)."""
        return self.quantiles[..., -1] - self.quantiles[..., 0]

    def quantiles_at(self, levels: Sequence[float] | None) -> Tensor:
        """Return some of the fitted quantiles, by default all (batch, target, level)."""
        if levels is None:
            return self.quantiles
        near = [[i for i, known in enumerate(self.levels) if abs(known - level) < 1e-9] for level in levels]
        if not all(near):
            raise InputError(
                f"levels are {tuple(levels)}; the members predict the quantiles {self.levels}: give some of these."
            )
        return self.quantiles[..., [i for (i,) in near]]

    def interval(self, level: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the outermost quantiles, or those that contain a given share of the targets (batch, target)."""
        if level is None:
            return self.quantiles[..., 0], self.quantiles[..., -1]
        low, high = self.quantiles_at(((1 - level) / 2, (1 + level) / 2)).unbind(-1)
        return low, high

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        low, high = self.rule.apply(*self.interval())
        return low, high

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Correction:
        return fit_quantile_intervals(*self.interval(), targets, level=level)

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        return self.member_quantiles.double(), lambda average: self._pinball(average, targets).flatten(2).mean(-1)

    def _pinball(self, quantiles: Tensor, targets: Tensor) -> Tensor:
        errors, shares = targets.unsqueeze(-1) - quantiles, torch.tensor(self.levels, dtype=torch.float64)
        return torch.maximum(shares * errors, (shares - 1) * errors)

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        low, high = self.interval()
        return {
            "pinball": self._pinball(self.quantiles.double(), targets).flatten(1).mean(1),
            "mse": (targets - self.mean.double()).square().flatten(1).mean(1),
            "mae": (targets - self.mean.double()).abs().flatten(1).mean(1),
            "coverage": ((low <= targets) & (targets <= high)).double().flatten(1).mean(1),
            "width": self.width.double().flatten(1).mean(1),
        }

    def joint_scores(self, targets: Tensor) -> dict[str, float]:
        return {"promised": self.levels[-1] - self.levels[0]}

    def details(self, targets: Tensor) -> dict[str, Any]:
        below = [float((targets <= self.quantiles[..., i]).double().mean()) for i in range(len(self.levels))]
        intervals = self._drawn_intervals(targets, self.interval(), self.levels[-1] - self.levels[0])["intervals"]
        coverage = [{"level": n, "coverage": b} for n, b in zip(self.levels, below)]
        return {"coverage": coverage, "intervals": intervals}

    def columns(self, level: float = 0.95) -> dict[str, list[Any]]:
        several = self.mean.shape[1]
        found = {
            f"q_{own:g}" + (f"_{t}" if several > 1 else ""): self.quantiles[:, t, i].tolist()
            for t in range(several)
            for i, own in enumerate(self.levels)
        }
        return found | {"epistemic_std": self.epistemic.sqrt()[:, 0].tolist()}
