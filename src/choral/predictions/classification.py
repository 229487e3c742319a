"""Class probabilities: one class for each point, or for each position of dense outputs (pixels, tokens)."""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from choral import metrics
from choral.base.arrays import tensor_of
from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration import (
    ConformalSets,
    MemberSelection,
    StackingWeights,
    Temperature,
    fit_conformal_sets,
    fit_temperature,
    label_log_scores,
)
from choral.calibration.selection import Loss
from choral.predictions.base import UNFITTED, Predictive, means_of

CLASSES = ("probs", "labels", "confidence", "entropy", "expected_entropy", "mutual_information", "sets")
_OF_MEMBERS = ("member_accuracy", "member_nll", "disagreement", "pairwise_kl", "member_correlation")
_OF_AVERAGE = ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "entropy")


@dataclass(frozen=True)
class Classification(Predictive):
    """Class probabilities of an ensemble.

    Args:
        logits: (member, batch, class); dense ones keep the network's axes: (member, batch, class, height, width), say.
        combine: 'probs' averages member probabilities (a mixture), 'logits' averages logits first.
        names: the class labels as they were in the data, if they were not 0, 1, 2, ...
        axis: axis of the classes, counted from the end.
        ignore: a label whose positions are left out of scores.
        ordered: whether the classes are ordered, so that scores also tell how far off a prediction is.
        unseen: classes that no training point had.
    """

    task: ClassVar[str] = "classification"
    held: ClassVar[tuple[str, ...]] = ("logits",)
    offers: ClassVar[tuple[str, ...]] = CLASSES
    like_targets: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ("accuracy", "nll", "ece", "brier")
    alarm: ClassVar[str] = "entropy"
    rules: ClassVar[tuple[str, ...]] = ("aps", "raps")
    accepts: ClassVar[tuple[type[Value], ...]] = (MemberSelection, Temperature, StackingWeights, ConformalSets)

    logits: Tensor
    combine: str = "probs"
    names: tuple[str, ...] | None = None
    axis: int = -1
    ignore: int | None = None
    ordered: bool = False
    unseen: tuple[int, ...] = ()

    @cached_property
    def member_probs(self) -> Tensor:
        """Probabilities of each member (member, batch, class)."""
        return self.logits.softmax(self.axis)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the ensemble (batch, class)."""
        if self.combine == "logits":
            return self.average(self.logits).softmax(self.axis)
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
        return self.probs.argmax(self.axis)

    @cached_property
    def confidence(self) -> Tensor:
        """Largest probability (batch,)."""
        return self.probs.max(self.axis).values

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the mean prediction in nats (batch,): total uncertainty."""
        return torch.special.entr(self.probs).sum(self.axis)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the members (batch,): noise in the data."""
        return self.average(torch.special.entr(self.member_probs).sum(self.axis))

    @cached_property
    def epistemic(self) -> Tensor:
        """Entropy minus mean member entropy (batch,): what the members disagree about, never negative."""
        total = torch.special.entr(self.average(self.member_probs)).sum(self.axis)
        return (total - self.aleatoric).clamp(min=0)

    @cached_property
    def variance(self) -> Tensor:
        """Variance over members of each class probability (batch, class)."""
        return self.average((self.member_probs - self.average(self.member_probs)).square())

    def sets(self, *, seed: int = 0) -> Tensor:
        """Return the conformal set of each point as booleans (batch, class)."""
        if self.conformal is None:
            raise InputError(UNFITTED)
        found: Tensor = self.conformal.apply(self.probs, seed=seed)
        return found

    def covered(self, targets: Tensor) -> Tensor:
        """Return whether the set of each point holds its label (batch,)."""
        return self.sets().gather(1, targets.unsqueeze(1)).squeeze(1)

    def cooled(self, temperature: Temperature) -> Self:
        """Return the prediction with its logits divided by a fitted temperature."""
        return replace(self, logits=temperature.apply(self.logits))

    def fit_temperature(self, targets: Tensor, *, per: Any) -> Value:
        """Return the temperature fitted on held-out labels."""
        if per == "member":
            self.check_mixture()
        logits = self.logits if self.mixes else self.average(self.logits).unsqueeze(0)
        return fit_temperature(*self._flat(logits, targets), per=per, weights=self.shares if self.mixes else None)

    @property
    def mixes(self) -> bool:
        """Averaged logits are no mixture."""
        return self.combine != "logits"

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Value:
        if self.logits.dim() > 3:
            raise InputError(
                "conformal sets promise coverage of exchangeable rows, which the positions of one row (pixels, tokens) are not; "
                "leave level out."
            )
        penalty, free = (0.01, 2) if rule == "raps" else (0.0, 0)
        probs, labels = self._flat(self.probs, targets)
        return fit_conformal_sets(probs, labels, level=level, seed=seed, penalty=penalty, free_classes=free)

    def targets(self, y: Any) -> Tensor:
        """Return labels as whole numbers (batch,), or (batch, ...) of dense outputs."""
        labels = tensor_of(y)
        shape = tuple(self.probs.movedim(self.axis, -1).shape[:-1])
        if labels.dim() == 2 and len(shape) == 1:  # one-hot, or a column
            labels = labels.argmax(1) if labels.shape[1] > 1 else labels[:, 0]
        if tuple(labels.shape) != shape:
            raise InputError(
                f"y has shape {tuple(labels.shape)} and the ensemble predicts labels of shape {shape}; give as many."
            )
        odd = [c for c in self.unseen if bool((labels == c).any())]
        if odd:
            rows = int((labels == odd[0]).sum())
            name = f"'{self.names[odd[0]]}'" if self.names else odd[0]
            warnings.warn(
                f"y holds the class {name}, which no training row had; such rows ({rows}) cannot be predicted right.",
                stacklevel=3,
            )
        return labels.long()

    def counts(self, targets: Tensor) -> Tensor:
        """Return which points have a label that counts (batch,)."""
        return (
            super().counts(targets)
            if self.ignore is None
            else (targets != self.ignore).reshape(len(targets), -1).any(1)
        )

    def _flat(self, probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities (..., row, class) and labels (row,): positions are rows, and ignored ones are left out."""
        if self.logits.dim() == 3 and self.ignore is None:
            return probs, targets
        rows, labels = probs.movedim(self.axis, -1).flatten(probs.dim() - self.probs.dim(), -2), targets.flatten()
        if self.ignore is None:
            return rows, labels
        kept = labels != self.ignore
        return rows[..., kept, :], labels[kept]

    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log probability each member gives to each label, those of one point summed (member, batch)."""
        if self.logits.dim() == 3 and self.ignore is None:
            return label_log_scores(self.member_probs, targets)
        counted = torch.ones_like(targets, dtype=torch.bool) if self.ignore is None else targets != self.ignore
        known = torch.where(counted, targets, 0).expand(len(self), *targets.shape)
        probs = self.member_probs.movedim(self.axis, -1).gather(-1, known.unsqueeze(-1)).squeeze(-1).double()
        logs = probs.clamp_min(metrics.PROB_FLOOR).log() * counted
        return logs.reshape(*logs.shape[:2], -1).sum(-1)

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return probabilities of the labels that count, position by position; or logits, where those are averaged."""
        counted = torch.ones_like(targets, dtype=torch.bool) if self.ignore is None else targets != self.ignore
        known = torch.where(counted, targets, 0)
        share = counted.double().flatten(1).sum(1).clamp_min(1) if targets.dim() > 1 else torch.ones(len(targets))
        mixed = self.mixes

        def loss(average: Tensor) -> Tensor:  # (candidate, batch, [class,] ...)
            if not mixed:
                average = average.log_softmax(self.axis).movedim(self.axis, -1)
                rows = average.gather(-1, known.expand(average.shape[:-1]).unsqueeze(-1)).squeeze(-1)
            else:
                rows = average.clamp_min(metrics.PROB_FLOOR).log()
            rows = rows * counted
            return -(rows if rows.dim() == 2 else rows.flatten(2).sum(-1)) / share

        if not mixed:
            return self.logits.double(), loss
        probs = self.member_probs.double().movedim(self.axis, -1)
        return probs.gather(-1, known.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1), loss

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return accuracy, nll, Brier and uncertainties of each label that counts."""
        probs, labels = self._flat(self.probs.double(), targets)
        own = probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        found = {
            "accuracy": (probs.argmax(-1) == labels).double(),
            "nll": -own.clamp_min(metrics.PROB_FLOOR).log(),
            "brier": probs.square().sum(-1) - 2 * own + 1,
            "entropy": torch.special.entr(probs).sum(-1),
        }
        if self.ordered:
            reached = torch.arange(probs.shape[-1]) >= labels.unsqueeze(-1)
            found["ranked_probability"] = (probs.cumsum(-1) - reached.double()).square().sum(-1)
            found["mae"] = (probs.argmax(-1) - labels).abs().double()
        return found

    def row_weights(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return weights for each label that counts."""
        wide = weights.reshape(-1, *[1] * (targets.dim() - 1)).expand(targets.shape).flatten()
        return wide if self.ignore is None else wide[targets.flatten() != self.ignore]

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return every measure of `choral.metrics.evaluate_classification`; those of members have their draws averaged."""
        alone = self.by_member(self.member_probs)
        pairs, drawn = len(alone) > 1, self.learners is not None
        probs, labels = self._flat(self.member_probs, targets)
        found = metrics.evaluate_classification(probs, labels, weights=self.shares, pairs=pairs and not drawn)
        if drawn:
            own = metrics.evaluate_classification(self._flat(alone, targets)[0], labels, pairs=pairs)
            found |= {n: own[n] for n in _OF_MEMBERS if n in own}
        if self.combine == "logits":
            joint = metrics.evaluate_classification(
                self._flat(self.probs.unsqueeze(0), targets)[0], labels, pairs=False
            )
            found |= {n: joint[n] for n in _OF_AVERAGE}
        if self.ordered:
            found |= {n: v for n, v in means_of(self.row_scores(targets)).items() if n not in found}
        return found

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return accuracy, nll and ece."""
        probs, labels = self._flat(self.probs, targets)
        return {
            "accuracy": metrics.accuracy(probs, labels),
            "nll": metrics.nll(probs, labels),
            "ece": metrics.ece(probs, labels),
        }

    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return the reliability table, and how well each class is told."""
        probs, labels = self._flat(self.probs, targets)
        table, count = metrics.reliability_table(probs, labels), probs.shape[-1]
        classes = {"names": list(self.names or map(str, range(count)))}
        told = metrics.class_report(probs.argmax(-1), labels, count) | metrics.precision_curves(probs, labels)
        return {
            "reliability": {n: getattr(table, n) for n in ("edges", "counts", "confidence", "accuracy")},
            "classes": classes | told,
        }

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return how often two members name different classes."""
        probs, _ = self._flat(self.by_member(self.member_probs), targets)
        return "disagreement", metrics.disagreement_matrix(probs)

    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return the confidence, of dense outputs the mean over a point's positions."""
        return "confidence", self.confidence.flatten(1).mean(1) if self.confidence.dim() > 1 else self.confidence, 1.0

    def alarms(self) -> dict[str, Tensor]:
        """Return the scores of `choral.metrics.ood_scores`, of dense outputs the mean over a point's positions."""
        probs, logits = (v.movedim(self.axis, -1) for v in (self.member_probs, self.logits))
        found = metrics.ood_scores(probs.flatten(1, -2), member_logits=logits.flatten(1, -2), weights=self.shares)
        return {n: v.reshape(probs.shape[1], -1).mean(1) for n, v in found.items()}

    def columns(self) -> dict[str, list[Any]]:
        """Return prediction, confidence, entropy, mutual_information and the probability of each class."""
        if self.logits.dim() > 3:
            raise InputError(
                f"a prediction of {tuple(self.labels.shape[1:])} labels a point is no table; use predict in Python."
            )
        names = self.names or tuple(str(i) for i in range(self.probs.shape[-1]))
        found: dict[str, list[Any]] = {"prediction": [names[i] for i in self.labels.tolist()]}
        sure = {"confidence": self.confidence, "entropy": self.entropy, "mutual_information": self.epistemic}
        found |= {name: values.tolist() for name, values in sure.items()}
        return found | {f"p_{name}": p.tolist() for name, p in zip(names, self.probs.T)}
