"""What conformal prediction shares: the finite-sample quantile, and reports of coverage."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import checked_labels
from choral.metrics.regression import interval_coverage, interval_width


def conformal_threshold(scores: Tensor, level: float) -> float | None:
    """Return the ceil((n + 1) level)-th smallest score, or None when n scores are too few to promise that level.

    A new exchangeable score is at most this with probability at least `level`, and at most level + 1 / (n + 1) when no
    scores are equal.

    Args:
        scores: (batch,) of held-out rows.
        level: probability to cover, between 0 and 1.

    >>> conformal_threshold(torch.arange(1.0, 10.0), 0.8), conformal_threshold(torch.arange(1.0, 10.0), 0.95)
    (8.0, None)
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"level is {level}; it must lie strictly between 0 and 1.")
    if scores.dim() != 1 or not len(scores) or not bool(torch.isfinite(scores).all()):
        raise InputError(
            f"scores has the shape {tuple(scores.shape)}, or holds NaN or infinite numbers; give (batch,) of at least one, all finite."
        )
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return None if rank > len(scores) else float(scores.double().sort().values[rank - 1])


def evaluate_sets(sets: Tensor, labels: Tensor) -> dict[str, float]:
    """Return what prediction sets deliver: coverage, mean_size, and the shares of empty and single sets.

    Shapes: sets (batch, class) of booleans, labels (batch,).

    >>> evaluate_sets(torch.tensor([[True, False], [True, True]]), torch.tensor([1, 0]))
    {'coverage': 0.5, 'mean_size': 1.5, 'empty': 0.0, 'single': 0.5}
    """
    if sets.ndim != 2 or sets.dtype != torch.bool:
        raise InputError(
            f"sets has shape {tuple(sets.shape)} and dtype {sets.dtype}; it must be booleans (batch, class)."
        )
    labels = checked_labels(labels, batch=len(sets), classes=sets.shape[1]).to(sets.device)
    sizes = sets.sum(-1)
    return {
        "coverage": float(sets.gather(1, labels.unsqueeze(1)).double().mean()),
        "mean_size": float(sizes.double().mean()),
        "empty": float((sizes == 0).double().mean()),
        "single": float((sizes == 1).double().mean()),
    }


def evaluate_intervals(lower: Tensor, upper: Tensor, targets: Tensor) -> dict[str, float]:
    """Return what intervals deliver: coverage and mean_width. Shapes: all (batch, ...)."""
    return {"coverage": interval_coverage(lower, upper, targets), "mean_width": interval_width(lower, upper)}


def check_rule(level: float, thresholds: Iterable[float | None]) -> None:
    """Raise InputError unless a conformal rule promises a level between 0 and 1 by thresholds that are numbers."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level is {level}; it must lie strictly between 0 and 1.")
    odd = [t for t in thresholds if t is not None and not math.isfinite(t)]
    if odd:
        raise InputError(f"a conformal rule has the threshold {odd[0]}; thresholds and penalties are finite numbers.")
