"""Inputs and weights of scikit-learn's estimators, as data frames whose columns become those of a choral table.

Columns are read as by `choral fit`, except that numeric and category dtypes are taken as they are.

A row of weight zero is removed. A row of whole weight is repeated if no rows are held out and the table stays small enough; rows are then
sorted, so that a weighted and a repeated table give bit-identical ensembles. Otherwise weights multiply losses (`choral.fit`), because
copies of a row must not lie among both training and validation rows.
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
    """Return inputs checked by scikit-learn, as a data frame.

    Args:
        estimator: stores the names and number of features if `reset`, else checks them.
        X: the inputs; missing values are accepted, infinite ones are not.
        y: the targets in `fit`, where None raises an error.
        reset: whether this is `fit`.
        name: name of the inputs in messages.
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
    try:
        return np.asarray(check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", input_name=name))
    except ValueError:
        found = np.asarray(X, dtype=object)
        if found.ndim != 2 or not any(type(cell) is str or isinstance(cell, np.str_) for cell in found.ravel()):
            raise
        return found


def learn_columns(frame: Any) -> tuple[Column, ...]:
    """Learn how the columns of training inputs become numbers."""
    columns = tuple(learn_column(Cells(frame[name]), typed=True, path="X") for name in frame.columns)
    if not any(column.width for column in columns):
        why = "; ".join(f"{column.name!r} ({column.detail})" for column in columns[:4])
        raise InputError(f"X has no column to learn from, as all are left out: {why}; add at least one.")
    return columns


def present(X: Any, y: Any, sample_weight: Any, groups: Any) -> tuple[Any, Any, np.ndarray | None, Any]:
    """Return inputs, targets, weights and groups without the rows of weight zero, whose content is not checked.

    Weights are None if all are 1.
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
    """Return the indices of the training rows, repeated by whole weights, and the weights that remain.

    Up to a number of rows, their order depends on their content only, not on the order in which they were given.
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
    """Return the number of rows after repetition by whole weights."""
    return int(weights.sum()) if weights is not None and (weights % 1 == 0).all() else rows
