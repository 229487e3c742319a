"""Inputs and weights as scikit-learn's users give them, as data frames whose columns become those of a choral table.

Columns are read as `choral fit` reads a file, save that numeric and category dtypes are taken as they are.

A weight of zero is a row that is not there, a whole number is as many rows where that can be exact: where no rows are held out and few
enough are made, whole weights repeat their rows, and rows stand in an order of their own, so that a weighted and a repeated table are
the same to the last bit. Elsewhere weights scale losses (`choral.fit`): copies of a row must not lie both among the rows that are
trained on and those that say when to stop.
"""

from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_array, check_consistent_length
from sklearn.utils.validation import _check_sample_weight, validate_data

from choral.base.errors import InputError
from choral.data.splitting import hashes
from choral.tables.columns import Column, learn_column
from choral.tables.reading import Cells, is_frame, named_once

REPEATED = 100_000  # rows that whole weights may become


def read(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, name: str = "X") -> Any:
    """Return inputs as scikit-learn accepts them, as a data frame.

    Args:
        estimator: remembers the names and number of features if `reset`, or has them checked.
        X: the inputs; missing values are let through, infinite ones are not.
        y: given to `fit`, where None is refused.
        reset: whether this is `fit`.
        name: what the user calls them.
    """
    import pandas as pd

    X = X.to_pandas() if hasattr(X, "to_pandas") else X
    X = X if is_frame(X) else _array(X, name)
    validate_data(estimator, X, y, reset=reset, skip_check_array=True)
    if not is_frame(X):
        names = getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(X.shape[1])])
        X = pd.DataFrame(X, columns=names).infer_objects()
    elif not X.size:
        check_array(np.empty(X.shape), input_name=name)  # says so
    return named_once(X.set_axis([str(column) for column in X.columns], axis=1), name)


def _array(X: Any, name: str) -> np.ndarray:
    """Return an array of float64, or of objects where some are text."""
    try:
        return np.asarray(check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", input_name=name))
    except ValueError:
        found = np.asarray(X, dtype=object)
        if found.ndim != 2 or not any(type(cell) is str or isinstance(cell, np.str_) for cell in found.ravel()):
            raise
        return found


def learn_columns(frame: Any) -> tuple[Column, ...]:
    """Return how the columns of training inputs become numbers."""
    columns = tuple(learn_column(Cells(frame[name]), typed=True, path="X") for name in frame.columns)
    if not any(column.width for column in columns):
        why = "; ".join(f"{column.name!r} ({column.detail})" for column in columns[:4])
        raise InputError(f"X has no column to learn from, as all are left out: {why}; add at least one.")
    return columns


def present(X: Any, y: Any, sample_weight: Any, groups: Any) -> tuple[Any, Any, np.ndarray | None, Any]:
    """Return inputs, targets, weights and groups without the rows whose weight is zero, whatever these hold.

    Nothing but the number of rows is looked at. Weights are None if all are 1.
    """
    if sample_weight is None or y is None:
        return X, y, None, groups
    check_consistent_length(X, y, groups)
    weights = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
    kept = np.flatnonzero(weights)
    if len(kept) < len(weights):
        X, y, groups = (
            None if part is None else _safe_indexing(part if hasattr(part, "shape") else list(part), kept)
            for part in (X, y, groups)
        )
    weights = weights[kept]
    return X, y, None if (weights == 1).all() else weights, groups


def chosen_rows(frame: Any, y: np.ndarray, weights: np.ndarray | None, *, repeat: bool) -> tuple[np.ndarray, Any]:
    """Return the numbers of the rows to train on, as often as they count, and their weights if that does not say it all.

    Up to a number of rows, they stand in an order that depends on the rows alone, so that it does not matter in which they are given.
    """
    from pandas.util import hash_pandas_object

    chosen = np.arange(len(y))
    if repeat and weights is not None and (weights % 1 == 0).all() and weights.sum() <= REPEATED:
        chosen, weights = np.repeat(chosen, weights.astype(np.int64)), None
    if len(chosen) <= REPEATED:
        nested = [name for name in frame.columns if Cells(frame[name]).is_nested]
        own = hash_pandas_object(frame.assign(**{name: frame[name].map(repr) for name in nested}), index=False)
        numbers = np.unique(y[chosen], return_inverse=True)[1].reshape(len(chosen), -1)
        chosen = chosen[np.argsort(hashes(numbers) + 3 * own.to_numpy()[chosen], kind="stable")]
    return chosen, None if weights is None else weights[chosen]


def counted(weights: np.ndarray | None, rows: int) -> int:
    """Return how many rows there are, where a whole weight stands for as many."""
    return int(weights.sum()) if weights is not None and (weights % 1 == 0).all() else rows
