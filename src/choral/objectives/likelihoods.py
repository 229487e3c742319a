"""Likelihoods: what a network's outputs mean, how wrong they are, and what they predict.

Each likelihood gives the loss (see `objectives.penalties` for the scaling) and turns raw outputs into predictive
quantities. Outputs and targets come with the member axis first.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.predictions import Classification, Prediction, Regression


@dataclass(frozen=True)
class About:
    """What an ensemble knows about its outputs when it predicts.

    Args:
        combine: how members are averaged, 'probs' or 'logits'; of interest to classes alone.
        names: the class labels as they were in the data, if they were not 0, 1, 2, ...
        learners: the member each row of the outputs is a draw of; None if rows are members.
    """

    combine: str = "probs"
    names: tuple[str, ...] | None = None
    learners: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Likelihood(Value, ABC):
    """What the outputs of a network mean.

    `prediction`, a fact of the class, is the kind of prediction that `predict` returns.
    """

    prediction: ClassVar[type[Prediction]]

    @property
    def noise_std(self) -> float | None:
        """Standard deviation of the noise on every target; None if it is not one known number."""
        return None

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over members of the batch mean of the negative log likelihood.

        Shapes: outputs (member, batch, ...), targets (member, batch, ...) -> ().
        """

    @abstractmethod
    def predict(self, outputs: Tensor, about: About) -> Prediction:
        """Return what raw outputs (member, batch, ...) say about their points."""


@dataclass(frozen=True, kw_only=True)
class Categorical(Likelihood):
    """Class labels; outputs are logits (member, batch, class, ...)."""

    prediction: ClassVar[type[Prediction]] = Classification

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy, averaged over the batch and summed over members."""
        mean = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1))
        return mean if outputs.shape[0] == 1 else mean * outputs.shape[0]

    def predict(self, outputs: Tensor, about: About) -> Prediction:
        """Return class probabilities."""
        return Classification(outputs, about.combine, about.names, learners=about.learners)


class GaussianLikelihood(Likelihood, ABC):
    """Real targets with Gaussian noise."""

    prediction: ClassVar[type[Prediction]] = Regression

    @abstractmethod
    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each (member, batch, target)."""

    def predict(self, outputs: Tensor, about: About) -> Prediction:
        """Return the mixture of the members' Gaussians."""
        return Regression(*self.moments(outputs), learners=about.learners)


def _columns(targets: Tensor, outputs: Tensor) -> Tensor:
    return targets.unsqueeze(-1) if targets.dim() == outputs.dim() - 1 else targets


@dataclass(frozen=True, kw_only=True)
class FixedGaussian(GaussianLikelihood):
    """Gaussian noise of known precision; outputs are means (member, batch, target).

    Args:
        precision: inverse variance of the noise, in the units the network is trained in.
    """

    precision: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.precision < math.inf:
            raise InputError(f"precision is {self.precision}; give a finite number above 0.")

    @property
    def noise_std(self) -> float:
        """The inverse square root of the precision."""
        return float(self.precision**-0.5)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the Gaussian negative log likelihood, constants included."""
        squares = (outputs - _columns(targets, outputs)).square()
        constant = 0.5 * outputs.shape[-1] * math.log(2 * math.pi / self.precision)
        members = outputs.shape[0]
        return members * (0.5 * self.precision * outputs.shape[-1] * squares.mean() + constant)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs as means, and the fixed variance."""
        return outputs, torch.full_like(outputs, 1.0 / self.precision)


@dataclass(frozen=True, kw_only=True)
class LearnedGaussian(GaussianLikelihood):
    """Gaussian noise whose variance the network predicts; outputs are (member, batch, 2 * target).

    The first half of the last axis is the mean, softplus of the second half plus `floor` the variance.

    Reference: Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
    2017, arXiv:1612.01474, Equation 1.
    """

    floor: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.floor < math.inf:
            raise InputError(f"floor is {self.floor}; give a finite number of 0 or more.")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the Gaussian negative log likelihood, constants included."""
        mean, variance = self.moments(outputs)
        squares = (mean - _columns(targets, mean)).square()
        each = 0.5 * (squares / variance + variance.log() + math.log(2 * math.pi))
        return outputs.shape[0] * mean.shape[-1] * each.mean()

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances."""
        mean, raw = outputs.chunk(2, dim=-1)
        return mean, F.softplus(raw) + self.floor


def infer(targets: Tensor, outputs: int | None = None) -> Likelihood:
    """Return the likelihood that fits the targets: integers are classes, reals are Gaussian.

    Args:
        targets: training targets.
        outputs: outputs of the network for one point; twice the number of targets means a learned variance.
    """
    if not targets.dtype.is_floating_point:
        return Categorical()
    columns = 1 if targets.dim() == 1 else targets.shape[-1]
    if outputs is None or outputs == columns:
        return FixedGaussian()
    if outputs == 2 * columns:
        return LearnedGaussian()
    raise InputError(
        f"The network gives {outputs} outputs for {columns} real target(s); a Gaussian likelihood takes {columns} (mean) "
        f"or {2 * columns} (mean and variance), and class labels must be integers. Change the last layer or y's type."
    )
