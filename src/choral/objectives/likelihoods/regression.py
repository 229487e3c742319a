"""Likelihoods of numbers: Gaussian noise (known, estimated or predicted), quantiles, other torch distributions, counts."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Laplace as TorchLaplace
from torch.distributions import NegativeBinomial as TorchNegativeBinomial
from torch.distributions import Poisson as TorchPoisson
from torch.distributions import StudentT as TorchStudentT

from choral.base import devices
from choral.base.errors import InputError
from choral.base.text import number
from choral.base.values import Finite, Inside, Limit, NotNegative, Positive, Value
from choral.objectives.likelihoods.base import About, Known, Likelihood, aligned, columns, summed
from choral.objectives.likelihoods.classification import is_whole
from choral.predictions import Counts, Mixture, Predictive, QuantileRegression, Regression

_FAR = 1e4  # deviations that a mean may be from 0 for predictions in float32, at most
_LARGE = 1e16  # deviation of targets whose predictions are float32, at most; one over it, at least


@dataclass(frozen=True, kw_only=True)
class TargetScale(Value):
    """The offset and divisor of each target in training.

    Args:
        mean: one for each target (the last axis).
        std: one for each target, above 0.

    >>> scale = TargetScale.of(torch.tensor([[1.0], [3.0]]))
    >>> scale.std, scale.apply(torch.tensor([[5.0]])), scale.undo(torch.tensor([[3.0]]))
    ((1.0,), tensor([[3.]]), tensor([[5.]]))
    """

    mean: tuple[Finite, ...]
    std: tuple[Positive, ...]

    @classmethod
    def of(cls, targets: Tensor, weights: Tensor | None = None) -> Self:
        """Return the scale of targets (row, target), weighted by rows; constant columns are not scaled."""
        columns = targets.double().reshape(-1, targets.shape[-1])
        shares = torch.ones(len(columns)) if weights is None else weights
        shares = (shares.double() / shares.double().sum()).unsqueeze(1)
        mean = (shares * columns).sum(0)
        std = (shares * (columns - mean).square()).sum(0).sqrt()
        flat = std <= 1e-12 * columns.abs().max(0).values  # equal up to rounding
        return cls(mean=tuple(mean.tolist()), std=tuple(torch.where(flat, 1.0, std).tolist()))

    @property
    def is_narrow(self) -> bool:
        """Whether float32 would round away differences between predictions, or cannot represent their variance."""
        return any(abs(m) > _FAR * s or not 1 / _LARGE < s < _LARGE for m, s in zip(self.mean, self.std))

    def apply(self, targets: Tensor) -> Tensor:
        """Return targets (..., target) in units of training."""
        mean, std = self._as(targets)
        return ((targets.double() - mean.double()) / std.double()).to(targets.dtype)

    def undo(self, values: Tensor) -> Tensor:
        """Return values (..., target) in units of the data, in float64 if float32 is too coarse."""
        mean, std = self._as(values)
        return values * std + mean

    def widen(self, spreads: Tensor) -> Tensor:
        """Return standard deviations (..., target) in units of the data."""
        return spreads * self._as(spreads)[1]

    def _as(self, values: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if self.is_narrow else torch.promote_types(values.dtype, torch.float32)
        mean, std = (devices.constant(v, dtype, values.device) for v in (self.mean, self.std))
        return mean, std


_NO_BETTER = 0.97  # of the variance of the targets: an error that is hardly smaller than that of their mean
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_TINY = 1e-12  # smallest noise variance that is estimated


@dataclass(frozen=True, kw_only=True)
class RealLikelihood(Likelihood, ABC):
    """Real targets, standardized for training.

    Args:
        scale: the scale of the targets, from the training data; None trains in the units of the data.
        standardize: whether to standardize targets for training, which predictions undo; None does so unless the likelihood fixes the
            size of the noise.
    """

    scale: TargetScale | None = None
    standardize: bool | None = None

    @property
    def outputs_each(self) -> int:
        return 1

    @property
    def standardizes(self) -> bool:
        """The default of `standardize`."""
        return True

    def read(self, targets: Tensor) -> Tensor:
        """Return targets as real numbers in units of training; integers as float64."""
        found = targets if targets.is_floating_point() else targets.double()
        return found if self.scale is None else self.scale.apply(found)

    def settled(self, known: Known) -> Self:
        """Return it with the scale of the training targets, one for all positions of dense ones."""
        asked = self.standardize if known.standardize is None else known.standardize
        wanted = self.standardizes if asked is None else asked
        if not wanted or self.scale is not None:
            return self
        targets, weights = known.targets, known.weights
        if targets.dim() > 2 and weights is not None:
            weights = weights.repeat_interleave(targets[0].numel())
        return replace(self, scale=TargetScale.of(targets if targets.dim() == 2 else targets.reshape(-1, 1), weights))

    def understood(self) -> dict[str, str]:
        if self.scale is None:
            return super().understood() | {"targets": "in their own units"}
        mean, std = (", ".join(map(number, vs[:4])) for vs in (self.scale.mean, self.scale.std))
        return super().understood() | {"targets": f"standardized (mean {mean}, standard deviation {std})"}


@dataclass(frozen=True, kw_only=True)
class GaussianLikelihood(RealLikelihood, ABC):
    """Real targets with Gaussian noise."""

    prediction: ClassVar[type[Predictive]] = Regression

    @abstractmethod
    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each (member, batch, target), in units of training."""

    def constant(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> str:
        """Compare the squared error of the members' mean with the variance of the targets."""
        means = self.moments(outputs)[0].mean(0).double()
        wanted = aligned(targets.unsqueeze(0), means.unsqueeze(0))[0].double()
        errors, spread = (means - wanted).square().mean(0), wanted.var(0, correction=0)
        return "their mean" if bool((errors >= _NO_BETTER * spread).all()) else ""

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        means, variances = self.moments(outputs)
        if self.scale is not None:
            means, variances = self.scale.undo(means), self.scale.widen(variances.sqrt()).square()
        return Regression(means, variances, learners=about.learners)


@dataclass(frozen=True, kw_only=True)
class FixedGaussian(GaussianLikelihood):
    """Gaussian noise of one size; outputs are means (member, batch, target).

    Args:
        precision: inverse variance of the noise, one for all targets or one for each; targets are then not standardized. None trains by
            least squares on standardized targets, and estimates the noise after training (`estimated`).
    """

    precision: Positive | tuple[Positive, ...] | None = None

    @property
    def standardizes(self) -> bool:
        """Whether no precision is given: a given one is in the units of the data."""
        return self.precision is None

    @property
    def noise_std(self) -> float | None:
        return None if self.precision is None or len(self._each) > 1 else float(self._each[0] ** -0.5)

    @property
    def _each(self) -> tuple[float, ...]:
        return self.precision if isinstance(self.precision, tuple) else (self.precision or 1.0,)

    def _precision(self, means: Tensor) -> Tensor:
        """Return the precision of each target, shaped to multiply means (member, batch, target, ...)."""
        return devices.constant(self._each, means.dtype, means.device).reshape(-1, *[1] * (means.dim() - 3))

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        means = columns(outputs)
        squares, precision = (means - aligned(targets, means)).square(), self._precision(means)
        return summed(0.5 * (precision * squares - precision.log()) + _HALF_LOG_TWO_PI)

    def mean_nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if len(self._each) > 1:
            return self.nll(outputs, targets).mean()
        means, precision = columns(outputs), self._each[0]
        square = (means - aligned(targets, means)).square().mean()
        return means.shape[2] * (0.5 * precision * square + (_HALF_LOG_TWO_PI - 0.5 * math.log(precision)))

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        means = columns(outputs)
        return means, torch.ones_like(means) / self._precision(means)

    @property
    def estimates(self) -> bool:
        return self.precision is None

    def estimated(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Self:
        """Return it with the precision that maximizes the log score of the members' mixture.

        Expectation maximization of one noise for each target, starting at the mean squared error of the members.
        """
        means = columns(outputs).double()
        squares = (means - aligned(targets.double().expand(len(means), *targets.shape), means)).square()
        counts = torch.ones(squares.shape[1], dtype=torch.float64) if weights is None else weights.double()
        squares = squares.movedim(2, 0).flatten(3) if squares.dim() > 3 else squares.movedim(2, 0).unsqueeze(-1)
        # (row, position) of (target, member, row, position)
        counts = (counts / counts.sum()).unsqueeze(-1) / squares.shape[-1]

        def over_rows(values: Tensor) -> Tensor:
            return (values * counts).sum((-2, -1)).clamp_min(_TINY).reshape(-1, 1, 1, 1)

        variance = over_rows(squares.mean(1))
        for _ in range(100):
            shares = (-0.5 * squares / variance).softmax(1)  # of each member in a target
            previous, variance = variance, over_rows((shares * squares).sum(1))
            if torch.allclose(previous, variance, rtol=1e-6):
                break
        found = tuple((1 / variance).flatten().tolist())
        return replace(self, precision=found[0] if len(found) == 1 else found)

    def understood(self) -> dict[str, str]:
        if self.precision is None:
            return super().understood() | {"noise": "to be estimated on residuals"}
        stds = torch.tensor(self.precision).view(-1).rsqrt()
        stds = stds if self.scale is None else self.scale.widen(stds)
        return super().understood() | {"noise": f"of standard deviation {', '.join(f'{s:.4g}' for s in stds.tolist())}"}


@dataclass(frozen=True, kw_only=True)
class LearnedGaussian(GaussianLikelihood):
    """Gaussian noise of predicted variance; outputs are means and raw variances (member, batch, 2 * target).

    Variances are softplus of the raw ones plus `floor`.

    Reference: Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
    2017, arXiv:1612.01474, Equation 1.
    """

    outputs_each: ClassVar[int] = 2

    floor: NotNegative = 1e-6

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, variance = self.moments(outputs)
        squares = (mean - aligned(targets, mean)).square()
        return summed(0.5 * (squares / variance + variance.log() + 2 * _HALF_LOG_TWO_PI))

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return _and_positive(outputs, self.floor)


_RISING = Limit(lambda levels: levels and list(levels) == sorted({*levels}), "rising shares between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class Quantiles(RealLikelihood):
    """Quantiles of real targets by the pinball loss; outputs are (member, batch, target * level), with levels adjacent.

    Args:
        levels: the probabilities, rising, between 0 and 1; the middle one is the point prediction.

    Reference: Koenker & Bassett, "Regression Quantiles", 1978, equation 3.1.
    """

    prediction: ClassVar[type[Predictive]] = QuantileRegression

    levels: Annotated[tuple[Inside, ...], _RISING] = (0.05, 0.25, 0.5, 0.75, 0.95)

    @property
    def outputs_each(self) -> int:
        return len(self.levels)

    def _by_level(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(2, (-1, len(self.levels)))  # (member, batch, target, level)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the pinball loss, averaged over levels and summed over targets."""
        found = self._by_level(outputs)
        errors = aligned(targets, found[..., 0]).unsqueeze(-1) - found
        shares = devices.constant(self.levels, errors.dtype, errors.device)
        return torch.maximum(shares * errors, (shares - 1) * errors).mean(-1).sum(-1)

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        found = self._by_level(outputs).sort(-1).values
        if self.scale is not None:
            found = self.scale.undo(found.transpose(-1, -2)).transpose(-1, -2)
        return QuantileRegression(found, self.levels, learners=about.learners)


def _and_positive(outputs: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    place, raw = outputs.chunk(2, 2)
    return place, F.softplus(raw) + floor


class _OfDistribution(Likelihood, ABC):
    """Outputs that describe a torch distribution of the targets."""

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of the targets in units of training: outputs (member, batch, output) -> (member, batch, target)."""

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = self.distribution(columns(outputs))
        return -summed(found.log_prob(aligned(targets, found.mean)))


@dataclass(frozen=True, kw_only=True)
class Family(_OfDistribution, RealLikelihood):
    """Real targets with any torch distribution, which a subclass defines.

    The class attribute `outputs_each` is the number of outputs for one target (2 by default).
    """

    prediction: ClassVar[type[Predictive]] = Mixture
    outputs_each: ClassVar[int] = 2

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        scale = (self.scale.mean, self.scale.std) if self.scale is not None else None
        return Mixture(columns(outputs), self.distribution, scale, learners=about.learners)


@dataclass(frozen=True, kw_only=True)
class StudentT(Family):
    """Student's t, with heavy tails for outliers; outputs are location and raw scale.

    The scale is softplus of the second half of the outputs plus `floor`.

    Args:
        df: degrees of freedom, above 2 so that the variance is finite.
        floor: smallest scale, in units of training.
    """

    df: Annotated[float, Limit(lambda df: 2 < df < math.inf, "a number above 2")] = 4.0
    floor: NotNegative = 1e-3

    def distribution(self, outputs: Tensor) -> Distribution:
        return TorchStudentT(self.df, *_and_positive(outputs, self.floor), validate_args=False)


@dataclass(frozen=True, kw_only=True)
class Laplace(Family):
    """Laplace's distribution, for absolute errors; outputs are location (the median) and raw scale.

    Args:
        floor: smallest scale, in units of training.
    """

    floor: NotNegative = 1e-3

    def distribution(self, outputs: Tensor) -> Distribution:
        return TorchLaplace(*_and_positive(outputs, self.floor), validate_args=False)


@dataclass(frozen=True, kw_only=True)
class CountLikelihood(_OfDistribution):
    """Counts 0, 1, 2, ...; their mean is `base` times the exponential of an output.

    Args:
        base: the mean count at an output of 0; by default the mean of the training targets.
    """

    prediction: ClassVar[type[Predictive]] = Counts
    outputs_each: ClassVar[int] = 1

    base: Positive | None = None

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        if not is_whole(targets) or float(targets.min()) < 0:
            raise InputError(
                f"y from {float(targets.min()):g} to {float(targets.max()):g} is not all counts, but {type(self).__name__} is of counts; give a Gaussian likelihood."
            )
        super().check(targets, outputs)

    def settled(self, known: Known) -> Self:
        """Return it with the mean of the training counts as its base."""
        if self.base is not None:
            return self
        rows, weights = known.targets.double().reshape(len(known.targets), -1).mean(1), known.weights
        mean = rows.mean() if weights is None else (rows * weights).sum() / weights.sum()
        return replace(self, base=float(mean) or 1.0)

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        return Counts(columns(outputs), self.distribution, learners=about.learners)

    def understood(self) -> dict[str, str]:
        return super().understood() | {"targets": f"counts, relative to their mean of {self.base or 1.0:.4g}"}


@dataclass(frozen=True, kw_only=True)
class Poisson(CountLikelihood):
    """Counts whose variance is their mean; outputs are log(mean / base)."""

    def distribution(self, outputs: Tensor) -> Distribution:
        return TorchPoisson((self.base or 1.0) * outputs.exp(), validate_args=False)


@dataclass(frozen=True, kw_only=True)
class NegativeBinomial(CountLikelihood):
    """Overdispersed counts: variance mean + mean^2 / r; outputs are log(mean / base) and raw r.

    r is softplus of the second half of the outputs plus `floor`.

    Args:
        floor: smallest r.
    """

    outputs_each: ClassVar[int] = 2

    floor: float = 1e-3

    def distribution(self, outputs: Tensor) -> Distribution:
        place, size = _and_positive(outputs, self.floor)
        logits = place + math.log(self.base or 1.0) - torch.log(size)
        return TorchNegativeBinomial(size, logits=logits, validate_args=False)
