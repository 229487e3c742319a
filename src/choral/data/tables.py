"""Tables (CSV, Parquet) as training data: the columns' rules are learned once and kept for prediction."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from choral.base.errors import InputError, RunError, did_you_mean
from choral.base.values import Value, from_dict
from choral.data.columns import CategoryColumn, Column, NumberColumn, Scale, check_names, is_number

_FEW = 20  # integer targets with at most this many different values are read as classes
_MOST = 100_000  # columns
_WIDEST = 10_000_000  # numbers one row becomes

Kind = Literal["classification", "regression"]


@dataclass(frozen=True, kw_only=True)
class Table(Value):
    """How rows of a table become inputs and targets, and predictions become words and units again.

    Attributes:
        columns: the input columns, in the order of the inputs; none for arrays of which only the target is scaled.
        target: name of the column to predict.
        task: what is predicted.
        reason: why it is read as that task, in words.
        classes: names of the classes, in the order of their numbers; empty for regression.
        scale: of the targets; None for classes and for targets in their own units.
    """

    columns: tuple[Column, ...] = ()
    target: str = "y"
    task: Kind = "regression"
    reason: str = ""
    classes: tuple[str, ...] = ()
    scale: Scale | None = None

    def __post_init__(self) -> None:
        if self.classes:
            check_names(self.classes, "the target")
        elif self.task == "classification":
            raise InputError("a table of a classification has no classes; name at least one.")
        names = [c.name for c in self.columns]
        if len(names) > _MOST or len(set(names)) < len(names) or self.width > _WIDEST:
            raise InputError(
                f"a table has {len(names):,} columns, {len(set(names)):,} of them different, that become {self.width:,} "
                f"numbers; at most {_MOST:,} different ones and {_WIDEST:,} numbers are read."
            )

    @property
    def width(self) -> int:
        """Numbers one row becomes."""
        return sum(c.width for c in self.columns)

    def names_of(self, outputs: int) -> tuple[str, ...] | None:
        """Return the names of so many classes, None if the table names none; RunError if it names others."""
        if self.classes and len(self.classes) != outputs:
            raise RunError(
                f"the table names {len(self.classes)} classes but the network gives {outputs}; fit it again."
            )
        return self.classes or None

    def inputs(self, frame: Any, *, path: str = "the table") -> np.ndarray:
        """Return the inputs of a table's rows, float32 (row, width).

        Args:
            frame: a pandas data frame with the columns of training, in any order, and any others.
            path: what to call it in an error.
        """
        if not self.columns:
            raise InputError(f"{path} is a table, but this ensemble was fitted on arrays; give an .npz file with x.")
        for column in self.columns:
            check_column(frame, column.name, path)
        check_missing(frame[[c.name for c in self.columns]], path)
        parts = [column.encode(frame[column.name], path=path) for column in self.columns]
        return np.concatenate(parts, 1).astype(np.float32)

    def targets(self, frame: Any, *, scaled: bool, path: str = "the table") -> np.ndarray:
        """Return targets: class numbers (int64), or real numbers (float32).

        Args:
            frame: a pandas data frame with the target column.
            scaled: whether real numbers are wanted as training sees them, instead of in their own units.
            path: what to call it in an error.
        """
        check_column(frame, self.target, path)
        cells = frame[self.target]
        if self.task == "regression":
            values = cells.to_numpy(np.float64)
            return np.asarray(self.scale.apply(values) if scaled and self.scale else values).astype(np.float32)
        number = {name: i for i, name in enumerate(self.classes)}
        text = [str(v) for v in cells]
        odd = sorted(set(text) - set(number))
        if odd:
            raise InputError(
                f"{path}: the target '{self.target}' holds {odd[0]!r}, a class the training data did not have."
            )
        return np.array([number[v] for v in text], dtype=np.int64)


def table_from(content: dict[str, Any] | None, where: str) -> Table | None:
    """Return the table that a file holds as plain content; RunError for anything else."""
    if content is None:
        return None
    if "kind" not in content:
        raise RunError(
            f"{where} holds a table in the form of an older choral, which this one does not read; fit it again."
        )
    try:
        table = from_dict(content)
    except InputError as error:
        raise RunError(f"{where} holds a table that cannot be read: {error}") from error
    if not isinstance(table, Table):
        raise RunError(f"{where} holds a {type(table).__name__} where a Table belongs; copy or make it again.")
    return table


def read_table(path: Path) -> Any:
    """Return a CSV or Parquet file as a pandas data frame."""
    try:
        import pandas as pd
    except ImportError as error:
        raise InputError(f"reading {path} needs pandas; install it with: pip install 'choral[tables]'.") from error
    if not path.exists():
        raise InputError(f"{path} does not exist; give the path of a .csv or .parquet file.")
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} cannot be read as a table: {reason}.") from error
    if not len(frame):
        raise InputError(f"{path} has no rows; give at least one row below the header.")
    return frame


def check_column(frame: Any, name: str, path: str) -> None:
    """Raise InputError if a data frame lacks a column."""
    if name not in frame.columns:
        known = [str(c) for c in frame.columns]
        raise InputError(f"{path} has no column '{name}'; it has {', '.join(known)}.{did_you_mean(name, known)}")


def check_missing(frame: Any, path: str) -> None:
    """Raise InputError if a data frame has empty cells."""
    missing = {c: np.flatnonzero(frame[c].isna().to_numpy()) for c in frame.columns}
    found = [
        f"'{c}' (rows {', '.join(str(r + 2) for r in rows[:5])}{', ...' if len(rows) > 5 else ''})"
        for c, rows in missing.items()
        if len(rows)
    ]
    if found:
        raise InputError(
            f"{path} has missing values in {'; '.join(found)}, lines counted as in the file with its header; "
            "fill or drop them first."
        )


def guess_task(column: Any) -> tuple[Kind, str]:
    """Return 'classification' or 'regression' for a target column, and the reason in words."""
    values = column.nunique()
    if not is_number(column):
        return "classification", f"its {values} values are not numbers"
    if column.dtype.kind in "iu" and values <= _FEW:
        return "classification", f"it holds only {values} different whole numbers"
    return "regression", f"it holds {values} different numbers"


def learn_table(
    frame: Any, target: str, *, task: Kind | None = None, rows: np.ndarray | None = None, path: str = "the table"
) -> Table:
    """Return how a table's columns become inputs and targets.

    Args:
        frame: a pandas data frame. All its rows say which categories and classes there are.
        target: the column to predict.
        task: what to predict; guessed from the target if None.
        rows: the training rows, from which scales are learned; all if None.
        path: what to call the table in an error.
    """
    check_column(frame, target, path)
    check_missing(frame, path)
    trained = frame if rows is None else frame.iloc[rows]
    guessed, reason = guess_task(frame[target])
    decided: Kind = task or guessed
    columns = tuple(
        NumberColumn.learn(trained[n], path=path) if is_number(frame[n]) else CategoryColumn.learn(frame[n])
        for n in frame.columns
        if n != target
    )
    if not columns:
        raise InputError(f"{path} has no column besides the target '{target}'; add at least one input column.")
    classes = _classes(frame[target], path) if decided == "classification" else ()
    return Table(
        columns=columns,
        target=target,
        task=decided,
        reason=reason if task is None else "as asked",
        classes=classes,
        scale=None if classes else _target_scale(trained[target], path),
    )


def _classes(cells: Any, path: str) -> tuple[str, ...]:
    ordered = sorted(cells.unique()) if is_number(cells) else sorted({str(v) for v in cells})
    if len(ordered) < 2:
        raise InputError(
            f"{path}: the target '{cells.name}' has a single value, {ordered[0]}; there is nothing to learn."
        )
    return tuple(str(v) for v in ordered)


def _target_scale(cells: Any, path: str) -> Scale:
    if not is_number(cells):
        raise InputError(
            f"{path}: the target '{cells.name}' holds text, so it cannot be a regression; use classification."
        )
    return Scale.of(cells.to_numpy(np.float64))
