"""Calibration: does a confidence of 0.8 come true 80 times in 100?

Rows are sorted by confidence (the largest probability) into bins of equal width, left open and right closed, as in the
papers; the adaptive error uses bins of equal count. The sums of a bin can be added, so streaming gives equal numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.classification import correct_rows
from choral.metrics.inputs import checked_labels, checked_probs


@dataclass(frozen=True, kw_only=True)
class ReliabilityTable:
    """What a reliability diagram draws: one entry for each bin.

    Args:
        edges: (bins + 1,) borders of the bins from 0 to 1.
        counts: (bins,) rows in each bin.
        confidence: (bins,) mean confidence of the bin's rows, 0 where the bin is empty.
        accuracy: (bins,) share of the bin's rows that are right, 0 where the bin is empty.
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gaps(self) -> Tensor:
        """Return |accuracy - confidence| of each bin."""
        return (self.accuracy - self.confidence).abs()

    @property
    def ece(self) -> float:
        """Return the gaps' mean weighted by count."""
        return float((self.counts * self.gaps).sum() / self.counts.sum().clamp_min(1))

    def mce(self, *, drop_at_most: int = 0) -> float:
        """Return the largest gap among bins with more rows than `drop_at_most`; 0 when there is none."""
        kept = self.gaps[self.counts > drop_at_most]
        return float(kept.max()) if len(kept) else 0.0


def bin_sums(confidence: Tensor, correct: Tensor, *, bins: int) -> Tensor:
    """Return (3, bins): each bin's count, summed confidence and summed correctness. Sums of parts add up."""
    if bins < 1:
        raise InputError(f"bins is {bins}; it must be at least 1.")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    index = (torch.bucketize(confidence, edges) - 1).clamp(0, bins - 1)  # bin r holds (edge r, edge r + 1]
    sums = torch.zeros(3, bins, dtype=torch.float64, device=confidence.device)
    return sums.index_add_(1, index, torch.stack([torch.ones_like(confidence), confidence, correct]))


def table_of_sums(sums: Tensor) -> ReliabilityTable:
    """Return the reliability table of sums made by `bin_sums`."""
    counts, confidence, correct = sums
    edges = torch.linspace(0, 1, sums.shape[1] + 1, dtype=torch.float64, device=sums.device)
    rows = counts.clamp_min(1)
    return ReliabilityTable(edges=edges, counts=counts, confidence=confidence / rows, accuracy=correct / rows)


def equal_count_gap(confidence: Tensor, correct: Tensor, *, bins: int) -> float:
    """Return the mean gap, weighted by count, over bins of (nearly) equal count after sorting by confidence."""
    if bins < 1:
        raise InputError(f"bins is {bins}; it must be at least 1.")
    order = confidence.argsort(stable=True)
    parts = zip(confidence[order].tensor_split(bins), correct[order].tensor_split(bins))
    return sum(abs(float((right - sure).sum())) for sure, right in parts) / len(confidence)


def _confidence_and_correct(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    probs = checked_probs(probs)
    labels = checked_labels(labels, batch=len(probs), classes=probs.shape[-1]).to(probs.device)
    return probs.max(-1).values, correct_rows(probs, labels)


def reliability_table(probs: Tensor, labels: Tensor, *, bins: int = 15) -> ReliabilityTable:
    """Return count, mean confidence and accuracy of each of `bins` equally wide bins of confidence.

    Shapes: probs (batch, class), labels (batch,).
    """
    return table_of_sums(bin_sums(*_confidence_and_correct(probs, labels), bins=bins))


def ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Return the expected calibration error: the gap of accuracy and confidence averaged over rows, bin by bin.

    Args:
        probs: (batch, class).
        labels: (batch,).
        bins: number of equally wide bins; 15 in most papers, 20 in Ensemble Model Patching.

    Reference: Guo et al., "On Calibration of Modern Neural Networks", 2017, arXiv:1706.04599, equation 3.
    Bins are (a, b] as there; torchmetrics uses [a, b) and gives a confidence of exactly 1 a bin of its own, so the two
    differ only when a confidence sits exactly on a border.

    >>> ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    0.25
    """
    return reliability_table(probs, labels, bins=bins).ece


def mce(probs: Tensor, labels: Tensor, *, bins: int = 15, drop_at_most: int = 0) -> float:
    """Return the maximum calibration error: the largest gap of accuracy and confidence in any bin.

    Args:
        probs: (batch, class).
        labels: (batch,).
        bins: number of equally wide bins.
        drop_at_most: bins with at most this many rows are left out; 5 in Ensemble Model Patching (appendix D.2).
    """
    return reliability_table(probs, labels, bins=bins).mce(drop_at_most=drop_at_most)


def adaptive_ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Return the expected calibration error over bins that hold equally many rows.

    Rows are sorted by confidence and cut into `bins` runs whose sizes differ by at most one.

    Shapes: probs (batch, class), labels (batch,).

    Reference: Nguyen & O'Connor, "Posterior calibration and exploratory analysis for natural language processing
    models", 2015, arXiv:1508.05154.
    """
    return equal_count_gap(*_confidence_and_correct(probs, labels), bins=bins)
