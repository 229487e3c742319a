"""Problems from tables: which column is predicted, which rows are held out, and what rows count."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from choral.base.errors import InputError, did_you_mean
from choral.base.text import short
from choral.data.problems import BUILT_IN, Problem, built_in, from_npz, origin_of
from choral.data.sources import as_weights
from choral.data.splitting import Seen, split
from choral.objectives.likelihoods import named
from choral.tables.reading import ENDINGS, Cells, as_frame, ending, is_frame, read_table
from choral.tables.table import Kind, Table, check_column, learn_table, with_target

_OF_CLASSES = ("categorical", "bernoulli", "ordinal")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The roles of a table's columns.

    >>> Columns(drop=["id"], orders={"size": ["small", "large"]}).drop
    ('id',)

    Args:
        target: the column to predict.
        drop: columns that are not inputs.
        ids: columns that are not inputs but shown next to predictions.
        orders: ordered values, from first to last, by column.
        group: a column of groups, which are held out as a whole; not an input.
        time: a column of dates or numbers; the last rows are held out.
    """

    target: str | None = None
    drop: Sequence[str] = ()
    ids: Sequence[str] = ()
    orders: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        for name in ("drop", "ids"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        object.__setattr__(self, "orders", {name: tuple(steps) for name, steps in self.orders.items()})

    @property
    def given(self) -> list[str]:
        """The options that were given, as the command line writes them."""
        held = {"--target": self.target, "--drop": self.drop, "--id": self.ids, "--order": self.orders}
        return [n for n, v in (held | {"--group": self.group, "--time": self.time}).items() if v]


def weights_in(frame: Any, column: str, where: str) -> np.ndarray:
    """Return the weight of each row, from a column of a table."""
    check_column(frame, column, where)
    return Cells(frame[column]).own_numbers


def _groups_and_times(frame: Any, said: Columns, where: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the group of each row as text, and its place in time as a number; None for what was not asked for."""
    if said.group is not None and said.time is not None:
        raise InputError("--group and --time both decide which rows are held out; give one of them.")
    name = said.group or said.time
    if name is None:
        return None, None
    check_column(frame, name, where)
    cells = Cells(frame[name])
    if said.group is not None:
        return cells.spread(cells.words, "").astype(str), None
    when = cells.own_numbers if cells.is_numeric else cells.days(cells.dated[0])
    bad = np.isnan(when)
    if bad.any():
        odd = "no value" if cells.absent[bad][0] else repr(short(cells.first(bad)))
        raise InputError(
            f"column '{short(cells.name)}' holds {odd} ({cells.lines(bad)}), neither a date nor a number, so rows cannot be put in time; "
            "fill it, write dates as 2024-03-25, or name another column."
        )
    return None, when


def _from_table(
    data: Any, said: Columns, task: Kind | None, holdout: float | None, seed: int, weights: Any, *, ordered: bool
) -> Problem:
    where, name = ("the data frame", "table") if is_frame(data) else (str(data), Path(data).name)
    if said.target is None:
        how = "target='price' (--target price)"
        raise InputError(f"{where} is a table, so the column to predict must be named: {how}.")
    frame = as_frame(data) if is_frame(data) else read_table(Path(data))
    drop = said.drop
    if isinstance(weights, str):
        drop, weights = (*drop, *((weights,) if weights not in drop else ())), weights_in(frame, weights, where)
    each = None if weights is None else as_weights(weights, len(frame)).numpy()
    frame = with_target(frame, said.target, where)
    each = None if each is None else each[frame.index.to_numpy()]
    groups, times = _groups_and_times(frame, said, where)
    train, test = split(len(frame), holdout, seed, groups=groups, times=times)
    ids = (*said.ids, *((said.group,) if said.group and said.group not in (*said.ids, *drop) else ()))
    about: dict[str, Any] = {"drop": drop, "ids": ids, "orders": said.orders, "ordered": ordered}
    table = learn_table(frame, said.target, task=task, rows=train, **about, path=where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that held-out rows hold what training rows do not is no surprise,
        warnings.filterwarnings("default", message=".*which is not a number")  # but an odd cell among them is
        x = table.inputs(frame, path=where)
    y = table.targets(frame, path=where)
    groups, times, each = (None if part is None else part[train] for part in (groups, times, each))
    table = replace(table, seen=Seen.of(x[train], y[train]))
    about = {"groups": groups, "times": times, "weights": each, "labels": table.labels(frame.iloc[test])}
    return Problem(name, x[train], y[train], x[test], y[test], table, **about)


def load_problem(
    data: Any,
    *,
    target: str | None = None,
    task: Kind | None = None,
    holdout: float | None = 0.25,
    seed: int = 0,
    columns: Columns | None = None,
    likelihood: str | None = None,
    weights: Any = None,
) -> Problem:
    """Return a problem by name, from a file or from a data frame; other arguments as in `choral.fit_table`.

    Args:
        data: a built-in name (digits, diabetes, wine, breast_cancer, from scikit-learn), an .npz file with x_train, y_train, x_test, y_test,
            a table (.csv, .tsv, either with .gz, .parquet, .xlsx), or a pandas data frame.
        holdout: share of the rows held out for testing (not for .npz); None holds out none.
        seed: seed of the split, not of training.
    """
    said = columns or Columns()
    said = replace(said, target=target or said.target)
    path = None if is_frame(data) else _path(data)
    is_table = path is None or (bool(ending(path)) and data not in BUILT_IN)
    if likelihood is not None:
        kind: Kind = "classification" if likelihood in _OF_CLASSES else "regression"
        named(likelihood)
        if task not in (None, kind):
            raise InputError(f"--task is {task}, but --likelihood {likelihood} is of a {kind}; leave one of them out.")
        task = kind if is_table else None
    if not is_table and (said.given or task or weights is not None):
        word = (said.given or (["--task"] if task else ["weights"]))[0]
        raise InputError(f"{word} is about a table, and {data} is none; leave it out.")
    if is_table:
        given = data if path is None else path
        problem = _from_table(given, said, task, holdout, seed, weights, ordered=likelihood == "ordinal")
        if likelihood is None and problem.task == "regression" and np.isin(problem.y_train, (0, 1)).all():
            likelihood = "gaussian"  # which nothing but the task says
    else:
        assert path is not None
        known = data in BUILT_IN
        problem = built_in(data, holdout, seed) if known else from_npz(path)
        table = Table(seen=Seen.of(problem.x_train, problem.y_train), origin=origin_of(data, holdout) if known else "")
        problem = replace(problem, table=table)
    return replace(problem, likelihood=likelihood)


def _path(data: Any) -> Path:
    """Return where data is, or would be if it is not built in; InputError unless there is such a file."""
    path = Path(data) if isinstance(data, str | Path) else Path(type(data).__name__)
    if str(path) in BUILT_IN:
        return path
    if not ending(path) and path.suffix.lower() != ".npz":
        raise InputError(
            f"data is '{path}'; give a pandas data frame, one of {', '.join(BUILT_IN)}, or a file ending in .npz, {', '.join(ENDINGS)}."
            + did_you_mean(str(path), BUILT_IN)
        )
    return path
