"""Scores of predicted probabilities against labels: accuracy, likelihood, Brier, calibration, and counts by class.

`probs` are (batch, class) and `labels` (batch,). The `_rows` functions give one number for each row; the others their
mean. A true class whose probability is exactly 0 is charged -log(PROB_FLOOR) = 87.3 nats, so every score is finite.

For calibration, rows are sorted by confidence (the largest probability) into bins of equal width, left open and right closed, as in the
papers; the adaptive error uses bins of equal count.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from choral.base.values import Count
from choral.metrics.inputs import PROB_FLOOR, checked_finite, checked_labels, checked_probs, mixture_log


def correct_rows(probs: Tensor, labels: Tensor) -> Tensor:
    """Return 1.0 where the most probable class (the first, among equals) is the label, else 0.0."""
    return (probs.argmax(-1) == labels).double()


def nll_rows(probs: Tensor, labels: Tensor) -> Tensor:
    """Return -log of the probability of each label, for checked float64 probs (..., batch, class)."""
    chosen = probs.gather(-1, labels.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return -chosen.clamp(PROB_FLOOR, 1.0).log()


def brier_rows(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance to the one-hot label, for checked float64 probs (batch, class)."""
    chosen = probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return probs.square().sum(-1) - 2.0 * chosen + 1.0


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    probs = checked_probs(probs)
    return probs, checked_labels(labels, probs)


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose most probable class is the label.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    return float(correct_rows(*_checked(probs, labels)).mean())


def top_accuracy(probs: Tensor, labels: Tensor, *, k: int = 5) -> float:
    """Return the share of rows whose label is among the k most probable classes (all rows if there are at most k).

    >>> top_accuracy(torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]), torch.tensor([1, 2]), k=2)
    0.5
    """
    probs, labels = _checked(probs, labels)
    named = probs.topk(min(k, probs.shape[-1]), dim=-1).indices
    return float((named == labels.unsqueeze(-1)).any(-1).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Return the mean negative log likelihood in nats; a probability of exactly 0 counts as `PROB_FLOOR`.

    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 6)
    0.693147
    """
    return float(nll_rows(*_checked(probs, labels)).mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Return the mean squared distance between the probabilities and the one-hot label, from 0 to 2.

    Reference: Brier, "Verification of forecasts expressed in terms of probability", 1950: the sum over classes, not
    half of it.

    >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 0]))
    0.25
    """
    return float(brier_rows(*_checked(probs, labels)).mean())


def logits_nll(member_logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the mean negative log likelihood of the members' average probabilities, computed from logits.

    Exact where probabilities underflow: it stays in logarithms, so nothing is floored.

    Shapes: member_logits (member, batch, class), labels (batch,), weights (member,).

    >>> round(logits_nll(torch.tensor([[[0.0, 800.0]]]), torch.tensor([0])), 3)
    800.0
    """
    member_logits = checked_finite(member_logits, "member_logits")
    own = checked_labels(labels, member_logits).expand(member_logits.shape[:-1]).unsqueeze(-1)
    log_scores = member_logits.gather(-1, own).squeeze(-1) - member_logits.logsumexp(-1)
    return float(-mixture_log(log_scores, weights).mean())


@dataclass(frozen=True, kw_only=True)
class ReliabilityTable:
    """The values of a reliability diagram, one entry for each bin.

    Args:
        edges: borders of the bins from 0 to 1 (bins + 1,).
        counts: rows in each bin (bins,).
        confidence: mean confidence of the bin's rows, 0 for an empty bin (bins,).
        accuracy: share of the bin's rows that are correct, 0 for an empty bin (bins,).
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gaps(self) -> Tensor:
        """Return |accuracy - confidence| of each bin."""
        return (self.accuracy - self.confidence).abs()

    def ece(self, *, drop_at_most: int = 0) -> float:
        """Return the gaps' mean weighted by count, over bins with more rows than `drop_at_most`; 0 when there is none."""
        counts = self.counts * (self.counts > drop_at_most)
        return float((counts * self.gaps).sum() / counts.sum().clamp_min(1))

    def mce(self, *, drop_at_most: int = 0) -> float:
        """Return the largest gap among bins with more rows than `drop_at_most`; 0 when there is none."""
        kept = self.gaps[self.counts > drop_at_most]
        return float(kept.max()) if len(kept) else 0.0


def binned(confidence: Tensor, correct: Tensor, *, bins: int) -> ReliabilityTable:
    """Return the reliability table of rows."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    index = (torch.bucketize(confidence, edges) - 1).clamp(0, bins - 1)  # bin r holds (edge r, edge r + 1]
    sums = torch.zeros(3, bins, dtype=torch.float64, device=confidence.device)
    counts, sure, right = sums.index_add_(1, index, torch.stack([torch.ones_like(confidence), confidence, correct]))
    rows = counts.clamp_min(1)
    return ReliabilityTable(edges=edges, counts=counts, confidence=sure / rows, accuracy=right / rows)


def equal_count_gap(confidence: Tensor, correct: Tensor, *, bins: int) -> float:
    """Return the mean gap, weighted by count, over bins of (nearly) equal count after sorting by confidence."""
    order = confidence.argsort(stable=True)
    parts = zip(confidence[order].tensor_split(bins), correct[order].tensor_split(bins))
    return sum(abs(float((right - sure).sum())) for sure, right in parts) / len(confidence)


def _confidence_and_correct(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    probs, labels = _checked(probs, labels)
    return probs.max(-1).values, correct_rows(probs, labels)


def reliability_table(probs: Tensor, labels: Tensor, *, bins: Count = 15) -> ReliabilityTable:
    """Return count, mean confidence and accuracy of each of `bins` equally wide bins of confidence."""
    return binned(*_confidence_and_correct(probs, labels), bins=bins)


def ece(probs: Tensor, labels: Tensor, *, bins: Count = 15, drop_at_most: int = 0) -> float:
    """Return the expected calibration error: the mean gap between accuracy and confidence, over bins weighted by their rows.

    Args:
        probs, labels: as above.
        bins: number of equally wide bins; 15 in most papers, 20 in Ensemble Model Patching.
        drop_at_most: bins with at most this many rows are left out; 5 in Ensemble Model Patching (appendix D.2).

    Reference: Guo et al., "On Calibration of Modern Neural Networks", 2017, arXiv:1706.04599, equation 3. Bins are (a, b] as there;
    torchmetrics uses [a, b) and a separate bin for a confidence of exactly 1.

    >>> ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    0.25
    """
    return reliability_table(probs, labels, bins=bins).ece(drop_at_most=drop_at_most)


def mce(probs: Tensor, labels: Tensor, *, bins: Count = 15, drop_at_most: int = 0) -> float:
    """Return the maximum calibration error: the largest gap of accuracy and confidence in any bin; arguments as in `ece`."""
    return reliability_table(probs, labels, bins=bins).mce(drop_at_most=drop_at_most)


def adaptive_ece(probs: Tensor, labels: Tensor, *, bins: Count = 15) -> float:
    """Return the expected calibration error over bins of equally many rows, sorted by confidence. Arguments as in `ece`.

    Reference: Nguyen & O'Connor, "Posterior calibration and exploratory analysis for natural language processing
    models", 2015, arXiv:1508.05154.
    """
    return equal_count_gap(*_confidence_and_correct(probs, labels), bins=bins)


_MATRIX = 100  # classes of a confusion matrix and of average precisions, at most


def class_report(probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return recall and precision of each class, and the accuracy of always predicting the most frequent one.

    Keys: counts, recall and precision of each class (None for a class without rows, or never predicted), balanced_accuracy (the mean recall
    of classes that have rows), majority (the most frequent class), majority_accuracy, and for up to 100 classes confusion (rows are true
    classes, columns predicted ones) and average_precision.

    >>> found = class_report(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.1, 0.9]]), torch.tensor([0, 0, 1, 1]))
    >>> found["confusion"], found["recall"], found["balanced_accuracy"]
    ([[2, 0], [1, 1]], [1.0, 0.5], 0.75)
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    probs, labels = _checked(probs, labels)
    pair, names = (labels.cpu(), probs.argmax(-1).cpu()), range(probs.shape[1])
    precision, recall, _, counts = precision_recall_fscore_support(*pair, labels=names, zero_division=np.nan)
    commonest = int(counts.argmax())
    found = {
        "counts": counts.tolist(),
        "recall": [float(value) if rows else None for value, rows in zip(recall, counts)],
        "precision": [None if np.isnan(value) else float(value) for value in precision],
        "balanced_accuracy": float(recall[counts > 0].mean()),
        "majority": commonest,
        "majority_accuracy": float(counts[commonest] / counts.sum()),
    }
    if len(names) <= _MATRIX:
        found |= {"confusion": confusion_matrix(*pair, labels=names).tolist()}
        found |= {"average_precision": average_precisions(probs, labels)}
    return found


def average_precisions(probs: Tensor, labels: Tensor) -> list[float | None]:
    """Return the average precision of each class against all others, as in scikit-learn; None for a class without rows.

    Unlike accuracy and AUROC it is not high merely because a class is rare: constant probabilities get the class's share of the rows.
    """
    from sklearn.metrics import average_precision_score

    probs, labels = (values.cpu() for values in _checked(probs, labels))
    return [
        float(average_precision_score(labels == i, own)) if (labels == i).any() else None
        for i, own in enumerate(probs.T)
    ]
