"""Problems: training and test data with what is known about them, by name or from a file."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from choral.base.errors import InputError, did_you_mean
from choral.data.arrays import read_problem
from choral.data.cells import Cells
from choral.data.sheets import ENDINGS, ending, read_table
from choral.data.splitting import Seen, split, split_by_group, split_by_time
from choral.data.tables import Kind, Table, check_column, learn_table, with_target
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
        likelihood: what outputs are to mean, by name (`choral.objectives.likelihoods.NAMES`); None is decided by the targets.
        groups, times: the column that decides which rows are held out together, or last, at the training rows.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    table: Table | None = None
    image_shape: tuple[int, int] | None = None
    likelihood: str | None = None
    groups: Cells | None = None
    times: Cells | None = None

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
        kept = replace(self, x_train=self.x_train[train], y_train=self.y_train[train], groups=None, times=None)
        return kept, (self.x_train[held], self.y_train[held])

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
            return likelihood_named(self.likelihood).outputs_for(torch.as_tensor(y))
        if self.table is not None and self.table.classes:
            return len(self.table.classes)
        if self.task == "classification":
            return int(max(self.y_train.max(), self.y_test.max() if len(self.y_test) else 0)) + 1
        return 2 * (1 if self.y_train.ndim == 1 else self.y_train.shape[1])


def _built_in(name: str, holdout: float, seed: int) -> Problem:
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    train, test = split(len(x), holdout, seed)
    if name == "digits":
        x = (x / 16.0).astype(np.float32)
    else:
        mean, std = x[train].mean(0), x[train].std(0)
        x = ((x - mean) / np.where(std > 0, std, 1)).astype(np.float32)
    shape = (8, 8) if name == "digits" else None
    y = y.astype(np.float32 if name == "diabetes" else np.int64)
    table = Table(seen=Seen.of(x[train], y[train]), origin=origin_of(name, holdout))
    return Problem(name, x[train], y[train], x[test], y[test], table, image_shape=shape)


def origin_of(name: str, holdout: float) -> str:
    """Return how a built-in problem is asked for.

    >>> origin_of("wine", 0.25)
    'wine --holdout 0.25'
    """
    return f"{name} --holdout {holdout:g}"


def _from_npz(path: Path, likelihood: str | None) -> Problem:
    x_train, y_train, x_test, y_test = read_problem(path, classes=likelihood in (None, "categorical", "ordinal"))
    return Problem(path.name, x_train, y_train, x_test, y_test, Table(seen=Seen.of(x_train, y_train)))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What a user says about the columns of a table.

    Attributes:
        target: the one to predict.
        drop: those that are no inputs.
        ids: those that are no inputs but shown beside predictions.
        orders: values from first to last, by column.
        group: rows with the same value stay together when rows are held out; no input.
        time: the last rows by this column are held out.
    """

    target: str | None = None
    drop: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group: str | None = None
    time: str | None = None

    @property
    def given(self) -> list[str]:
        """The options that were given, as the shell writes them."""
        held = {"--target": self.target, "--drop": self.drop, "--id": self.ids, "--order": self.orders}
        return [n for n, v in (held | {"--group": self.group, "--time": self.time}).items() if v]


def _from_table(
    path: Path, said: Columns, task: Kind | None, holdout: float, seed: int, *, ordered: bool = False
) -> Problem:
    if said.target is None:
        raise InputError(f"{path} is a table, so the column to predict must be named; add --target COLUMN.")
    if said.group is not None and said.time is not None:
        raise InputError("--group and --time both decide which rows are held out; give one of them.")
    where = str(path)
    frame = with_target(read_table(path), said.target, where)
    for name in (said.group, said.time):
        if name is not None:
            check_column(frame, name, where)
    if said.group is not None:
        train, test = split_by_group(Cells(frame[said.group]), holdout, seed)
    elif said.time is not None:
        train, test = split_by_time(Cells(frame[said.time]), holdout)
    else:
        train, test = split(len(frame), holdout, seed)
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
    y_train, y_test = (table.targets(frame.iloc[rows], path=where) for rows in (train, test))
    groups, times = (None if n is None else Cells(frame[n].iloc[train]) for n in (said.group, said.time))
    table = table.with_seen(x[train], y_train)
    return Problem(path.name, x[train], y_train, x[test], y_test, table, groups=groups, times=times)


def load_problem(
    data: str,
    *,
    target: str | None = None,
    task: Kind | None = None,
    holdout: float = 0.25,
    seed: int = 0,
    columns: Columns | None = None,
    likelihood: str | None = None,
) -> Problem:
    """Return a problem by name or from a file.

    Args:
        data: a built-in name (digits, diabetes, wine, breast_cancer: they ship inside scikit-learn), an .npz file with x_train,
            y_train, x_test, y_test, or a table (.csv, .tsv, either with .gz, .parquet, .xlsx).
        target: the column to predict, for a table.
        task: 'classification' or 'regression'; guessed from the target if None.
        holdout: part of the rows kept for testing (not for .npz, which says itself).
        seed: decides the split; not the seed of training.
        columns: more about a table's columns; its target counts where none is given here.
        likelihood: what outputs are to mean, by name; it says which task a table's target is.
    """
    if likelihood is not None:
        kind: Kind = "classification" if likelihood in _OF_CLASSES else "regression"
        likelihood_named(likelihood)
        if task not in (None, kind):
            raise InputError(f"--task is {task}, but --likelihood {likelihood} is of a {kind}; leave one of them out.")
        task = kind if ending(Path(data)) else None
    if task not in (None, "classification", "regression"):
        raise InputError(f"task is {task!r}; give 'classification' or 'regression'.")
    if not 0 < holdout < 1:
        raise InputError(f"holdout is {holdout}; give a part of the rows, above 0 and below 1.")
    said = columns or Columns()
    said = replace(said, target=target or said.target)
    path = Path(data)
    table = bool(ending(path)) and data not in BUILT_IN
    if not table and data not in BUILT_IN and path.suffix.lower() != ".npz":
        raise InputError(
            f"data is '{data}'; give one of {', '.join(BUILT_IN)}, or a file ending in .npz, {', '.join(ENDINGS)}."
            + did_you_mean(data, BUILT_IN)
        )
    if data not in BUILT_IN and not path.exists():
        raise InputError(f"{path} does not exist; check the path of the data.")
    if not table and (said.given or task):
        word = (said.given or ["--task"])[0]
        raise InputError(f"{word} is about a table, and {data} is none; leave it out.")
    if data in BUILT_IN:
        problem = _built_in(data, holdout, seed)
    else:
        ordered = likelihood == "ordinal"
        problem = (
            _from_table(path, said, task, holdout, seed, ordered=ordered) if table else _from_npz(path, likelihood)
        )
    return replace(problem, likelihood=likelihood)


def likelihood_named(name: str) -> Likelihood:
    """Return the likelihood of a name with its usual settings; 'gaussian' learns its variance."""
    known: dict[str, type[Likelihood]] = {"gaussian": LearnedGaussian, **NAMES}
    if name not in known:
        raise InputError(f"there is no likelihood '{name}'; known: {', '.join(known)}.{did_you_mean(name, known)}")
    return known[name]()
