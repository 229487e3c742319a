"""Tables as training data: the rules of their columns are learned once and kept for prediction."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError, RunError, did_you_mean, warn
from choral.base.text import short
from choral.base.values import Value
from choral.data.splitting import Seen
from choral.data.tensors import LARGEST
from choral.tables.columns import Column, LeftOutColumn, check_names, learn_column, spelled
from choral.tables.reading import Cells, folded, places_of

_FEW = 20  # whole targets with at most this many different values are classes
_CLASSES = 100  # different numbers that may be asked to be classes
_WHOLE = re.compile(r"-?\d+")

Kind = Literal["classification", "regression"]


@dataclass(frozen=True, kw_only=True)
class Table(Value):
    """How rows of a table become inputs and targets, and predictions become classes and units again."""

    columns: tuple[Column, ...] = ()  # all but the target, in the order of the inputs; none for arrays
    target: str = "y"  # the column to predict
    task: Kind = "regression"
    reason: str = ""  # why the target is read as that task, in words
    classes: tuple[str, ...] = ()  # names, in the order of their numbers; empty for regression
    unit: str = ""  # of the target, such as kg or $
    seen: Seen | None = None  # the training rows
    origin: str = ""  # arguments of a built-in problem, which determine its held-out rows

    def __post_init__(self) -> None:
        if self.task == "classification":
            check_names(self.classes, "the target")
        if self.columns:
            check_names(tuple(c.name for c in self.columns), "the header")

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that are no inputs although nobody asked for that."""
        return tuple(c.name for c in self.columns if not c.codes and not c.reason.endswith("as asked"))

    @property
    def width(self) -> int:
        """Numbers one row becomes."""
        return sum(c.width for c in self.columns)

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that are shown next to predictions, if a table has them."""
        return tuple(c.name for c in self.columns if c.beside)

    def labels(self, frame: Any) -> list[str]:
        """Return a label for each row: its id if the frame has a column of ids, else its number in the table."""
        ids = [name for name in self.beside if name in frame]
        return [str(label) for label in (frame[ids[0]] if ids else frame.index)]

    def describe(self) -> list[dict[str, Any]]:
        """Return how each column is read, as rows of plain types."""
        return [{"column": c.name, "read_as": c.read_as, "inputs": c.width, "detail": c.detail} for c in self.columns]

    def names_of(self, outputs: int) -> tuple[str, ...] | None:
        """Return the names of so many classes, None if the table names none; RunError if it names others."""
        if len(self.classes) not in (0, outputs):
            known = len(self.classes)
            raise RunError(f"the table names {known} classes but the network gives {outputs}; fit it again.")
        return self.classes or None

    @property
    def used(self) -> list[Column]:
        """The columns that are inputs."""
        return [c for c in self.columns if c.width]

    def read(self, frame: Any, *, path: str = "the table") -> np.ndarray:
        """Return one number for each cell of the used columns, float64 (row, used column): the input of an exported graph.

        The frame needs the columns of training, in any order. Numbers are themselves, dates are days since 1970, words their index among the column's
        values (-1 for others), and NaN is a missing value. A warning names values that training did not have.
        """
        for column in self.used:
            check_column(frame, column.name, path)
        found, gaps = np.empty((len(frame), len(self.used))), dict[str, np.ndarray]()
        for i, column in enumerate(self.used):
            cells = Cells(frame[column.name])
            found[:, i] = column.read(cells, path)
            if not column.missing and cells.absent.any():  # other odd cells were named by the column
                gaps[column.name] = cells.absent
        if gaps:
            names = ", ".join(repr(short(name)) for name in [*gaps][:8]) + ", ..." * (len(gaps) > 8)
            rows, count = np.any([*gaps.values()], 0), sum(int(blank.sum()) for blank in gaps.values())
            warn(
                f"{path}: column{'s' * (len(gaps) > 1)} {names} {'have' if len(gaps) > 1 else 'has'} {count:,} cell(s) without a value "
                f"({Cells(frame[next(iter(gaps))]).lines(rows)}), which training did not have; they are read as the median, or as none of the known values."
            )
        return found

    def encoded(self, numbers: Tensor) -> Iterator[Tensor]:
        """Yield the inputs (row, width) of each used column, of what `read` returns."""
        return (column.encode(each) for column, each in zip(self.used, numbers.unbind(1)))

    def inputs(self, frame: Any, *, path: str = "the table") -> np.ndarray:
        """Return the inputs of a data frame's rows, float32 (row, width): `read`, then `encoded`."""
        numbers, place = torch.from_numpy(self.read(frame, path=path)), 0
        found = np.empty((len(numbers), self.width), np.float32)
        for part in self.encoded(numbers):
            found[:, place : (place := place + part.shape[1])] = part.numpy()
        return found

    def targets(self, frame: Any, *, path: str = "the table") -> np.ndarray:
        """Return targets of a data frame: class numbers (int64), or real numbers (float64) in their own units."""
        check_column(frame, self.target, path)
        cells = Cells(frame[self.target])
        if self.task == "regression":
            return _target_numbers(cells, self.unit, path)
        ranks = cells.ranks(places_of(self.classes))
        if (ranks < 0).any():
            odd = short(cells.first(ranks < 0))
            known = ", ".join(short(c, 20) for c in self.classes[:10]) + ", ..." * (len(self.classes) > 10)
            advice = " If it is a number, fit again with --task regression, or with --likelihood poisson for counts."
            raise InputError(
                f"{path}: the target '{self.target}' holds {odd!r} ({cells.lines(ranks < 0)}), a class the training data did not have; it "
                f"had {known}.{advice if all(map(_WHOLE.fullmatch, (odd, *self.classes))) else ''}"
            )
        return ranks

    def targets_of(self, values: Any) -> np.ndarray:
        """Return targets as `targets` does, of values as the target column holds them: class names, numbers as text."""
        import pandas as pd

        return self.targets(pd.DataFrame({self.target: np.asarray(values)}), path="y")


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
    if not absent.any():
        return frame
    warn(f"{path}: {absent.sum():,} of {len(frame):,} row(s) have no value of the target '{target}' and are left out.")
    kept = frame[~absent]
    if kept[target].dtype.kind == "f" and (kept[target] % 1 == 0).all():
        return kept.assign(**{target: kept[target].astype(np.int64)})  # pandas made them real numbers, for gaps
    return kept


def unit_in_words(unit: str) -> str:
    """Return how the numbers of a target are to be understood; nothing without a unit."""
    return "12% is 0.12" if unit == "%" else f"in {short(unit, 20)}" * bool(unit)


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
    """Learn how the columns of a data frame become inputs and targets, from its training `rows` (all if None).

    All rows determine the classes, and each has a target. The roles of columns are those of `choral.Columns`; for the target, the order
    of its classes. With `ordered` the classes must have an order, given or as numbers. `path` is the name of the table in errors.
    """
    for name in (target, *drop, *ids, *(orders or ())):
        check_column(frame, name, path)
    if target in (*drop, *ids):
        raise InputError(f"'{target}' is the target, so it cannot be dropped or an id; name another column.")
    trained = frame if rows is None else frame.iloc[rows]
    targets, order = Cells(frame[target]), (orders or {}).get(target, ())
    guessed, reason = guess_task(targets)
    decided: Kind = task or ("classification" if order else guessed)
    if order and decided == "regression":
        raise InputError(f"'{target}' is the target of a regression, so its values have no --order; leave it out.")
    told = {n: LeftOutColumn(name=n, reason="dropped, as asked") for n in drop}
    told |= {n: LeftOutColumn(name=n, reason="an id, as asked", beside=True) for n in ids}
    columns = tuple(
        told.get(str(n)) or learn_column(Cells(trained[n]), order=(orders or {}).get(str(n), ()), path=path)
        for n in frame.columns
        if n != target
    )
    if not any(c.width for c in columns):
        why = ": " * bool(columns) + "; ".join(f"'{short(c.name)}' is left out ({c.detail})" for c in columns[:4])
        raise InputError(f"{path} has no column to learn from besides the target '{target}'{why}; add at least one.")
    unit, classes = "" if decided == "classification" else targets.commonest_unit, tuple[str, ...]()
    if task is not None:
        reason = ", ".join(filter(None, ["as asked", unit_in_words(unit)]))
    if decided == "classification":
        classes = _classes_of(targets, path)
        classes = _in_order(classes, order, target, path) if order or ordered else classes
    else:
        values = _target_numbers(targets, unit, path)[slice(None) if rows is None else rows]
        if len(values) > 1 and not np.ptp(values):
            said = f"has the same value, {values[0]:g}, in every training row; there is nothing to learn"
            raise InputError(f"{path}: the target '{target}' {said}.")
    return Table(columns=columns, target=target, task=decided, reason=reason, classes=classes, unit=unit)


def guess_task(cells: Cells) -> tuple[Kind, str]:
    """Return 'classification' or 'regression' for a target column, and the reason in words."""
    if cells.is_category:
        return "classification", f"its type is category, with {cells.different} values"
    if cells.is_flag or not cells.is_numeric:
        return "classification", f"its {cells.different} values are not numbers"
    held = np.unique(cells.own_numbers[np.isfinite(cells.own_numbers)])
    if held.tolist() == [0, 1]:
        return "classification", "it contains only 0 and 1"
    written = cells.series.dtype.kind in "iu" or (not cells.is_number and all(map(_WHOLE.fullmatch, cells.held)))
    if written and len(held) <= _FEW:
        counts = bool(len(held) > 10 and held[0] in (0, 1) and held[-1] - held[0] < len(held))
        advice = "; if they are counts or a rating, use --likelihood poisson or --task regression" * counts
        return "classification", f"it contains only {len(held)} different whole numbers{advice}"
    said = f"it contains {len(held)} different numbers"
    return "regression", ", ".join(filter(None, [said, unit_in_words(cells.commonest_unit)]))


def _target_numbers(cells: Cells, unit: str, path: str) -> np.ndarray:
    values = cells.numbers(unit)
    cells.say_doubt(path)
    bad = ~(np.abs(values) <= LARGEST)
    if bad.any():
        raise InputError(
            f"{path}: the target '{cells.name}' holds {short(cells.first(bad))!r} ({cells.lines(bad)}), which "
            f"is not a number{f' in {short(unit, 20)}' * bool(unit)} of at most {LARGEST:g} in size; correct or drop it, or use --task classification."
        )
    return values


def _classes_of(cells: Cells, path: str) -> tuple[str, ...]:
    """Return the classes of a target; InputError for a single one, and for too many. Spellings of one word are one class."""
    words, where = list(dict.fromkeys(cells.words[cells.counts > 0])), f"{path}: the target '{cells.name}'"
    found, counts = spelled(cells, cells.counts > 0)
    if len(found) < 2:
        raise InputError(f"{where} has a single value, {short(str(words[0]))}; there is nothing to learn.")
    numeric = cells.is_number or cells.is_numeric
    if (numeric and len(found) > _CLASSES) or (len(found) > 10 and len(found) > counts.sum() / 2):
        advice = "use --task regression" if numeric else "name a target whose values repeat"
        count = f"{len(found):,} different values in {counts.sum():,} rows"
        raise InputError(f"{where} has {count}, too many to be classes; {advice}.")
    if len(found) < len(words):
        one = next(w for w in words if w not in {*found})
        other = next(w for w in found if folded([w]) == folded([one]))
        warn(f"{where} holds {short(one)!r} and {short(other)!r}, which are taken as one class.")
    if cells.is_number:
        found = folded(found)  # 1.0 is 1
    whole = numeric and all(map(_WHOLE.fullmatch, found))
    return tuple(sorted(map(str, found), key=int) if whole else map(str, found))


def _in_order(classes: tuple[str, ...], order: tuple[str, ...], target: str, path: str) -> tuple[str, ...]:
    """Return classes from first to last, spelled as the file does; InputError if nothing says their order."""
    if not order and all(map(_WHOLE.fullmatch, classes)):
        return classes
    place = places_of(order) if order else {}
    places = {c: place.get(f, -1) for c, f in zip(classes, folded(classes))}
    odd = [c for c in classes if places[c] < 0]
    if odd:
        shown = "<".join(short(c, 20) for c in classes[:10])
        what = f"the given order ({' < '.join(order)}) does not tell" if order else "nothing tells"
        where = f": where is {short(odd[0])!r}" if order else ""
        raise InputError(
            f"{path}: {what} the order of the classes of the target '{target}'{where}; write every class from first to last, as in "
            f"--order '{target}={shown}', in their right order."
        )
    return tuple(sorted(classes, key=places.__getitem__))
