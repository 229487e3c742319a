"""Inputs and weights as scikit-learn's users give them, as the columns of a choral table, as numbers and as repeated rows.

Columns are read as `choral fit` reads a file, save that numeric and category dtypes are taken as they are.

A weight of zero is a row that is not there, a whole number is as many rows where that can be exact: where no rows are held out and few
enough are made, whole weights repeat their rows, and rows stand in an order of their own, so that a weighted and a repeated table are
the same to the last bit. Elsewhere weights scale losses (`choral.fit`): copies of a row must not lie both among the rows that are
trained on and those that say when to stop.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_array, check_consistent_length
from sklearn.utils.validation import _num_samples, validate_data

from choral.base.arguments import is_number
from choral.base.errors import InputError
from choral.data.splitting import hashes
from choral.tables.columns import Column, learn_column
from choral.tables.reading import Cells, plain_types
from choral.tables.table import Table

REPEATED = 100_000  # rows that whole weights may become
_LEAST, _MOST = 1e-30, 1e30  # of the largest weight: sums and squares of those beyond leave double precision


def read(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, name: str = "X") -> Any:
    """Return inputs as scikit-learn accepts them: an array of float64, or a data frame with names that are text.

    Args:
        estimator: remembers the names and number of features if `reset`, or has them checked.
        X: the inputs; missing values are let through, infinite ones are not.
        y: given to `fit`, where None is refused.
        reset: whether this is `fit`.
        name: what the user calls them.
    """
    if not is_frame(X) and hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if is_frame(X):
        with called(name):
            validate_data(estimator, X, y, reset=reset, skip_check_array=True)
            if not X.size:
                check_array(np.empty(X.shape), ensure_all_finite=False, input_name=name)  # says so
        if all(isinstance(t, np.dtype) and t.kind in "fiub" for t in X.dtypes):
            return _numbers(X, name)
        return plain_types(X.set_axis([str(column) for column in X.columns], axis=1), name)
    try:
        found = _numbers(X, name)
    except ValueError:
        found = np.asarray(X) if not hasattr(X, "toarray") else np.empty(0)
        if found.ndim != 2 or found.dtype.kind not in "OU" or not any(isinstance(cell, str) for cell in found.ravel()):
            raise
    with called(name):
        validate_data(estimator, found, y, reset=reset, skip_check_array=True)
    if found.dtype.kind == "f":
        return found
    return plain_types(_framed(found.astype(object), names_of(estimator, found.shape[1])), name)


@contextmanager
def called(name: str) -> Iterator[None]:
    """Let what scikit-learn says of X within the block speak of what the user calls it."""
    try:
        yield
    except ValueError as error:
        if name == "X" or name in str(error):
            raise
        said = str(error)
        raise InputError(f"{name}{said[1:]}" if said.startswith("X ") else f"{name}: {said}") from error


def _numbers(X: Any, name: str) -> np.ndarray:
    with called(name):
        return np.asarray(check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", input_name=name))


def is_frame(X: Any) -> bool:
    """Return whether inputs are a pandas data frame."""
    return hasattr(X, "iloc") and hasattr(X, "dtypes") and np.ndim(X) == 2


def _framed(array: np.ndarray, names: list[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(array, columns=names).infer_objects()


def names_of(estimator: Any, width: int) -> list[str]:
    """Return the names of the features; x0, x1, ... where they have none."""
    known = getattr(estimator, "feature_names_in_", None)
    return [f"x{i}" for i in range(width)] if known is None else [str(name) for name in known]


def learn_columns(X: Any, names: list[str]) -> tuple[Column, ...]:
    """Return how the columns of training inputs, as `read` gives them, become numbers."""
    frame = _framed(X, names) if isinstance(X, np.ndarray) else X
    columns = tuple(learn_column(Cells(frame[name]), typed=True, path="X") for name in frame.columns)
    if not any(column.width for column in columns):
        why = "; ".join(f"{column.name!r} ({column.detail})" for column in columns[:4])
        raise InputError(f"X has no column to learn from, as all are left out: {why}; add at least one.")
    return columns


def encode(table: Table, X: Any, name: str = "X") -> np.ndarray:
    """Return inputs, as `read` gives them, as float32 (row, width); a warning says which cells training did not have."""
    frame = _framed(X, [column.name for column in table.columns]) if isinstance(X, np.ndarray) else X
    return table.inputs(frame, path=name)


def order_of(X: Any, y: np.ndarray) -> np.ndarray:
    """Return row numbers in an order that depends on the rows alone, not on where they stood.

    Args:
        X: inputs as `read` gives them.
        y: targets, (row,) or (row, target).
    """
    if isinstance(X, np.ndarray):
        own = hashes(X)
    else:
        from pandas.util import hash_pandas_object

        nested = [name for name, kind in X.dtypes.items() if kind == np.dtype(object) and Cells(X[name]).is_nested]
        own = hash_pandas_object(X.assign(**{name: X[name].map(repr) for name in nested}), index=False).to_numpy()
    return np.argsort(hashes(y) + 3 * own, kind="stable")


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
