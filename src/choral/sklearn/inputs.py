"""Inputs as scikit-learn's users give them, arrays or data frames, as the columns of a choral table and as numbers.

Arrays, and data frames of nothing but numbers, are read all columns at once; nothing of them is left out. Other frames are
read column by column, as `choral fit` reads a file (`choral.data.recognition`), save that a column of the type category is always
one.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from choral.base.errors import InputError
from choral.base.text import short
from choral.data.cells import LARGEST, Cells
from choral.data.columns import Column, LeftOutColumn, NumberColumn, Scale, say
from choral.data.recognition import ladder, learn_column
from choral.data.sheets import with_plain_types
from choral.data.tables import Table
from choral.data.words import CategoryColumn, OrderedColumn

_PLAIN = "fiub"  # kinds of numpy types that are numbers as they are


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
        _validate(estimator, X, y, reset, name)
        if all(isinstance(t, np.dtype) and t.kind in _PLAIN for t in X.dtypes) and X.shape[1]:
            return _numbers(X, name)
        if not len(X) or not X.shape[1]:
            with called(name):
                check_array(np.empty(X.shape), ensure_all_finite=False, input_name=name)  # says so
        return _typed(X.set_axis([str(column) for column in X.columns], axis=1), name)
    try:
        found = _numbers(X, name)
    except ValueError:
        if not _holds_text(X):
            raise
        _validate(estimator, X, y, reset, name)
        cells, names = np.asarray(X, object), names_of(estimator, np.shape(X)[1])
        for i, column in enumerate(names):
            _check_cells(cells[:, i], column, name)
        return _framed(cells, names)
    _validate(estimator, found, y, reset, name)
    return found


def _validate(estimator: Any, X: Any, y: Any, reset: bool, name: str) -> None:
    with called(name):
        validate_data(estimator, X, y, reset=reset, skip_check_array=True)


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


def _typed(X: Any, name: str) -> Any:
    """Return a data frame of types that columns are read from; InputError for cells that no column takes."""
    for column in (c for c, kind in X.dtypes.items() if kind == np.dtype(object)):
        _check_cells(X[column], column, name)
    return _in_days(with_plain_types(X, name))


def _check_cells(cells: Iterable[Any], column: str, name: str) -> None:
    """Raise InputError for complex numbers, and for text with half a character, which nothing can save or show."""
    if any(isinstance(cell, complex) for cell in cells):
        raise InputError(
            f"{name}: column {short(column)!r} holds complex numbers; give their real and imaginary parts as two columns."
        )
    try:
        "".join(cell for cell in cells if isinstance(cell, str)).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("unicode_escape").decode()
        raise InputError(
            f"{name}: column {short(column)!r} holds text with half a character ({half}, a lone surrogate), which no file can hold; replace it, "
            "as text.encode('utf-8', 'replace').decode() does."
        ) from error


def _in_days(X: Any) -> Any:
    """Return a data frame with spans of time as numbers of days."""
    spans = [name for name, kind in X.dtypes.items() if kind.kind == "m"]
    return X.assign(**{name: X[name].dt.total_seconds() / 86_400 for name in spans}) if spans else X


def _numbers(X: Any, name: str) -> np.ndarray:
    with called(name):
        return np.asarray(check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", input_name=name))


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
    if cells.is_nested:
        say(f"X: column {short(cells.name)!r} has cells that hold lists, tuples or other structures, and is left out.")
    if cells.is_category and cells.held:
        steps = ladder(cells) if cells.series.cat.ordered else ()
        if len(steps) > 1:
            return OrderedColumn(name=cells.name, values=steps, missing=bool(cells.absent.any()))
        return CategoryColumn.learn(cells)
    if cells.is_number and not cells.absent.all():
        return _learn_numbers(cells.numbers()[:, None], [cells.name])[0]
    return learn_column(cells, path="X")


def _learn_numbers(values: np.ndarray, names: list[str]) -> tuple[Column, ...]:
    """Return columns of numbers, standardized; a column without a single one is left out."""
    _check_size(values, "X")
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


def _check_size(values: np.ndarray, name: str) -> None:
    if (np.abs(values) > LARGEST).any():
        raise InputError(f"{name} holds {np.nanmax(np.abs(values)):g}; numbers must be at most {LARGEST:g} in size.")


def encode(table: Table, X: Any, name: str = "X") -> np.ndarray:
    """Return inputs, as `read` gives them, as float32 (row, width); a warning says which cells training did not have."""
    if not isinstance(X, np.ndarray):
        return table.inputs(X, path=name)
    if not all(isinstance(column, NumberColumn | LeftOutColumn) for column in table.columns):
        return table.inputs(_framed(X, [column.name for column in table.columns]), path=name)
    _check_size(X, name)
    _say_gaps(table, X, name)
    return _encode_numbers(table, X)


def _say_gaps(table: Table, values: np.ndarray, name: str) -> None:
    """Warn, once for all columns, of cells without a value where training had one in every row."""
    odd = np.isnan(values) & [isinstance(column, NumberColumn) and not column.missing for column in table.columns]
    if odd.any():
        columns, rows = ([str(i) for i in np.flatnonzero(odd.any(axis))] for axis in (0, 1))
        names = ", ".join(repr(short(table.columns[int(i)].name)) for i in columns[:4])
        say(
            f"{name}: column{'s' * (len(columns) > 1)} {names}{', ...' * (len(columns) > 4)} {'have' if len(columns) > 1 else 'has'} "
            f"{odd.sum():,} cell(s) without a value (row{'s' * (len(rows) > 1)} {', '.join(rows[:4])}{', ...' * (len(rows) > 4)}), which "
            "training did not have; they are read as the median."
        )


def _encode_numbers(table: Table, values: np.ndarray) -> np.ndarray:
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
        except (TypeError, ValueError):  # cells hold lists or structures
            texts = {name: X[name].map(repr) for name, kind in X.dtypes.items() if kind == np.dtype(object)}
            key += 3 * hash_pandas_object(X.assign(**texts), index=False).to_numpy()
    return np.argsort(key, kind="stable")


def _hashed(values: np.ndarray) -> np.ndarray:
    """Return a number for each row that depends on all its bits; equal rows have equal ones."""
    key = np.zeros(len(values), np.uint64)
    for column in np.asarray(values, np.float64).T + 0.0:  # -0.0 is 0.0
        bits = column.copy().view(np.uint64)
        key = (key ^ bits ^ (bits >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(32)
    return key
