"""Inputs as scikit-learn's users give them, arrays or data frames, as the columns of a choral table and as numbers.

Arrays, and data frames of nothing but numbers, are read all columns at once; nothing of them is left out. Other frames are
read column by column, as `choral fit` reads a file (`choral.data.recognition`), save that a column of the type category is always
one.
"""

from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from choral.base.errors import InputError
from choral.data.cells import LARGEST, Cells
from choral.data.columns import Column, LeftOutColumn, NumberColumn, Scale
from choral.data.recognition import ladder, learn_column
from choral.data.tables import Table
from choral.data.words import CategoryColumn, OrderedColumn

_PLAIN = "fiub"  # kinds of numpy types that are numbers as they are


def read(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool) -> Any:
    """Return inputs as scikit-learn accepts them: an array of float64, or a data frame with names that are text.

    Args:
        estimator: remembers the names and number of features if `reset`, or has them checked.
        X: the inputs; missing values are let through, infinite ones are not.
        y: given to `fit`, where None is refused.
        reset: whether this is `fit`.
    """
    if not is_frame(X) and hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if is_frame(X):
        validate_data(estimator, X, y, reset=reset, skip_check_array=True)
        if all(isinstance(t, np.dtype) and t.kind in _PLAIN for t in X.dtypes) and X.shape[1]:
            return _numbers(X)
        if not len(X) or not X.shape[1]:
            check_array(np.empty(X.shape), ensure_all_finite=False, input_name="X")  # says so
        return _in_days(X.set_axis([str(name) for name in X.columns], axis=1))
    try:
        found = _numbers(X)
    except ValueError:
        if not _holds_text(X):
            raise
        validate_data(estimator, X, y, reset=reset, skip_check_array=True)
        return _framed(np.asarray(X, object), names_of(estimator, np.shape(X)[1]))
    validate_data(estimator, found, y, reset=reset, skip_check_array=True)
    return found


def _in_days(X: Any) -> Any:
    """Return a data frame with spans of time as numbers of days."""
    spans = [name for name, kind in X.dtypes.items() if kind.kind == "m"]
    return X.assign(**{name: X[name].dt.total_seconds() / 86_400 for name in spans}) if spans else X


def _numbers(X: Any) -> np.ndarray:
    return np.asarray(check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", input_name="X"))


def is_frame(X: Any) -> bool:
    """Return whether inputs are a pandas data frame."""
    return hasattr(X, "iloc") and hasattr(X, "dtypes") and np.ndim(X) == 2


def _holds_text(X: Any) -> bool:
    """Return whether an array is two-dimensional and cannot be numbers since some cell is a word."""
    found = np.asarray(X) if not hasattr(X, "toarray") else np.empty(0)
    if found.ndim != 2 or not found.size or found.dtype.kind not in "OU":
        return False
    return found.dtype.kind == "U" or any(isinstance(cell, str) for cell in found.ravel())


def _framed(array: np.ndarray, names: list[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(array, columns=names)


def grouped(groups: np.ndarray) -> Cells:
    """Return which rows belong together, as a column."""
    import pandas as pd

    return Cells(pd.Series(groups, name="groups"))


def names_of(estimator: Any, width: int) -> list[str]:
    """Return the names of the features; x0, x1, ... where they have none."""
    known = getattr(estimator, "feature_names_in_", None)
    return [f"x{i}" for i in range(width)] if known is None else [str(name) for name in known]


def learn_columns(X: Any, names: list[str]) -> tuple[Column, ...]:
    """Return how the columns of training inputs, as `read` gives them, become numbers."""
    if isinstance(X, np.ndarray):
        columns = _learn_numbers(X, names)
    else:
        columns = tuple(_learn(Cells(X[name])) for name in X.columns)
    if not any(column.width for column in columns):
        why = "; ".join(f"{column.name!r} ({column.detail})" for column in columns[:4])
        raise InputError(f"X has no column to learn from, as all are left out: {why}; add at least one.")
    return columns


def _learn(cells: Cells) -> Column:
    if cells.is_category and cells.held:
        steps = ladder(cells) if cells.series.cat.ordered else ()
        if len(steps) > 1:
            return OrderedColumn(name=cells.name, values=steps, missing=bool(cells.absent.any()))
        return CategoryColumn.learn(cells)
    if cells.is_number and not cells.absent.all():
        return _learn_numbers(cells.numbers()[:, None], [cells.name])[0]
    return learn_column(cells, path="X")


def _learn_numbers(values: np.ndarray, names: list[str]) -> tuple[Column, ...]:
    """Return columns of numbers, standardised; a column without a single one is left out."""
    if (np.abs(values) > LARGEST).any():
        raise InputError(f"X holds {np.nanmax(np.abs(values)):g}; numbers must be at most {LARGEST:g} in size.")
    absent = np.isnan(values)
    columns: list[Column] = []
    for i, name in enumerate(names):
        held = values[~absent[:, i], i]
        if not len(held):
            columns.append(LeftOutColumn(name=name, reason="every cell is without a value"))
            continue
        gaps = len(held) < len(values)
        columns.append(NumberColumn(name=name, missing=gaps, scale=Scale.of(held), fill=float(np.median(held))))
    return tuple(columns)


def encode(table: Table, X: Any) -> np.ndarray:
    """Return inputs, as `read` gives them, as float32 (row, width)."""
    if not isinstance(X, np.ndarray):
        return table.inputs(X, path="X")
    if not all(isinstance(column, NumberColumn | LeftOutColumn) for column in table.columns):
        return table.inputs(_framed(X, [column.name for column in table.columns]), path="X")
    return _encode_numbers(table, X)


def _encode_numbers(table: Table, values: np.ndarray) -> np.ndarray:
    if (np.abs(values) > LARGEST).any():
        raise InputError(f"X holds {np.nanmax(np.abs(values)):g}; numbers must be at most {LARGEST:g} in size.")
    found = np.zeros((len(values), table.width), np.float32)
    place = 0
    for i, column in enumerate(table.columns):
        if not isinstance(column, NumberColumn):
            continue
        absent = np.isnan(values[:, i])
        found[:, place] = column.scale.apply(np.where(absent, column.fill, values[:, i]))
        if column.missing:
            found[:, place + 1] = absent
        place += column.width
    return found


def order_of(X: Any, y: np.ndarray) -> np.ndarray:
    """Return row numbers in an order that depends on the rows alone, not on where they stood.

    Args:
        X: inputs as `read` gives them.
        y: targets, (row,) or (row, target).
    """
    key = _hashed(y.reshape(len(y), -1))
    if isinstance(X, np.ndarray):
        key += 3 * _hashed(X)
    else:
        from pandas.util import hash_pandas_object

        try:
            key += 3 * hash_pandas_object(X, index=False).to_numpy()
        except TypeError:  # cells hold lists or structures
            return np.arange(len(y))
    return np.argsort(key, kind="stable")


def _hashed(values: np.ndarray) -> np.ndarray:
    """Return a number for each row that depends on all its bits; equal rows have equal ones."""
    key = np.zeros(len(values), np.uint64)
    for column in np.asarray(values, np.float64).T + 0.0:  # -0.0 is 0.0
        bits = column.copy().view(np.uint64)
        key = (key ^ bits ^ (bits >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(32)
    return key
