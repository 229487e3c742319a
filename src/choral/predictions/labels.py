"""Yes or no for each of several labels, or for one."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from choral import metrics
from choral.base.arrays import tensor_of
from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration import ConformalLabels, MemberSelection, StackingWeights, Temperature, fit_label_sets
from choral.calibration.selection import Loss, mixture
from choral.metrics.inputs import PROB_FLOOR, checked_weights
from choral.predictions.base import UNFITTED, Predictive, means_of
from choral.predictions.classification import CLASSES


@dataclass(frozen=True)
class MultiLabel(Predictive):
    """Probabilities of labels that do not exclude each other.

    Args:
        logits: (member, batch, label), or dense with further axes.
        names: of the answers no and yes to a single label, as they were in the data.
    """

    task: ClassVar[str] = "labels"
    held: ClassVar[tuple[str, ...]] = ("logits",)
    offers: ClassVar[tuple[str, ...]] = CLASSES
    shown: ClassVar[tuple[str, ...]] = ("accuracy", "nll", "ece", "brier")
    alarm: ClassVar[str] = "entropy"
    rules: ClassVar[tuple[str, ...]] = ("labels",)
    accepts: ClassVar[tuple[type[Value], ...]] = (MemberSelection, StackingWeights, Temperature, ConformalLabels)

    logits: Tensor
    names: tuple[str, ...] | None = None

    @cached_property
    def member_probs(self) -> Tensor:
        """Probability of each label from each member (member, batch, label)."""
        return self.logits.sigmoid()

    @cached_property
    def probs(self) -> Tensor:
        """Probability of each label (batch, label)."""
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
        """Whether each label is likelier than not (batch, label), booleans."""
        return self.probs > 0.5

    @property
    def confidence(self) -> Tensor:
        """Probability of the likelier side of each label (batch, label)."""
        return torch.maximum(self.probs, 1 - self.probs)

    @cached_property
    def variance(self) -> Tensor:
        """Variance over members of each probability (batch, label)."""
        return self.average((self.member_probs - self.average(self.member_probs)).square())

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of each label in nats (batch, label): total uncertainty."""
        return _entropy(self.probs)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the members (batch, label): noise in the data."""
        return self.average(_entropy(self.member_probs))

    @cached_property
    def epistemic(self) -> Tensor:
        """Entropy minus mean member entropy (batch, label): what the members disagree about."""
        return (self.entropy - self.aleatoric).clamp(min=0)

    def sets(self, *, seed: int = 0) -> Tensor:
        """Return for each label whether no and whether yes are in its conformal set (batch, label, 2)."""
        if self.conformal is None:
            raise InputError(UNFITTED)
        found: Tensor = self.conformal.apply(self.probs)
        return found

    def covered(self, targets: Tensor) -> Tensor:
        """Return whether the set of each label holds its answer (batch, label)."""
        return self.sets().gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)

    def cooled(self, temperature: Temperature) -> Self:
        """Return the prediction with its logits divided by a fitted temperature."""
        return replace(self, logits=temperature.apply(self.logits))

    def fit_temperature(self, targets: Tensor, *, per: Any) -> Value:
        """Return the temperature fitted on held-out labels, one for all labels."""
        from choral.calibration import fit_temperature

        both = torch.stack([torch.zeros_like(self.logits), self.logits], -1)
        return fit_temperature(both.flatten(1, -2), targets.long().flatten(), per=per, weights=self.shares)

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Value:
        if self.logits.dim() > 3:
            raise InputError(
                "conformal sets promise coverage of exchangeable rows, which the positions of one row are not."
            )
        return fit_label_sets(self.probs, targets, level=level)

    def targets(self, y: Any) -> Tensor:
        """Return labels as 0 and 1 in the shape of the probabilities."""
        found = tensor_of(y).double()
        if found.numel() != self.probs.numel() or not bool(((found == 0) | (found == 1)).all()):
            raise InputError(
                f"y must hold 0 or 1 for each of {tuple(self.probs.shape)} (batch, label); it has {tuple(found.shape)}."
            )
        return found.reshape(self.probs.shape)

    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log probability each member gives to each row of labels (member, batch)."""
        return _of_truth(self.member_probs, targets).log().flatten(2).sum(-1)

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return a mixture of rows of labels, which belong together; its cost is that of one label."""
        values, loss = mixture(self.log_scores(targets))
        labels = targets[0].numel()
        return values, lambda average: loss(average) / labels

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return accuracy by label, exact matches, nll of a row, Brier and uncertainties of each point."""
        probs = self.probs.double().flatten(1)
        truth = targets.flatten(1)
        right = ((probs > 0.5) == (truth > 0.5)).double()
        # the labels of a row belong together
        logs = _of_truth(self.member_probs.double(), targets).log().flatten(2).sum(-1)
        shares = checked_weights(self.shares, members=len(logs), like=logs)
        return {
            "accuracy": right.mean(1),
            "exact_match": right.prod(1),
            "nll": -(logs + shares.log().unsqueeze(-1)).logsumexp(0) / probs.shape[1],
            "brier": (probs - truth).square().mean(1),
            "entropy": self.entropy.double().flatten(1).mean(1),
            "mutual_information": self.epistemic.double().flatten(1).mean(1),
        }

    def _two_classes(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        probs = self.probs.double().flatten()
        return torch.stack([1 - probs, probs], -1), targets.long().flatten()

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return the means of `row_scores`, calibration over all labels, and the measures of members alone."""
        parts = [self.of_rows(rows).row_scores(targets) for rows in self.rows_by_member()]
        alone = {f"member_{n}": sum(float(p[n].mean()) for p in parts) / len(parts) for n in ("accuracy", "nll")}
        return means_of(self.row_scores(targets)) | {"ece": metrics.ece(*self._two_classes(targets))} | alone

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return accuracy, nll and ece."""
        found = means_of(self.row_scores(targets)) | {"ece": metrics.ece(*self._two_classes(targets))}
        return {n: found[n] for n in ("accuracy", "nll", "ece")}

    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return the reliability table over all labels, and of a single label how well its two classes are told."""
        probs, labels = self._two_classes(targets)
        table = metrics.reliability_table(probs, labels)
        found = {"reliability": {n: getattr(table, n) for n in ("edges", "counts", "confidence", "accuracy")}}
        if self.probs[0].numel() > 1:
            return found
        told = metrics.class_report(probs.argmax(-1), labels, 2) | metrics.precision_curves(probs, labels)
        return found | {"classes": {"names": list(self.names or ("0", "1"))} | told}

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return how often two members differ about a label."""
        votes = (self.by_member(self.member_probs) > 0.5).flatten(1).double()
        return "disagreement", (votes.unsqueeze(0) - votes.unsqueeze(1)).abs().mean(-1)

    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return the mean probability of the likelier side."""
        return "confidence", self.confidence.flatten(1).mean(1), 1.0

    def alarms(self) -> dict[str, Tensor]:
        """Return mean entropies over labels."""
        found = {"entropy": self.entropy, "mutual_information": self.epistemic, "aleatoric": self.aleatoric}
        return {n: v.double().flatten(1).mean(1) for n, v in found.items()}

    def columns(self) -> dict[str, list[Any]]:
        """Return the probability of each label, the entropy and the mutual information of the row."""
        probs = self.probs.flatten(1)
        found: dict[str, list[Any]] = {f"p_{i}": probs[:, i].tolist() for i in range(probs.shape[1])}
        if self.names is not None:
            no, yes = self.names
            found = {"prediction": [yes if p > 0.5 else no for p in probs[:, 0].tolist()], f"p_{yes}": found["p_0"]}
        sums = {"entropy": self.entropy, "mutual_information": self.epistemic}
        return found | {n: v.flatten(1).sum(1).tolist() for n, v in sums.items()}


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs) + torch.special.entr(1 - probs)


def _of_truth(probs: Tensor, targets: Tensor) -> Tensor:
    return torch.where(targets > 0.5, probs, 1 - probs).clamp_min(PROB_FLOOR)
