"""Soft targets: the predictions of an ensemble, learned by one network (`choral.distil`)."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.objectives.likelihoods.base import About, Likelihood, check_real
from choral.objectives.likelihoods.classification import Categorical
from choral.objectives.likelihoods.regression import TargetScale, summed
from choral.predictions import Classification, Predictive, Regression

_PRECISIONS = (-7.0, 12.0)  # logarithms between which the precision of a Dirichlet is sought
_SHIFT = 6  # by which arguments of digamma are raised before its series


def digamma(x: Tensor) -> Tensor:
    """Return the digamma function of numbers of 1 or more, with operations that all runtimes of exported graphs support.

    >>> bool(torch.allclose(digamma(torch.tensor([1.0, 50.0])), torch.tensor([1.0, 50.0]).digamma()))
    True
    """
    far = x + _SHIFT
    square = 1 / far.square()
    series = far.log() - 0.5 / far - square * (1 / 12 - square * (1 / 120 - square / 252))
    return series - sum(1 / (x + i) for i in range(_SHIFT))


def expected_entropy(probs: Tensor, precision: Tensor, axis: int) -> Tensor:
    """Return the mean entropy of categorical distributions from a Dirichlet of this mean and precision, without the class axis."""
    inner = (probs * digamma(1 + precision * probs)).sum(axis)
    return digamma(1 + precision).squeeze(axis) - inner


def matching_precision(probs: Tensor, epistemic: Tensor, axis: int) -> Tensor:
    """Return the log precision at which a Dirichlet of this mean has this mutual information, with a class axis of length 1.

    Mutual information falls from the entropy of the mean to 0 as the precision rises, so bisection finds it.
    """
    probs, wanted = probs.double(), epistemic.double().unsqueeze(axis)
    total = torch.special.entr(probs).sum(axis, keepdim=True)
    low, high = (torch.full_like(total, end) for end in _PRECISIONS)
    for _ in range(40):
        middle = 0.5 * (low + high)
        above = total - expected_entropy(probs, middle.exp(), axis).unsqueeze(axis) > wanted
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return 0.5 * (low + high)


@dataclass(frozen=True)
class DirichletClasses(Classification):
    """Class probabilities with their uncertainty: each member gives a Dirichlet with concentrations exp(logits)."""

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean entropy of categorical distributions drawn from the members' Dirichlets: noise in the data."""
        precision = self.logits.logsumexp(self.axis, keepdim=True).exp()
        return self.average(expected_entropy(self.member_probs, precision, self.axis))

    def cooled(self, temperature: Any) -> Self:
        """Return the prediction with its probabilities at a fitted temperature; precisions are kept."""
        cool = temperature.apply(self.logits)
        kept = self.logits.logsumexp(self.axis, keepdim=True) - cool.logsumexp(self.axis, keepdim=True)
        return replace(self, logits=cool + kept)


@dataclass(frozen=True, kw_only=True)
class SoftClasses(Likelihood):
    """Class probabilities as targets; outputs are logits (member, batch, class), or dense ones.

    The loss is the cross-entropy. With a `level`, outputs are the log concentrations of a Dirichlet: their softmax is its mean, and the sum of
    their exponentials its precision. Targets then have one more entry on the class axis, the log precision, whose squared error is added.

    Args:
        level: offset of log precisions; None for no Dirichlet.
        axis: axis of the classes, counted from the end.

    Reference: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, arXiv:1503.02531, section 2; Malinin et al., "Ensemble
    Distribution Distillation", 2020, arXiv:1905.00076, section 3.
    Differs from the paper: precisions match the ensemble's mutual information instead of maximizing the likelihood of its members'
    probabilities, so that the mean remains the ensemble's and no temperature is needed.
    """

    prediction: ClassVar[type[Predictive]] = Classification
    link: ClassVar[str] = "Softmax"
    weight: ClassVar[float] = 0.1

    level: float | None = None
    axis: int = -1

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        probs = targets.narrow(self.axis, 0, outputs.shape[self.axis])
        each = -(probs * outputs.log_softmax(self.axis)).sum(self.axis)
        if self.level is None:
            return each
        return each + self.weight * (outputs.logsumexp(self.axis) - targets.select(self.axis, -1)).square()

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        wanted = list(targets.shape[1:])
        wanted[self.axis] -= self.level is not None
        if list(outputs) != wanted:
            raise InputError(f"the network gives outputs of shape {outputs}, the ensemble's are {tuple(wanted)}.")

    def check_judged(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        Categorical(axis=self.axis if len(outputs) > 1 else None).check(targets, outputs)

    def classes(self, outputs: Tensor) -> int | None:
        return outputs.shape[self.axis]

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        kind, shift = (Classification, 0.0) if self.level is None else (DirichletClasses, self.level)
        return kind(outputs + shift, about.combine, about.names, axis=self.axis, learners=about.learners)


@dataclass(frozen=True)
class SplitRegression(Regression):
    """Gaussians whose variance has two parts: `member_epistemic` (member, batch, target) is the epistemic part of `member_variances`."""

    held: ClassVar[tuple[str, ...]] = ("member_means", "member_variances", "member_epistemic")

    member_epistemic: Tensor

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean of the members' aleatoric variances (batch, target): noise in the data."""
        return self.average(self.member_variances - self.member_epistemic)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance of the members' means, and the mean of their epistemic variances (batch, target)."""
        return self.member_variance(self.member_means) + self.average(self.member_epistemic)


@dataclass(frozen=True, kw_only=True)
class SoftGaussian(Likelihood):
    """A mean and log variances as targets and outputs (batch, 3 * target): aleatoric and epistemic; or one, the total variance.

    The loss is the sum of KL(target || prediction) between Gaussians that differ in the mean only, and between Gaussians that differ in one
    variance only.

    Args:
        scale: offset of means, and divisor of means and standard deviations.
        level: offsets of the log variances, two or one.
        shape: shape of one target in the data.
    """

    prediction: ClassVar[type[Predictive]] = Regression

    scale: TargetScale
    level: tuple[float, ...]
    shape: tuple[int, ...] | None = None

    @property
    def target(self) -> tuple[int, ...] | None:
        return self.shape

    def _parts(self, values: Tensor) -> tuple[Tensor, list[Tensor]]:
        mean, *logs = values.chunk(1 + len(self.level), 2)
        return mean, [(log.clamp(-20, 20) + level).exp() for log, level in zip(logs, self.level)]

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, *ratios = (targets - outputs).chunk(1 + len(self.level), 2)
        return summed(0.5 * (mean.square() / sum(self._parts(targets)[1]) + sum(r.expm1() - r for r in ratios)))

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        check_real(targets, outputs, each=1, what=f"a mean and {len(self.level)} variance(s) for each target")

    def check_judged(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        check_real(targets, outputs, each=1 + len(self.level), what="the distribution of the ensemble")

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        mean, variances = self._parts(outputs)
        mean, variances = self.scale.undo(mean), [self.scale.widen(part.sqrt()).square() for part in variances]
        if len(variances) == 1:
            return Regression(mean, *variances, learners=about.learners)
        noise, epistemic = variances
        return SplitRegression(mean, noise + epistemic, epistemic, learners=about.learners)
