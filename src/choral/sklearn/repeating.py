"""Weights of rows: zero is a row that is not there, a whole number is as many rows where that can be exact.

Where no rows are held out and few enough are made, whole weights repeat their rows, and rows stand in an order of their own: a weighted
and a repeated table are then the same to the last bit. Elsewhere weights scale losses (`choral.fit`): copies of a row must not lie both
among the rows that are trained on and those that say when to stop.
"""

from typing import Any

import numpy as np
from sklearn.utils import check_array, check_consistent_length

from choral.base.border import is_number
from choral.base.errors import InputError

REPEATED = 100_000  # rows that whole weights may become


def checked_weights(sample_weight: Any, y: np.ndarray) -> np.ndarray | None:
    """Return weights as float64 (row,), None if all are 1; InputError for others than numbers of 0 or more."""
    if sample_weight is None:
        return None
    if is_number(sample_weight):
        sample_weight = np.full(len(y), sample_weight)
    found = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if found.ndim != 1:
        raise InputError(f"sample_weight has shape {found.shape}; give one weight for each row, (n_samples,).")
    check_consistent_length(y, found)
    if (found < 0).any():
        raise InputError(f"sample_weight holds {found.min():g}; weights must be 0 or more.")
    if not found.any():
        raise InputError("sample_weight is zero for every row; give at least one row a weight above zero.")
    return None if (found == 1).all() else found


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
