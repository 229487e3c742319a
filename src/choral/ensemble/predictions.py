"""Prediction: what an ensemble says about some points, and how sure it is.

Members come first. Classification keeps logits (member, batch, class); regression keeps means and variances
(member, batch, target). Everything else follows from these; a stochastic member has one row for each draw, and `learners`
says which rows are draws of one member.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.posthoc import ConformalQuantile, ConformalResidual, ConformalSets

_UNFITTED = "this ensemble has no conformal rule; fit one on held-out data: ensemble.calibrated(x, y, level=0.9)."


@dataclass(frozen=True)
class Classification:
    """Class probabilities of an ensemble.

    Args:
        logits: (member, batch, class).
        combine: 'probs' averages member probabilities (a mixture), 'logits' averages logits first.
        weights: weight of each member, uniform if None.
        names: the class labels as they were in the data, if they were not 0, 1, 2, ...
        conformal: the rule behind `sets`, if one was fitted.
        learners: the member each row is a draw of; None if every row is a member of its own.
    """

    logits: Tensor
    combine: str = "probs"
    weights: tuple[float, ...] | None = None
    names: tuple[str, ...] | None = None
    conformal: ConformalSets | None = None
    learners: tuple[int, ...] | None = None

    def _average(self, values: Tensor) -> Tensor:
        if self.weights is None:
            return values.mean(0)
        return torch.tensordot(torch.tensor(self.weights, dtype=values.dtype), values, dims=1)

    @cached_property
    def member_probs(self) -> Tensor:
        """Probabilities of each member (member, batch, class)."""
        return self.logits.softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the ensemble (batch, class)."""
        if self.combine == "logits":
            return self._average(self.logits).softmax(-1)
        return self._average(self.member_probs)

    @property
    def mean(self) -> Tensor:
        """The mean prediction: the same as probs."""
        return self.probs

    @cached_property
    def labels(self) -> Tensor:
        """The likeliest class (batch,)."""
        return self.probs.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Largest probability (batch,)."""
        return self.probs.max(-1).values

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the mean prediction in nats (batch,): total uncertainty."""
        return torch.special.entr(self.probs).sum(-1)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the members (batch,): noise in the data."""
        return self._average(torch.special.entr(self.member_probs).sum(-1))

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy minus mean member entropy (batch,): what the members disagree about, never negative."""
        total = torch.special.entr(self._average(self.member_probs)).sum(-1)
        return (total - self.aleatoric).clamp(min=0)

    @property
    def epistemic(self) -> Tensor:
        """The same as mutual_information."""
        return self.mutual_information

    @cached_property
    def variance(self) -> Tensor:
        """Variance over members of each class probability (batch, class)."""
        return self.member_probs.var(0, correction=0)

    @cached_property
    def variation_ratio(self) -> Tensor:
        """Share of members that do not vote for the commonest class (batch,)."""
        votes = torch.nn.functional.one_hot(self.logits.argmax(-1), self.logits.shape[-1]).float()
        return 1 - self._average(votes).max(-1).values

    @cached_property
    def max_logit(self) -> Tensor:
        """Largest mean logit (batch,)."""
        return self._average(self.logits).max(-1).values

    def sets(self, *, seed: int = 0) -> Tensor:
        """Return the conformal set of each point as booleans (batch, class)."""
        if self.conformal is None:
            raise InputError(_UNFITTED)
        return self.conformal.apply(self.probs, seed=seed)


@dataclass(frozen=True)
class Regression:
    """The Gaussian mixture an ensemble predicts.

    Args:
        member_means: (member, batch, target).
        member_variances: (member, batch, target).
        weights: weight of each member, uniform if None.
        conformal: the rule behind `conformal_interval`, if one was fitted.
        learners: the member each row is a draw of; None if every row is a member of its own.
    """

    member_means: Tensor
    member_variances: Tensor
    weights: tuple[float, ...] | None = None
    conformal: ConformalResidual | ConformalQuantile | None = None
    learners: tuple[int, ...] | None = None

    def _average(self, values: Tensor) -> Tensor:
        if self.weights is None:
            return values.mean(0)
        return torch.tensordot(torch.tensor(self.weights, dtype=values.dtype), values, dims=1)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the mixture (batch, target)."""
        return self._average(self.member_means)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean of the member variances (batch, target): noise in the data."""
        return self._average(self.member_variances)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance of the member means (batch, target): what the members disagree about."""
        return self._average((self.member_means - self.mean).square())

    @cached_property
    def variance(self) -> Tensor:
        """Variance of the mixture: aleatoric plus epistemic (batch, target)."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """Standard deviation of the mixture (batch, target)."""
        return self.variance.sqrt()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the moment-matched Gaussian (batch, target)."""
        width = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
        return self.mean - width * self.std, self.mean + width * self.std

    def mixture_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval of the mixture itself, from its quantiles (batch, target)."""
        from choral.metrics import mixture_interval

        weights = None if self.weights is None else torch.tensor(self.weights, dtype=torch.float64)
        return mixture_interval(self.member_means, self.member_variances, level=level, weights=weights)

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Return the interval that holds the target with the promised probability (batch, target)."""
        if self.conformal is None:
            raise InputError(_UNFITTED)
        if isinstance(self.conformal, ConformalQuantile):
            return self.conformal.apply(*self.mixture_interval(self.conformal.level))
        scales = self.std.double() if self.conformal.scaled else None
        return self.conformal.apply(self.mean.double(), scales=scales)


Prediction = Classification | Regression
