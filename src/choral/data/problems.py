"""Problems: training and test data with what is known about them, by name or from a file."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from choral.base.errors import InputError, did_you_mean
from choral.data.arrays import read_problem
from choral.data.cells import Cells
from choral.data.sheets import ENDINGS, as_frame, ending, is_frame, read_table
from choral.data.sources import as_weights
from choral.data.splitting import Seen, split, split_by_group, split_by_time
from choral.data.tables import Table, check_column, learn_table, settle_decimals, with_target
from choral.data.targets import Kind
from choral.objectives.likelihoods import NAMES, LearnedGaussian, Likelihood

_OF_CLASSES = ("categorical", "bernoulli", "ordinal")
BUILT_IN = ("digits", "diabetes", "wine", "breast_cancer")


@dataclass(frozen=True)
class Problem:
    """Data to fit and data to judge by.

    Attributes:
        name: where it came from.
        x_train, y_train: training data; real targets are in their own units.
        x_test, y_test: test data.
        table: how a table's columns became inputs, and which rows are trained on.
        image_shape: height and width, where inputs are images stored flat.
        likelihood: what outputs are to mean, a value or a name (`choral.objectives.likelihoods.NAMES`); None is decided by the targets.
        groups, times: the column that decides which rows are held out together, or last, at the training rows.
        weights: what each training row counts, equal if None.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    table: Table | None = None
    image_shape: tuple[int, int] | None = None
    likelihood: str | Likelihood | None = None
    groups: Cells | None = None
    times: Cells | None = None
    weights: np.ndarray | None = None

    @property
    def points(self) -> tuple[np.ndarray, ...]:
        """The training data as `fit` takes it: inputs, targets and, if there are any, weights."""
        return (self.x_train, self.y_train, *(() if self.weights is None else (self.weights,)))

    def folds(self, count: int) -> Any:
        """Return so many folds as `fit(cv=)` takes them: with the groups that are held out together, if there are any."""
        return count if self.groups is None else (count, self.groups.words.astype(str))

    def of_rows(self, rows: np.ndarray) -> "Problem":
        """Return the problem with some of its training rows alone; nothing says any more how to hold out others."""
        weights = None if self.weights is None else self.weights[rows]
        kept = {"x_train": self.x_train[rows], "y_train": self.y_train[rows], "weights": weights}
        return replace(self, **kept, groups=None, times=None)

    def validating(self, share: Any, seed: int = 0) -> tuple["Problem", Any]:
        """Return the problem to train on and what to validate on, held out as test rows are.

        Without groups and times these are the problem itself and the share, which `fit` draws.

        Args:
            share: part of the training rows, or None.
            seed: decides which groups.
        """
        if share is not None and not 0 < share < 1:
            raise InputError(f"--validation is {share}; give a part of the training rows, above 0 and below 1.")
        if share is None or (self.groups is None and self.times is None):
            return self, share
        if self.groups is not None:
            train, held = split_by_group(self.groups, share, seed)
        else:
            assert self.times is not None
            train, held = split_by_time(self.times, share)
        return self.of_rows(train), self.of_rows(held).points

    @property
    def repeated(self) -> int:
        """Test rows that are equal to a training row, in inputs and target."""
        trained = {x.tobytes() + y.tobytes() for x, y in zip(self.x_train, self.y_train)}
        return sum(x.tobytes() + y.tobytes() in trained for x, y in zip(self.x_test, self.y_test))

    @property
    def task(self) -> str:
        """'classification' for integer targets, else 'regression'; with a likelihood, what that predicts."""
        if self.likelihood is not None:
            return likelihood_named(self.likelihood).prediction.task
        return "classification" if self.y_train.dtype.kind in "iub" else "regression"

    @property
    def outputs(self) -> int:
        """Outputs a network needs: one for each class, or mean and variance of each target, or what the likelihood says."""
        if self.likelihood is not None:
            y = np.concatenate([self.y_train, self.y_test]) if len(self.y_test) else self.y_train
            return likelihood_named(self.likelihood).outputs_for(torch.tensor(y))
        if self.table is not None and self.table.classes:
            return len(self.table.classes)
        if self.task == "classification":
            return int(max(self.y_train.max(), self.y_test.max() if len(self.y_test) else 0)) + 1
        return 2 * (1 if self.y_train.ndim == 1 else self.y_train.shape[1])


def _built_in(name: str, holdout: float | None, seed: int) -> Problem:
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    train, test = _split(len(x), holdout, seed)
    if name == "digits":
        x = (x / 16.0).astype(np.float32)
    else:
        mean, std = x[train].mean(0), x[train].std(0)
        x = ((x - mean) / np.where(std > 0, std, 1)).astype(np.float32)
    shape = (8, 8) if name == "digits" else None
    y = y.astype(np.float32 if name == "diabetes" else np.int64)
    table = Table(seen=Seen.of(x[train], y[train]), origin=origin_of(name, holdout))
    return Problem(name, x[train], y[train], x[test], y[test], table, image_shape=shape)


def _split(rows: int, holdout: float | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and test; all are trained on if nothing is held out."""
    return (np.arange(rows), np.arange(0)) if holdout is None else split(rows, holdout, seed)


def origin_of(name: str, holdout: float | None) -> str:
    """Return how a built-in problem is asked for.

    >>> origin_of("wine", 0.25)
    'wine --holdout 0.25'
    """
    return f"{name} --holdout {0 if holdout is None else holdout:g}"


def _from_npz(path: Path, likelihood: str | None) -> Problem:
    x_train, y_train, x_test, y_test = read_problem(path, classes=likelihood in (None, "categorical", "ordinal"))
    return Problem(path.name, x_train, y_train, x_test, y_test, Table(seen=Seen.of(x_train, y_train)))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a table, where they are more than a target and inputs.

    >>> Columns(drop=["id"], orders={"size": ["small", "large"]}).drop
    ('id',)

    Args:
        target: the one to predict.
        drop: those that are no inputs.
        ids: those that are no inputs but shown beside predictions.
        orders: values from first to last, by column.
        group: rows with the same value stay together when rows are held out; no input.
        time: the last rows by this column are held out.
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
        """The options that were given, as the shell writes them."""
        held = {"--target": self.target, "--drop": self.drop, "--id": self.ids, "--order": self.orders}
        return [n for n, v in (held | {"--group": self.group, "--time": self.time}).items() if v]


@dataclass(frozen=True)
class _Sheet:
    """A table's rows, and what to call it."""

    frame: Any
    name: str
    where: str
    weights: Any = None


def _sheet_of(data: Any, said: Columns, weights: Any) -> _Sheet:
    """Return the rows of a table that have a target, and what each of them counts."""
    where, name = ("the data frame", "table") if is_frame(data) else (str(data), Path(data).name)
    if said.target is None:
        raise InputError(f"{where} is a table, so the column to predict must be named; add --target COLUMN.")
    whole = as_frame(data) if is_frame(data) else read_table(Path(data))
    if isinstance(weights, str):
        weights = weights_in(whole, weights, where)
    found = None if weights is None else as_weights(weights, len(whole)).numpy()
    frame = with_target(whole, said.target, where)
    return _Sheet(frame, name, where, None if found is None else found[frame.index.to_numpy()])


def weights_in(frame: Any, column: str, where: str) -> np.ndarray:
    """Return what each row counts by a column of a table; its decimals are written as in the other columns."""
    check_column(frame, column, where)
    own = Cells(frame[column])
    if not own.is_number:
        settle_decimals([own], where, [Cells(frame[name]) for name in frame.columns if name != column])
    return own.own_numbers


def _held_out(sheet: _Sheet, said: Columns, holdout: float | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and test, as the columns say."""
    for name in (said.group, said.time):
        if name is not None:
            check_column(sheet.frame, name, sheet.where)
    if holdout is not None and said.group is not None:
        return split_by_group(Cells(sheet.frame[said.group]), holdout, seed)
    if holdout is not None and said.time is not None:
        return split_by_time(Cells(sheet.frame[said.time]), holdout)
    return _split(len(sheet.frame), holdout, seed)


def _from_sheet(
    sheet: _Sheet, said: Columns, task: Kind | None, holdout: float | None, seed: int, *, ordered: bool = False
) -> Problem:
    if said.group is not None and said.time is not None:
        raise InputError("--group and --time both decide which rows are held out; give one of them.")
    assert said.target is not None
    frame, where = sheet.frame, sheet.where
    train, test = _held_out(sheet, said, holdout, seed)
    ids = (*said.ids, *((said.group,) if said.group and said.group not in (*said.ids, *said.drop) else ()))
    table = learn_table(
        frame,
        said.target,
        task=task,
        rows=train,
        drop=said.drop,
        ids=ids,
        orders=said.orders,
        ordered=ordered,
        path=where,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that held-out rows hold what training rows do not is no surprise,
        warnings.filterwarnings("default", message=".*which is not a number")  # but a footer among them is
        x = table.inputs(frame, path=where)
    y_train = table.targets(frame.iloc[train], path=where)
    y_test = table.targets(frame.iloc[test], path=where) if len(test) else y_train[:0]
    groups, times = (None if n is None else Cells(frame[n].iloc[train]) for n in (said.group, said.time))
    weights = None if sheet.weights is None else sheet.weights[train]
    table = table.with_seen(x[train], y_train)
    return Problem(sheet.name, x[train], y_train, x[test], y_test, table, groups=groups, times=times, weights=weights)


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
    """Return a problem by name, from a file or from a data frame.

    Args:
        data: a built-in name (digits, diabetes, wine, breast_cancer: they ship inside scikit-learn), an .npz file with x_train,
            y_train, x_test, y_test, a table (.csv, .tsv, either with .gz, .parquet, .xlsx), or a pandas data frame.
        target: the column to predict, for a table.
        task: 'classification' or 'regression'; guessed from the target if None.
        holdout: part of the rows kept for testing (not for .npz, which says itself); None keeps none.
        seed: decides the split; not the seed of training.
        columns: more about a table's columns; its target counts where none is given here.
        likelihood: what outputs are to mean, by name; it says which task a table's target is.
        weights: what each row of a table counts: a column, which is then no input, or a number for each row.
    """
    said = columns or Columns()
    said = replace(said, target=target or said.target)
    path = None if is_frame(data) else _path(data)
    table = path is None or (bool(ending(path)) and data not in BUILT_IN)
    if likelihood is not None:
        kind: Kind = "classification" if likelihood in _OF_CLASSES else "regression"
        likelihood_named(likelihood)
        if task not in (None, kind):
            raise InputError(f"--task is {task}, but --likelihood {likelihood} is of a {kind}; leave one of them out.")
        task = kind if table else None
    if task not in (None, "classification", "regression"):
        raise InputError(f"task is {task!r}; give 'classification' or 'regression'.")
    if holdout is not None and not 0 < holdout < 1:
        raise InputError(f"holdout is {holdout}; give a part of the rows, above 0 and below 1.")
    if not table and (said.given or task or weights is not None):
        word = (said.given or (["--task"] if task else ["weights"]))[0]
        raise InputError(f"{word} is about a table, and {data} is none; leave it out.")
    if table:
        named = (weights,) if isinstance(weights, str) and weights not in said.drop else ()
        sheet = _sheet_of(data if path is None else path, said, weights)
        said = replace(said, drop=(*said.drop, *named))
        problem = _from_sheet(sheet, said, task, holdout, seed, ordered=likelihood == "ordinal")
        if likelihood is None and problem.task == "regression" and np.isin(problem.y_train, (0, 1)).all():
            likelihood = "gaussian"  # which nothing but the task says
    else:
        assert path is not None
        problem = _built_in(data, holdout, seed) if data in BUILT_IN else _from_npz(path, likelihood)
    return replace(problem, likelihood=likelihood)


def _path(data: Any) -> Path:
    """Return where data is, or would be if it is not built in; InputError unless there is such a file."""
    if not isinstance(data, str | Path):
        raise InputError(
            f"data is {type(data).__name__}; give a pandas data frame, the path of a file, or one of {', '.join(BUILT_IN)}."
        )
    path = Path(data)
    if data in BUILT_IN:
        return path
    if not ending(path) and path.suffix.lower() != ".npz":
        raise InputError(
            f"data is '{data}'; give one of {', '.join(BUILT_IN)}, or a file ending in .npz, {', '.join(ENDINGS)}."
            + did_you_mean(str(data), BUILT_IN)
        )
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path of the data.")
    return path


def likelihood_named(name: str | Likelihood) -> Likelihood:
    """Return the likelihood of a name with its usual settings; 'gaussian' learns its variance. A value is returned as it is."""
    if isinstance(name, Likelihood):
        return name
    known: dict[str, type[Likelihood]] = {"gaussian": LearnedGaussian, **NAMES}
    if name not in known:
        raise InputError(f"there is no likelihood '{name}'; known: {', '.join(known)}.{did_you_mean(name, known)}")
    return known[name]()
