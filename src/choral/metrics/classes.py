"""What becomes of each class: counts, recall, precision and their curve, the confusion matrix, and the baseline of naming one class."""

from typing import Any

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import checked_labels, checked_probs

_MATRIX = 100  # classes of a confusion matrix, at most
_CURVES, _POINTS = 20, 60  # classes whose curves are kept, at most, and points of each


def class_report(predicted: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    """Return how well each class is told, and how well naming the commonest one every time would do.

    Keys: counts, recall and precision of each class (None for a class without rows, or never named), balanced_accuracy
    (the mean recall of classes that have rows), majority (the commonest class) and majority_accuracy, and confusion (rows
    are true classes, columns named ones) for up to 100 classes.

    Args:
        predicted: the class named for each point.
        labels: the true ones.
        classes: how many there are.

    >>> found = class_report(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), 2)
    >>> found["confusion"], found["recall"], found["balanced_accuracy"]
    ([[2, 0], [1, 1]], [1.0, 0.5], 0.75)
    """
    if classes < 1 or predicted.shape != labels.shape or not labels.numel():
        raise InputError(
            f"class_report: {classes} classes, predictions {tuple(predicted.shape)} and labels {tuple(labels.shape)}; give 1 class or more, and as "
            "many of both."
        )
    if min(int(labels.min()), int(predicted.min())) < 0 or max(int(labels.max()), int(predicted.max())) >= classes:
        raise InputError(
            f"class_report: labels or predictions are not all from 0 to {classes - 1}; renumber them, or give more classes."
        )
    pairs = labels.flatten() * classes + predicted.flatten()
    matrix = torch.bincount(pairs, minlength=classes * classes).view(classes, classes).double()
    counts, named, right = matrix.sum(1), matrix.sum(0), matrix.diagonal()
    recall = right / counts
    commonest = int(counts.argmax())
    found = {
        "counts": [int(c) for c in counts],
        "recall": _known(recall),
        "precision": _known(right / named),
        "balanced_accuracy": float(recall[counts > 0].mean()),
        "majority": commonest,
        "majority_accuracy": float(counts[commonest] / counts.sum()),
    }
    return found | ({"confusion": matrix.long().tolist()} if classes <= _MATRIX else {})


def _known(values: Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def precision_recall(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return recall, precision and threshold when all points that score at least the threshold are named, for every score there is.

    Points of equal score are named together. Thresholds fall, so recall rises.

    Args:
        scores: higher for points that are rather positive (batch,).
        positive: which points are (batch,), at least one.

    >>> recall, precision, _ = precision_recall(
    ...     torch.tensor([0.9, 0.8, 0.8, 0.1]), torch.tensor([True, False, True, False])
    ... )
    >>> recall.tolist(), [round(p, 2) for p in precision.tolist()]
    ([0.5, 1.0, 1.0], [1.0, 0.67, 0.5])
    """
    scores, positive = scores.flatten().double(), positive.flatten().bool()
    if scores.shape != positive.shape or not bool(positive.any()):
        raise InputError(
            f"there are {len(scores)} scores and {int(positive.sum())} positive of {len(positive)} points; give as many of both, at least "
            "one of them positive."
        )
    ordered, order = scores.sort(descending=True, stable=True)
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool, device=scores.device)])
    found = positive[order].cumsum(0)[last]
    named = torch.arange(1, len(scores) + 1, device=scores.device)[last]
    return found.double() / positive.sum(), found.double() / named, ordered[last]


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Return the mean precision over recall, as a step function: the share of positives for scores that say nothing, 1 for perfect ones.

    Unlike accuracy and AUROC it does not look good only because positives are rare. Arguments as in `precision_recall`.

    >>> round(average_precision(torch.tensor([0.9, 0.8, 0.8, 0.1]), torch.tensor([True, False, True, False])), 4)
    0.8333
    """
    recall, precision, _ = precision_recall(scores, positive)
    return float((recall.diff(prepend=recall.new_zeros(1)) * precision).sum())


def precision_curves(probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return how well each class is told from all others: average_precision of each (None without rows), and points of its curve.

    `curves` holds up to 60 pairs (recall, precision) of each class, none for a class without rows; it is there for up to 20 classes, and
    nothing is for more than 100.

    Shapes: probs (batch, class), labels (batch,).
    """
    probs = checked_probs(probs)
    classes = probs.shape[1]
    if classes > _MATRIX:
        return {}
    labels = checked_labels(labels, batch=len(probs), classes=classes).to(probs.device)
    average: list[float | None] = []
    curves: list[list[list[float]]] = []
    for i in range(classes):
        positive = labels == i
        if not bool(positive.any()):
            average.append(None)
            curves.append([])
            continue
        recall, precision, _ = precision_recall(probs[:, i], positive)
        average.append(float((recall.diff(prepend=recall.new_zeros(1)) * precision).sum()))
        kept = torch.linspace(0, len(recall) - 1, min(len(recall), _POINTS)).round().long()
        curves.append([[float(r), float(p)] for r, p in zip(recall[kept], precision[kept])])
    return {"average_precision": average} | ({"curves": curves} if classes <= _CURVES else {})
