"""Distributions of torch for one number or count a target: Student's t, Laplace, Poisson, negative binomial."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Laplace as TorchLaplace
from torch.distributions import NegativeBinomial as TorchNegativeBinomial
from torch.distributions import Poisson as TorchPoisson
from torch.distributions import StudentT as TorchStudentT

from choral.base.errors import InputError
from choral.objectives.likelihoods.base import About, Likelihood, aligned, check_real, columns
from choral.objectives.likelihoods.classification import is_whole
from choral.objectives.likelihoods.regression import RealLikelihood, summed
from choral.predictions import Counts, Mixture, Predictive


@dataclass(frozen=True, kw_only=True)
class Family(RealLikelihood, ABC):
    """Real targets of any torch distribution: a subclass says which one its outputs describe.

    `outputs_each`, a fact of the class, is the number of outputs for one target (2 unless said otherwise).
    """

    prediction: ClassVar[type[Predictive]] = Mixture
    outputs_each: ClassVar[int] = 2
    described: ClassVar[str] = "this likelihood"

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of the targets in units of training: outputs (member, batch, output) -> (member, batch, target)."""

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return minus the log density, summed over targets."""
        found = self.distribution(columns(outputs))
        return -summed(found.log_prob(aligned(targets, found.mean)))

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        """Return the mixture of the members' distributions."""
        scale = (self.scale.mean, self.scale.std) if self.scale is not None else None
        return Mixture(columns(outputs), self.distribution, scale, learners=about.learners)


@dataclass(frozen=True, kw_only=True)
class StudentT(Family):
    """Student's t: Gaussian in the middle, with tails that outliers cannot pull; outputs are location and raw scale.

    The scale is softplus of the second half of the outputs plus `floor`.

    Args:
        df: degrees of freedom, above 2 so that there is a variance.
        floor: smallest scale, in units of training.
    """

    described: ClassVar[str] = "a Student t"

    df: float = 4.0
    floor: float = 1e-3

    def __post_init__(self) -> None:
        if not 2 < self.df < math.inf or not 0 <= self.floor < math.inf:
            raise InputError(f"df is {self.df} and floor {self.floor}; give df above 2 and a floor of 0 or more.")

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return Student's t."""
        place, raw = outputs.chunk(2, 2)
        return TorchStudentT(self.df, place, F.softplus(raw) + self.floor, validate_args=False)


@dataclass(frozen=True, kw_only=True)
class Laplace(Family):
    """Laplace's distribution, whose location is a median: absolute errors count; outputs are location and raw scale.

    Args:
        floor: smallest scale, in units of training.
    """

    described: ClassVar[str] = "a Laplace"

    floor: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.floor < math.inf:
            raise InputError(f"floor is {self.floor}; give a finite number of 0 or more.")

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return Laplace's distribution."""
        place, raw = outputs.chunk(2, 2)
        return TorchLaplace(place, F.softplus(raw) + self.floor, validate_args=False)


@dataclass(frozen=True, kw_only=True)
class CountLikelihood(Likelihood, ABC):
    """Counts 0, 1, 2, ...; their mean is `base` times the exponential of an output.

    Args:
        base: the mean count that an output of 0 stands for; that of the training targets if None.
    """

    prediction: ClassVar[type[Predictive]] = Counts
    outputs_each: ClassVar[int] = 1
    described: ClassVar[str]

    base: float | None = None

    def __post_init__(self) -> None:
        if self.base is not None and not 0 < self.base < math.inf:
            raise InputError(f"base is {self.base}; it is a mean count, a finite number above 0.")

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of the counts (member, batch, target)."""

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return minus the log probability, summed over targets."""
        found = self.distribution(columns(outputs))
        return -summed(found.log_prob(aligned(targets, found.mean)))

    def outputs_for(self, targets: Tensor) -> int:
        """Return so many for each target."""
        return self.outputs_each * (1 if targets.dim() == 1 else targets.shape[1])

    def read(self, targets: Tensor) -> Tensor:
        """Return counts as real numbers."""
        return targets if targets.is_floating_point() else targets.float()

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        """Refuse numbers that are no counts, and shapes that do not fit."""
        if not is_whole(targets) or float(targets.min()) < 0:
            raise InputError(
                f"y runs from {float(targets.min()):g} to {float(targets.max()):g} and is not all whole numbers of 0 or more, but "
                f"{self.described} is of counts; give counts, or a Gaussian likelihood."
            )
        check_real(targets, outputs, each=self.outputs_each, what=self.described)

    def settled(
        self,
        targets: Tensor,
        outputs: tuple[int, ...],
        *,
        standardize: bool | None = None,
        weights: Tensor | None = None,
        whole: bool = True,
    ) -> Self:
        """Return it with the mean of the training counts as its base."""
        if self.base is not None:
            return self
        rows = targets.double().reshape(len(targets), -1).mean(1)
        mean = rows.mean() if weights is None else (rows * weights).sum() / weights.sum()
        return replace(self, base=float(mean) or 1.0)

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        """Return the mixture of the members' distributions."""
        return Counts(columns(outputs), self.distribution, learners=about.learners)

    def understood(self) -> dict[str, str]:
        """Say what outputs are relative to."""
        return super().understood() | {"targets": f"counts, relative to their mean of {self.base or 1.0:.4g}"}


@dataclass(frozen=True, kw_only=True)
class Poisson(CountLikelihood):
    """Counts whose variance is their mean; outputs are log(mean / base)."""

    described: ClassVar[str] = "a Poisson"

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the Poisson distribution."""
        return TorchPoisson((self.base or 1.0) * outputs.exp(), validate_args=False)


@dataclass(frozen=True, kw_only=True)
class NegativeBinomial(CountLikelihood):
    """Counts that vary more than a Poisson's: variance mean + mean^2 / r; outputs are log(mean / base) and raw r.

    r is softplus of the second half of the outputs plus `floor`.

    Args:
        floor: smallest r.
    """

    outputs_each: ClassVar[int] = 2
    described: ClassVar[str] = "a negative binomial"

    floor: float = 1e-3

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the negative binomial distribution."""
        place, raw = outputs.chunk(2, 2)
        size = F.softplus(raw) + self.floor
        logits = place + math.log(self.base or 1.0) - torch.log(size)
        return TorchNegativeBinomial(size, logits=logits, validate_args=False)
