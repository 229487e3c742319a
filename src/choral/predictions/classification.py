"""Class probabilities: one class for each point, or for each position of dense outputs (pixels, tokens)."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from choral import metrics
from choral.base.errors import InputError
from choral.base.values import Value
from choral.posthoc import (
    ConformalSets,
    MemberSelection,
    StackingWeights,
    Temperature,
    fit_conformal_sets,
    fit_temperature,
    label_log_scores,
)
from choral.predictions.base import UNFITTED, Prediction

_OF_MEMBERS = ("member_accuracy", "member_nll", "disagreement", "pairwise_kl", "member_correlation")
_OF_AVERAGE = ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "entropy")


@dataclass(frozen=True)
class Classification(Prediction):
    """Class probabilities of an ensemble.

    Args:
        logits: (member, batch, class).
        combine: 'probs' averages member probabilities (a mixture), 'logits' averages logits first.
        names: the class labels as they were in the data, if they were not 0, 1, 2, ...
    """

    task: ClassVar[str] = "classification"
    held: ClassVar[tuple[str, ...]] = ("logits",)
    shown: ClassVar[tuple[str, ...]] = ("accuracy", "nll", "ece", "brier")
    alarm: ClassVar[str] = "entropy"
    rules: ClassVar[tuple[str, ...]] = ("aps", "raps")
    accepts: ClassVar[tuple[type[Value], ...]] = (MemberSelection, Temperature, StackingWeights, ConformalSets)

    logits: Tensor
    combine: str = "probs"
    names: tuple[str, ...] | None = None

    @cached_property
    def member_probs(self) -> Tensor:
        """Probabilities of each member (member, batch, class)."""
        return self.logits.softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the ensemble (batch, class)."""
        if self.combine == "logits":
            return self.average(self.logits).softmax(-1)
        return self.average(self.member_probs)

    @property
    def mean(self) -> Tensor:
        """The mean prediction: the same as probs."""
        return self.probs

    @property
    def member_values(self) -> Tensor:
        """Probabilities of each member."""
        return self.member_probs

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
        return self.average(torch.special.entr(self.member_probs).sum(-1))

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy minus mean member entropy (batch,): what the members disagree about, never negative."""
        total = torch.special.entr(self.average(self.member_probs)).sum(-1)
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
        return 1 - self.average(votes).max(-1).values

    @cached_property
    def max_logit(self) -> Tensor:
        """Largest mean logit (batch,)."""
        return self.average(self.logits).max(-1).values

    def sets(self, *, seed: int = 0) -> Tensor:
        """Return the conformal set of each point as booleans (batch, class)."""
        if self.conformal is None:
            raise InputError(UNFITTED)
        found: Tensor = self.conformal.apply(self.probs, seed=seed)
        return found

    def cooled(self, temperature: Temperature) -> Self:
        """Return the prediction with its logits divided by a fitted temperature."""
        return replace(self, logits=temperature.apply(self.logits))

    def fit_temperature(self, targets: Tensor, *, per: Any) -> Value:
        """Return the temperature fitted on held-out labels."""
        if per == "member":
            self.check_mixture()
        logits = self.logits if self.mixes else self.logits.mean(0, keepdim=True)
        return fit_temperature(logits, targets, per=per)

    @property
    def mixes(self) -> bool:
        """Averaged logits are no mixture."""
        return self.combine != "logits"

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Value:
        penalty, free = (0.01, 2) if rule == "raps" else (0.0, 0)
        return fit_conformal_sets(self.probs, targets, level=level, seed=seed, penalty=penalty, free_classes=free)

    def targets(self, y: Any) -> Tensor:
        """Return labels as whole numbers (batch,)."""
        return torch.as_tensor(np.asarray(y)).long()

    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log probability each member gives to each label (member, batch)."""
        return label_log_scores(self.member_probs, targets)

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return every measure of `choral.metrics.evaluate_classification`; those of members have their draws averaged."""
        alone = self.by_member(self.member_probs)
        pairs, drawn = len(alone) > 1, self.learners is not None
        found = metrics.evaluate_classification(
            self.member_probs, targets, weights=self.shares, pairs=pairs and not drawn
        )
        if drawn:
            own = metrics.evaluate_classification(alone, targets, pairs=pairs)
            found |= {n: own[n] for n in _OF_MEMBERS if n in own}
        if self.combine == "logits":
            joint = metrics.evaluate_classification(self.probs.unsqueeze(0), targets, pairs=False)
            found |= {n: joint[n] for n in _OF_AVERAGE}
        return found

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return accuracy, nll and ece."""
        probs = self.probs
        return {
            "accuracy": metrics.accuracy(probs, targets),
            "nll": metrics.nll(probs, targets),
            "ece": metrics.ece(probs, targets),
        }

    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return the reliability table."""
        table = metrics.reliability_table(self.probs, targets)
        return {"reliability": {n: getattr(table, n) for n in ("edges", "counts", "confidence", "accuracy")}}

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return how often two members name different classes."""
        return "disagreement", metrics.disagreement_matrix(self.by_member(self.member_probs))

    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return the confidence."""
        return "confidence", self.confidence, 1.0

    def alarms(self) -> dict[str, Tensor]:
        """Return the scores of `choral.metrics.ood_scores`."""
        return metrics.ood_scores(self.member_probs, member_logits=self.logits, weights=self.shares)

    def columns(self) -> dict[str, list[Any]]:
        """Return prediction, confidence, entropy, mutual_information and the probability of each class."""
        names = self.names or tuple(str(i) for i in range(self.probs.shape[-1]))
        found: dict[str, list[Any]] = {"prediction": [names[i] for i in self.labels.tolist()]}
        for name in ("confidence", "entropy", "mutual_information"):
            found[name] = getattr(self, name).tolist()
        return found | {f"p_{name}": p.tolist() for name, p in zip(names, self.probs.T)}
