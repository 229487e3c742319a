"""Weights of rows: zero is a row that is not there, a whole number is as many rows where that can be exact.

Where no rows are held out and few enough are made, whole weights repeat their rows, and rows stand in an order of their own: a weighted
and a repeated table are then the same to the last bit. Elsewhere weights scale losses (`choral.fit`): copies of a row must not lie both
among the rows that are trained on and those that say when to stop.
"""

from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_array, check_consistent_length
from sklearn.utils.validation import _num_samples

from choral.base.arguments import is_number
from choral.base.errors import InputError

REPEATED = 100_000  # rows that whole weights may become
_LEAST, _MOST = (
    1e-30,
    1e30,
)  # between which the largest weight lies: sums and squares of those beyond leave double precision


def present(X: Any, y: Any, sample_weight: Any, groups: Any) -> tuple[Any, Any, np.ndarray | None, Any]:
    """Return inputs, targets, weights and groups without the rows whose weight is zero, whatever these hold.

    Nothing but the number of rows is looked at. Weights are None if all are 1.

    Args:
        X, y, sample_weight, groups: as the user gave them.
    """
    if sample_weight is None or y is None:
        return X, y, None, groups
    check_consistent_length(X, y, groups)
    weights = checked_weights(sample_weight, y)
    if weights is None or weights.all():
        return X, y, weights, groups
    kept = np.flatnonzero(weights)
    X, y, groups = (None if part is None else _safe_indexing(_indexable(part), kept) for part in (X, y, groups))
    weights = weights[kept]
    return X, y, None if (weights == 1).all() else weights, groups


def _indexable(part: Any) -> Any:
    """Return something that can be asked for some of its rows."""
    if hasattr(part, "to_pandas"):
        return part.to_pandas()
    return part if hasattr(part, "shape") or isinstance(part, list | tuple) else np.asarray(part)


def checked_weights(sample_weight: Any, y: Any) -> np.ndarray | None:
    """Return weights as float64 (row,), None if all are 1; InputError for others than numbers of 0 or more."""
    if is_number(sample_weight):
        sample_weight = np.full(_num_samples(y), sample_weight)
    found = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if found.ndim != 1:
        raise InputError(f"sample_weight has shape {found.shape}; give one weight for each row, (n_samples,).")
    check_consistent_length(y, found)
    if (found < 0).any():
        raise InputError(f"sample_weight holds {found.min():g}; weights must be 0 or more.")
    if not found.any():
        raise InputError("sample_weight is zero for every row; give at least one row a weight above zero.")
    return None if (found == 1).all() else in_bounds(found)


def in_bounds(weights: np.ndarray) -> np.ndarray:
    """Return weights of the same proportions whose largest is no number that sums and squares cannot take; none above 0 becomes 0.

    >>> in_bounds(np.array([1e308, 1e300, 0.0])).tolist(), in_bounds(np.array([2.0, 1.0])).tolist()
    ([1e+30, 1e+22, 0.0], [2.0, 1.0])
    """
    top = weights.max()
    scaled = weights if _LEAST <= top <= _MOST else weights / top * np.clip(top, _LEAST, _MOST)
    return np.where(weights > 0, np.maximum(scaled, np.finfo(np.float64).tiny), 0.0)


def counted(weights: np.ndarray | None, rows: int) -> int:
    """Return how many rows there are, where a whole weight stands for as many."""
    if weights is None:
        return rows
    return int(weights.sum()) if _is_whole(weights) else int((weights > 0).sum())


def repeats(weights: np.ndarray | None) -> np.ndarray | None:
    """Return how often each row is repeated, if weights can be said so."""
    if weights is None or not _is_whole(weights) or weights.sum() > REPEATED:
        return None
    return weights.astype(np.int64)


def _is_whole(weights: np.ndarray) -> bool:
    return bool((weights == np.round(weights)).all())
