"""What becomes of each class: counts, recall, precision, the confusion matrix, and the baseline of naming one class."""

from typing import Any

import torch
from torch import Tensor

_MATRIX = 100  # classes of a confusion matrix, at most


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
