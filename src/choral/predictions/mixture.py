"""Mixtures of any torch distribution, of real numbers or of counts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, NegativeBinomial, Poisson, StudentT

from choral import metrics
from choral.base.errors import InputError
from choral.base.rng import generator
from choral.metrics.inputs import checked_weights
from choral.predictions.base import means_of
from choral.predictions.numbers import SHOWN_LEVELS, Numbers

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
