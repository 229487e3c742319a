"""Predictions of classes: one class for each row or position (pixels, tokens), or yes and no for each of several labels."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from choral import metrics
from choral.base.batches import tensor_of
from choral.base.errors import InputError, warn
from choral.calibration import (
    ConformalLabels,
    ConformalSets,
    StackingWeights,
    Temperature,
    fit_conformal_sets,
    fit_label_sets,
    fit_temperature,
)
from choral.calibration.members import Correction, Loss, mixture
from choral.metrics.classification import brier_rows, correct_rows, nll_rows
from choral.metrics.inputs import PROB_FLOOR, mixture_log
from choral.predictions.prediction import Predictive, means_of

_OF_MEMBERS = ("member_accuracy", "member_nll", "disagreement", "pairwise_kl", "member_correlation")
_TIE = 1e-3
"""Part of the mean probability in the shares of a vote: it decides ties and leaves every class possible."""
_OF_AVERAGE = ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "entropy")


@dataclass(frozen=True)
class Probabilities(Predictive):
    """Probabilities of classes or labels, from logits (member, batch, ...)."""

    held = ("logits",)
    offers = ("probs", "labels", "confidence", "entropy", "expected_entropy", "mutual_information", "sets")
    shown = ("accuracy", "nll", "ece", "brier")
    followed = ("accuracy", "nll", "ece")
    unsure = "entropy"
    alarming = ("entropy", "mutual_information", "aleatoric")

    logits: Tensor

    @property
    @abstractmethod
    def member_probs(self) -> Tensor:
        """Probabilities of each member (member, batch, ...)."""

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """Probabilities of the ensemble (batch, ...)."""

    @abstractmethod
    def _entropies(self, probs: Tensor) -> Tensor:
        """Return entropies in nats."""

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def member_values(self) -> Tensor:
        return self.member_probs

    @cached_property
    def variance(self) -> Tensor:
        """Variance over members of each probability (batch, ...)."""
        return self.member_variance(self.member_probs)

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the mean prediction in nats: total uncertainty."""
        return self._entropies(self.probs)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the members: noise in the data."""
        return self.average(self._entropies(self.member_probs))

    @cached_property
    def epistemic(self) -> Tensor:
        """Entropy of the members' mean minus their mean entropy: their disagreement, never negative."""
        return (self._entropies(self.average(self.member_probs)) - self.aleatoric).clamp(min=0)

    @property
    def mutual_information(self) -> Tensor:
        """The same as epistemic."""
        return self.epistemic

    def sets(self, *, seed: int = 0) -> Tensor:
        """Return conformal sets as booleans: classes of each point (batch, class), or no and yes of each label (batch, label, 2)."""
        found: Tensor = self.rule.apply(self.probs, seed=seed)
        return found

    def covered(self, targets: Tensor) -> Tensor:
        return self.sets().gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)

    def cooled(self, temperature: Temperature) -> Self:
        """Return the prediction with its logits divided by a fitted temperature."""
        return replace(self, logits=temperature.apply(self.logits))

    def _check_rows(self) -> None:
        if self.logits.dim() > 3:
            raise InputError(
                "conformal sets guarantee coverage for exchangeable rows, which the positions of one row (pixels, tokens) are not; "
                "leave level out."
            )


@dataclass(frozen=True)
class Classification(Probabilities):
    """Class probabilities of an ensemble.

    Args:
        logits: (member, batch, class); dense outputs keep the network's axes, such as (member, batch, class, height, width).
        combine: 'probs' averages the members' probabilities (a mixture), 'logits' their logits; 'vote' counts their most probable classes.
        names: the class labels in the data, if they are not 0, 1, 2, ...
        axis: axis of the classes, counted from the end.
        ignore: a label that is left out of scores.
        ordered: whether classes are ordered; scores then include the distance from the label.
        unseen: classes without training rows.
    """

    task = "classification"
    like_targets = False
    rules = ("aps", "raps")
    accepts = (Temperature, StackingWeights, ConformalSets)

    combine: str = "probs"
    names: tuple[str, ...] | None = None
    axis: int = -1
    ignore: int | None = None
    ordered: bool = False
    unseen: tuple[int, ...] = ()

    @cached_property
    def member_probs(self) -> Tensor:
        return self.logits.softmax(self.axis)

    @cached_property
    def probs(self) -> Tensor:
        if self.combine == "logits":
            return self.average(self.logits).softmax(self.axis)
        mean = self.average(self.member_probs)
        if self.combine == "vote":
            best = self.member_probs.argmax(self.axis, keepdim=True)
            shares = self.average(torch.zeros_like(self.member_probs).scatter(self.axis, best, 1.0))
            return (1 - _TIE) * shares + _TIE * mean
        return mean

    @cached_property
    def labels(self) -> Tensor:
        """The most probable class (batch,)."""
        return self.probs.argmax(self.axis)

    @cached_property
    def confidence(self) -> Tensor:
        """Largest probability (batch,)."""
        return self.probs.max(self.axis).values

    def _entropies(self, probs: Tensor) -> Tensor:
        return torch.special.entr(probs).sum(self.axis)

    def fit_temperature(self, targets: Tensor, *, per: Any) -> Correction:
        if per == "member" or self.combine == "vote":
            self.check_mixture()
        logits = self.logits if self.mixes else self.average(self.logits).unsqueeze(0)
        return fit_temperature(*self._flat(logits, targets), per=per, weights=self.shares if self.mixes else None)

    @property
    def mixes(self) -> bool:
        """False for averaged logits and votes."""
        return self.combine == "probs"

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Correction:
        self._check_rows()
        penalty, free = (0.01, 2) if rule == "raps" else (0.0, 0)
        probs, labels = self._flat(self.probs, targets)
        return fit_conformal_sets(probs, labels, level=level, seed=seed, penalty=penalty, free_classes=free)

    def targets(self, y: Any) -> Tensor:
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
            warn(f"y holds the class {name}, which no training row had; such rows ({rows}) cannot be predicted right.")
        return labels.long()

    def counts(self, targets: Tensor) -> Tensor:
        return self._counted(targets).reshape(len(targets), -1).any(1)

    def _counted(self, targets: Tensor) -> Tensor:
        return torch.ones_like(targets, dtype=torch.bool) if self.ignore is None else targets != self.ignore

    def _flat(self, probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities (..., row, class) and labels (row,), with positions as rows and without ignored labels."""
        rows, kept = probs.movedim(self.axis, -1).flatten(probs.dim() - self.probs.dim(), -2), self._counted(targets)
        return (rows, targets.flatten()) if self.ignore is None else (rows[..., kept.flatten(), :], targets[kept])

    def _at_labels(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the entry of each label among the classes; that of the first class for ignored labels."""
        known, values = torch.where(self._counted(targets), targets, 0), values.movedim(self.axis, -1)
        return values.gather(-1, known.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def _summed(self, logs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over each row's labels that are not ignored. Shapes: (row, batch, ...) -> (row, batch)."""
        counted = logs * self._counted(targets)
        return counted if counted.dim() == 2 else counted.flatten(2).sum(-1)

    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log probability that each member gives to the labels of each row (member, batch)."""
        probs = self._at_labels(self.member_probs, targets).double()
        return self._summed(probs.clamp_min(PROB_FLOOR).log(), targets)

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return probabilities of labels that are not ignored, by position; or logits, if those are averaged."""
        labels = self._counted(targets).reshape(len(targets), -1).sum(1).clamp_min(1)
        mixes = self.combine != "logits"

        def loss(average: Tensor) -> Tensor:  # (candidate, batch, [class,] ...)
            if mixes:
                return -self._summed(average.clamp_min(PROB_FLOOR).log(), targets) / labels
            return -self._summed(self._at_labels(average.log_softmax(self.axis), targets), targets) / labels

        return (self._at_labels(self.member_probs.double(), targets) if mixes else self.logits.double()), loss

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        probs, labels = self._flat(self.probs.double(), targets)
        found = {
            "accuracy": correct_rows(probs, labels),
            "nll": nll_rows(probs, labels),
            "brier": brier_rows(probs, labels),
            "entropy": metrics.entropy(probs),
        }
        if self.ordered:
            reached = torch.arange(probs.shape[-1]) >= labels.unsqueeze(-1)
            found["ranked_probability"] = (probs.cumsum(-1) - reached.double()).square().sum(-1)
            found["mae"] = (probs.argmax(-1) - labels).abs().double()
        return found

    def row_weights(self, targets: Tensor, weights: Tensor) -> Tensor:
        wide = weights.reshape(-1, *[1] * (targets.dim() - 1)).expand(targets.shape)
        return wide[self._counted(targets)]

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return all measures of `choral.metrics.evaluate_classification`; scores of members average their draws."""
        alone = self.by_member(self.member_probs)
        pairs, drawn = len(alone) > 1, self.learners is not None
        probs, labels = self._flat(self.member_probs, targets)
        found = metrics.evaluate_classification(probs, labels, weights=self.shares, pairs=pairs and not drawn)
        if drawn:
            own = metrics.evaluate_classification(self._flat(alone, targets)[0], labels, pairs=pairs)
            found |= {n: own[n] for n in _OF_MEMBERS if n in own}
        if not self.mixes:
            joint = metrics.evaluate_classification(
                self._flat(self.probs.unsqueeze(0), targets)[0], labels, pairs=False
            )
            found |= {n: joint[n] for n in _OF_AVERAGE}
        if self.ordered:
            found |= {n: v for n, v in means_of(self.row_scores(targets)).items() if n not in found}
        return found

    def joint_scores(self, targets: Tensor) -> dict[str, float]:
        return {"ece": metrics.ece(*self._flat(self.probs, targets))}

    def details(self, targets: Tensor) -> dict[str, Any]:
        probs, labels = self._flat(self.probs, targets)
        names = list(self.names or map(str, range(probs.shape[-1])))
        found = {
            "reliability": _reliability(probs, labels),
            "classes": {"names": names} | metrics.class_report(probs, labels),
        }
        return found | ({"worst": _worst(probs, labels, names)} if len(labels) == len(targets) else {})

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        probs, _ = self._flat(self.by_member(self.member_probs), targets)
        return "disagreement", metrics.disagreement_matrix(probs)

    def alarms(self) -> dict[str, Tensor]:
        """Return the scores of `choral.metrics.ood_scores`; for dense outputs, means over the positions of a row."""
        probs, logits = (v.movedim(self.axis, -1) for v in (self.member_probs, self.logits))
        found = metrics.ood_scores(probs.flatten(1, -2), member_logits=logits.flatten(1, -2), weights=self.shares)
        return {n: v.reshape(probs.shape[1], -1).mean(1) for n, v in found.items()}

    def columns(self, level: float = 0.95) -> dict[str, list[Any]]:
        if self.logits.dim() > 3:
            raise InputError(
                f"a prediction of {tuple(self.labels.shape[1:])} labels a point is no table; use predict in Python."
            )
        names = self.names or range(self.probs.shape[-1])
        found: dict[str, list[Any]] = {"prediction": [names[i] for i in self.labels.tolist()]}
        sure = {"confidence": self.confidence, "entropy": self.entropy, "mutual_information": self.epistemic}
        found |= {name: values.tolist() for name, values in sure.items()}
        return found | {f"p_{name}": p.tolist() for name, p in zip(names, self.probs.T)}


@dataclass(frozen=True)
class MultiLabel(Probabilities):
    """Probabilities of labels that are not mutually exclusive.

    Args:
        logits: (member, batch, label), or dense with further axes.
        names: names of no and yes for a single label.
    """

    task = "labels"
    alone = ("accuracy", "nll")
    rules = ("labels",)
    accepts = (StackingWeights, Temperature, ConformalLabels)

    names: tuple[str, ...] | None = None

    @cached_property
    def member_probs(self) -> Tensor:
        return self.logits.sigmoid()

    @cached_property
    def probs(self) -> Tensor:
        return self.average(self.member_probs)

    @cached_property
    def labels(self) -> Tensor:
        """Whether each label is more probable than not (batch, label), booleans."""
        return self.probs > 0.5

    @property
    def confidence(self) -> Tensor:
        """Probability of the more probable answer to each label (batch, label)."""
        return torch.maximum(self.probs, 1 - self.probs)

    def _entropies(self, probs: Tensor) -> Tensor:
        return torch.special.entr(probs) + torch.special.entr(1 - probs)

    def fit_temperature(self, targets: Tensor, *, per: Any) -> Correction:
        """Return the temperature fitted on held-out labels, one for all labels."""
        both = torch.stack([torch.zeros_like(self.logits), self.logits], -1)
        return fit_temperature(both.flatten(1, -2), targets.long().flatten(), per=per, weights=self.shares)

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Correction:
        self._check_rows()
        return fit_label_sets(self.probs, targets, level=level)

    def targets(self, y: Any) -> Tensor:
        found = tensor_of(y).double()
        if found.numel() != self.probs.numel() or not bool(((found == 0) | (found == 1)).all()):
            raise InputError(
                f"y must hold 0 or 1 for each of {tuple(self.probs.shape)} (batch, label); it has {tuple(found.shape)}."
            )
        return found.reshape(self.probs.shape)

    def log_scores(self, targets: Tensor) -> Tensor:
        own = torch.where(targets > 0.5, self.member_probs, 1 - self.member_probs).double()
        return own.clamp_min(PROB_FLOOR).log().flatten(2).sum(-1)

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return the mixture of rows of labels; its cost is that of one label."""
        values, loss = mixture(self.log_scores(targets))
        labels = targets[0].numel()
        return values, lambda average: loss(average) / labels

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        probs = self.probs.double().flatten(1)
        truth = targets.flatten(1)
        right = ((probs > 0.5) == (truth > 0.5)).double()
        return {
            "accuracy": right.mean(1),
            "exact_match": right.prod(1),
            "nll": -mixture_log(self.log_scores(targets), self.shares) / probs.shape[1],
            "brier": (probs - truth).square().mean(1),
            "entropy": self._by_point("entropy").double(),
            "mutual_information": self._by_point("epistemic").double(),
        }

    def _two_classes(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        probs = self.probs.double().flatten()
        return torch.stack([1 - probs, probs], -1), targets.long().flatten()

    def joint_scores(self, targets: Tensor) -> dict[str, float]:
        return {"ece": metrics.ece(*self._two_classes(targets))}

    def details(self, targets: Tensor) -> dict[str, Any]:
        probs, labels = self._two_classes(targets)
        found = {"reliability": _reliability(probs, labels)}
        if self.probs[0].numel() == 1:
            found["classes"] = {"names": list(self.names or ("0", "1"))} | metrics.class_report(probs, labels)
        return found

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        votes = (self.by_member(self.member_probs) > 0.5).flatten(1).double()
        return "disagreement", (votes.unsqueeze(0) - votes.unsqueeze(1)).abs().mean(-1)

    def columns(self, level: float = 0.95) -> dict[str, list[Any]]:
        probs = self.probs.flatten(1)
        found: dict[str, list[Any]] = {f"p_{i}": probs[:, i].tolist() for i in range(probs.shape[1])}
        if len(found) == 1:
            no, yes = self.names or (0, 1)
            found = {"prediction": [yes if p > 0.5 else no for p in probs[:, 0].tolist()], f"p_{yes}": found["p_0"]}
        sums = {"entropy": self.entropy, "mutual_information": self.epistemic}
        return found | {n: v.flatten(1).sum(1).tolist() for n, v in sums.items()}


def _reliability(probs: Tensor, labels: Tensor) -> dict[str, Any]:
    table = metrics.reliability_table(probs, labels)
    return {n: getattr(table, n) for n in ("edges", "counts", "confidence", "accuracy")}


def _worst(probs: Tensor, labels: Tensor, names: Sequence[str], most: int = 10) -> list[dict[str, Any]]:
    own = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    rows = [int(i) for i in own.argsort()[:most]]
    said = [(i, int(labels[i]), int(probs[i].argmax())) for i in rows]
    return [
        {"row": i, "target": names[true], "predicted": names[guess], "confidence": probs[i, guess]}
        for i, true, guess in said
        if true != guess
    ]
