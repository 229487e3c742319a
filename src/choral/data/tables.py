"""Tables as training data: the rules of their columns are learned once and kept for prediction."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from choral.base.errors import InputError, RunError, did_you_mean
from choral.base.text import short
from choral.base.values import Value, from_dict
from choral.data.cells import Cells
from choral.data.columns import Column, LeftOutColumn, check_names, say
from choral.data.numerals import number
from choral.data.recognition import learn_column
from choral.data.splitting import Seen
from choral.data.targets import (
    WHOLE,
    Kind,
    check_numbers,
    check_target,
    classes_of,
    guess_task,
    in_order,
    labels,
    target_numbers,
    unit_in_words,
)

_MOST = 100_000  # columns
_WIDEST = 10_000_000  # numbers one row becomes


@dataclass(frozen=True, kw_only=True)
class Table(Value):
    """How rows of a table become inputs and targets, and predictions become words and units again.

    Attributes:
        columns: the columns besides the target, in the order of the inputs; none for arrays, of which only the rows trained on
            are known.
        target: name of the column to predict.
        task: what is predicted.
        reason: why it is read as that task, in words.
        classes: names of the classes, in the order of their numbers; empty for regression.
        comma: whether targets are written with a decimal comma.
        unit: what stands behind the numbers of the target, kg or km/h.
        seen: the rows it was trained on.
        origin: how the data was asked for, where that decides more than which rows are seen: built-in problems are
            scaled by the rows that are not held out.
    """

    columns: tuple[Column, ...] = ()
    target: str = "y"
    task: Kind = "regression"
    reason: str = ""
    classes: tuple[str, ...] = ()
    comma: bool = False
    unit: str = ""
    seen: Seen | None = None
    origin: str = ""

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
    def left_out(self) -> tuple[str, ...]:
        """Columns that are no inputs although nobody asked for that."""
        return tuple(c.name for c in self.columns if isinstance(c, LeftOutColumn) and not c.reason.endswith("as asked"))

    @property
    def width(self) -> int:
        """Numbers one row becomes."""
        return sum(c.width for c in self.columns)

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that are shown beside predictions, if a table has them."""
        return tuple(c.name for c in self.columns if isinstance(c, LeftOutColumn) and c.beside)

    def describe(self) -> list[dict[str, Any]]:
        """Return how each column is read, as rows of plain types."""
        return [{"column": c.name, "read_as": c.read_as, "inputs": c.width, "detail": c.detail} for c in self.columns]

    def names_of(self, outputs: int) -> tuple[str, ...] | None:
        """Return the names of so many classes, None if the table names none; RunError if it names others."""
        if self.classes and len(self.classes) != outputs:
            raise RunError(
                f"the table names {len(self.classes)} classes but the network gives {outputs}; fit it again."
            )
        return self.classes or None

    def inputs(self, frame: Any, *, path: str = "the table") -> np.ndarray:
        """Return the inputs of a table's rows, float32 (row, width).

        Cells without a value, and values that training did not have, get codes of their own, with a warning where
        training had no such cell.

        Args:
            frame: a pandas data frame with the columns of training, in any order, and any others.
            path: what to call it in an error.
        """
        if not self.columns:
            raise InputError(f"{path} is a table, but this ensemble was fitted on arrays; give an .npz file with x.")
        used = [c for c in self.columns if c.width]
        for column in used:
            check_column(frame, column.name, path)
        if not len(frame):
            raise InputError(f"{path} has no rows; give at least one row below the header.")
        parts = [column.encode(Cells(frame[column.name]), path=path) for column in used]
        return np.concatenate(parts, 1).astype(np.float32)

    def targets(self, frame: Any, *, path: str = "the table") -> np.ndarray:
        """Return targets: class numbers (int64), or real numbers (float64) in their own units.

        Args:
            frame: a pandas data frame with the target column, every cell of which has a value (`with_target`).
            path: what to call it in an error.
        """
        check_column(frame, self.target, path)
        return self._targets(Cells(frame[self.target]), path)

    def targets_of(self, values: Any) -> np.ndarray:
        """Return targets as `targets` does, of values as the target column holds them: class names, numbers as text."""
        import pandas as pd

        return self._targets(Cells(pd.Series(np.asarray(values), name=self.target)), "y")

    def _targets(self, cells: Cells, path: str) -> np.ndarray:
        if self.task == "regression":
            return np.asarray(target_numbers(cells, self.comma, self.unit, path))
        place = {name: i for i, name in enumerate(self.classes)}
        words = labels(cells)
        odd = sorted(set(words) - set(place))
        if odd:
            raise InputError(
                f"{path}: the target '{self.target}' holds {short(odd[0])!r}, a class the training data did not have; it "
                f"had {', '.join(short(c, 20) for c in self.classes[:10])}{', ...' * (len(self.classes) > 10)}.{_advice(odd, self.classes)}"
            )
        return np.array([place[w] for w in words], dtype=np.int64)

    def with_seen(self, x: np.ndarray, y: np.ndarray) -> "Table":
        """Return the table with its training rows remembered."""
        return replace(self, seen=Seen.of(x, y))


def _advice(odd: Sequence[str], classes: Sequence[str]) -> str:
    """Return what to do if classes are numbers that go on."""
    if not all(map(WHOLE.fullmatch, (*odd, *classes))):
        return ""
    return " If it is a number, fit again with --task regression, or with --likelihood poisson for counts."


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


def check_column(frame: Any, name: str, path: str) -> None:
    """Raise InputError if a data frame lacks a column."""
    if not isinstance(name, str) or name not in frame.columns:
        known = [str(c) for c in frame.columns]
        shown = ", ".join(short(c) for c in known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
        raise InputError(f"{path} has no column '{name}'; it has {shown}.{did_you_mean(name, known)}")


def with_target(frame: Any, target: str, path: str) -> Any:
    """Return the rows that have a target; a warning says how many have none."""
    check_column(frame, target, path)
    absent = Cells(frame[target]).empty
    if absent.all():
        raise InputError(f"{path}: no row has a value of the target '{target}'; give rows that do.")
    if absent.any():
        warnings.warn(
            f"{path}: {absent.sum():,} of {len(frame):,} row(s) have no value of the target '{target}' and are left out.",
            stacklevel=2,
        )
    return frame[~absent]


def learn_table(
    frame: Any,
    target: str,
    *,
    task: Kind | None = None,
    rows: np.ndarray | None = None,
    drop: Sequence[str] = (),
    ids: Sequence[str] = (),
    orders: Mapping[str, tuple[str, ...]] | None = None,
    ordered: bool = False,
    path: str = "the table",
) -> Table:
    """Return how a table's columns become inputs and targets.

    Args:
        frame: a pandas data frame. All its rows say which classes there are; every row has a target.
        target: the column to predict.
        task: what to predict; guessed from the target if None.
        rows: the training rows, from which everything else is learned; all if None.
        drop: columns that are no inputs.
        ids: columns that are no inputs but shown beside predictions.
        orders: values from first to last, by column; of the target, the order of its classes.
        ordered: whether classes must have an order: given, of numbers, or one that is known.
        path: what to call the table in an error.
    """
    for name in (target, *drop, *ids, *(orders or ())):
        check_column(frame, name, path)
    if target in (*drop, *ids):
        raise InputError(f"'{target}' is the target, so it cannot be dropped or an id; name another column.")
    trained = frame if rows is None else frame.iloc[rows]
    targets = Cells(frame[target])
    inputs = {str(n): Cells(trained[n]) for n in frame.columns if n != target}
    settle_decimals([targets, *inputs.values()], path)
    check_target(targets, task, path)
    guessed, reason = guess_task(targets)
    order = (orders or {}).get(target, ())
    decided: Kind = task or ("classification" if order else guessed)
    if order and decided == "regression":
        raise InputError(f"'{target}' is the target of a regression, so its values have no --order; leave it out.")
    told = {n: LeftOutColumn(name=n, reason="dropped, as asked") for n in drop}
    told |= {n: LeftOutColumn(name=n, reason="an id, as asked", beside=True) for n in ids}
    columns = tuple(
        told.get(n) or learn_column(cells, order=(orders or {}).get(n, ()), path=path) for n, cells in inputs.items()
    )
    if not any(c.width for c in columns):
        why = "; ".join(f"'{short(c.name)}' is left out ({c.detail})" for c in columns[:4])
        raise InputError(
            f"{path} has no column to learn from besides the target '{target}'{': ' + why if why else ''}; add at least one."
        )
    classes = classes_of(targets, path) if decided == "classification" else ()
    if classes and (order or ordered):
        classes = in_order(classes, order, targets, path)
    if not classes:
        check_numbers(targets, rows, path)
    return Table(
        columns=columns,
        target=target,
        task=decided,
        reason=reason if task is None else _as_asked(targets, decided),
        classes=classes,
        comma=targets.comma,
        unit=targets.unit,
    )


def _as_asked(targets: Cells, task: Kind) -> str:
    return ", ".join(filter(None, ["as asked", unit_in_words(targets.unit) if task == "regression" else ""]))


def settle_decimals(columns: Sequence[Cells], path: str, others: Sequence[Cells] = ()) -> None:
    """Let columns whose numbers show how decimals are written decide for those that do not; say how such columns are read.

    Args:
        columns: that are settled.
        path: where they are from.
        others: that decide too.
    """
    known = {cells.shows for cells in (*columns, *others)} - {None}
    for cells in columns:
        if True in known and cells.doubtful:
            cells.usual = known == {True}
            word, value = cells.doubtful, number(cells.doubtful, comma=cells.comma, unit=cells.unit or None)
            if not math.isnan(value):
                why = "as other columns have decimal commas" if cells.usual else "but other columns do not agree"
                say(f"{path}: column '{short(cells.name)}' holds {word!r}, which is read as {value:g}, {why}.")
