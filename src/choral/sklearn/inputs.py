"""Inputs as scikit-learn's users give them, arrays or data frames, as the columns of a choral table and as numbers.

Columns are read as `choral fit` reads a file, save that numeric and category dtypes are taken as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from choral.base.errors import InputError
from choral.data.splitting import hashes
from choral.tables.columns import Column, learn_column
from choral.tables.reading import Cells, plain_types
from choral.tables.table import Table


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
