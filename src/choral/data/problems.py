"""Problems: training and test data with their table, likelihood and groups; built-in ones, and those of .npz files."""

import math
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from choral.base.errors import InputError, did_you_mean
from choral.base.text import short
from choral.data.splitting import row_hashes, split
from choral.data.tensors import TensorSource
from choral.objectives.likelihoods import Likelihood, named

if TYPE_CHECKING:
    from choral.tables.table import Table

BUILT_IN = ("digits", "diabetes", "wine", "breast_cancer")


@dataclass(frozen=True)
class Problem:
    """Training and test data.

    Attributes:
        name: name of the data.
        x_train, y_train: training data; real targets are in their own units.
        x_test, y_test: test data.
        table: how a table's columns became inputs, and which rows are trained on.
        image_shape: height and width of images stored flat.
        likelihood: a value or a name (`choral.objectives.likelihoods.NAMES`); None infers it from the targets.
        groups, times: names of groups held out together, or times of which the last are held out, for the training rows.
        weights: weights of the training rows, equal if None.
        labels: what the test rows are called in reports; their numbers if None.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    table: "Table | None" = None
    image_shape: tuple[int, int] | None = None
    likelihood: str | Likelihood | None = None
    groups: np.ndarray | None = None
    times: np.ndarray | None = None
    weights: np.ndarray | None = None
    labels: list[str] | None = None

    @property
    def points(self) -> tuple[np.ndarray, ...]:
        """The training data as `fit` takes it: inputs, targets and, if there are any, weights."""
        return (self.x_train, self.y_train, *(() if self.weights is None else (self.weights,)))

    def of_rows(self, rows: np.ndarray) -> "Problem":
        """Return the problem with some of its training rows, without groups and times."""
        weights = None if self.weights is None else self.weights[rows]
        kept = {"x_train": self.x_train[rows], "y_train": self.y_train[rows], "weights": weights}
        return replace(self, **kept, groups=None, times=None)

    def validating(self, share: Any, seed: int = 0) -> tuple["Problem", Any]:
        """Return the problem to train on, and its validation rows, held out as test rows are.

        Without groups and times these are the problem itself and the share, which `fit` draws.
        """
        if share is not None and not 0 < share < 1:
            raise InputError(f"--validation is {share}; give a part of the training rows, above 0 and below 1.")
        if share is None or (self.groups is None and self.times is None):
            return self, share
        train, held = split(len(self.x_train), share, seed, groups=self.groups, times=self.times)
        return self.of_rows(train), self.of_rows(held).points

    @property
    def repeated(self) -> int:
        """Number of test rows that equal a training row in inputs and target."""
        trained, test = row_hashes(self.x_train, self.y_train), row_hashes(self.x_test, self.y_test)
        return int(np.isin(test, trained).sum())

    @property
    def task(self) -> str:
        """'classification' for integer targets, else 'regression'; with a likelihood, its task."""
        if self.likelihood is not None:
            return named(self.likelihood).prediction.task
        return "classification" if self.y_train.dtype.kind in "iub" else "regression"

    @property
    def outputs(self) -> int:
        """Number of outputs of the network: one for each class, mean and variance of each target, or as the likelihood says."""
        if self.likelihood is not None:
            y = np.concatenate([self.y_train, self.y_test]) if len(self.y_test) else self.y_train
            return named(self.likelihood).outputs_for(torch.tensor(y))
        if self.table is not None and self.table.classes:
            return len(self.table.classes)
        if self.task == "classification":
            return int(max(self.y_train.max(), self.y_test.max() if len(self.y_test) else 0)) + 1
        return 2 * (1 if self.y_train.ndim == 1 else self.y_train.shape[1])


def built_in(name: str, holdout: float | None, seed: int) -> Problem:
    """Return a problem that ships inside scikit-learn."""
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
    return Problem(name, x[train], y[train], x[test], y[test], image_shape=shape)


def origin_of(name: str, holdout: float | None) -> str:
    """Return the command-line arguments of a built-in problem.

    >>> origin_of("wine", 0.25)
    'wine --holdout 0.25'
    """
    return f"{name} --holdout {0 if holdout is None else holdout:g}"


def read_arrays(path: Path, *choices: tuple[str, ...]) -> list[np.ndarray]:
    """Return the arrays of an .npz file under one of several sets of names, read without unpickling."""
    try:
        with path.open("rb") as file:
            held = np.load(file, allow_pickle=False)
            found = {n: held[n] for n in held.files}
        shapes = [f"{n} {a.shape}" for n, a in found.items()]
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        pickled = "allow_pickle" in str(error) and zipfile.is_zipfile(path)
        why = "it holds Python objects, which choral never unpickles" if pickled else str(error).strip()
        raise InputError(
            f"{path} cannot be read as an .npz file of arrays: {why or 'it is empty'}; make it with numpy.savez."
        ) from error
    for names in choices:
        if found.keys() >= set(names):
            return [found[n] for n in names]
    wanted = ", or ".join(", ".join(names) for names in choices)
    raise InputError(f"{path} holds {', '.join(shapes) or 'nothing'}; give {wanted}.")


def from_npz(path: Path) -> Problem:
    """Return the problem of an .npz file with x_train, y_train, x_test and y_test."""
    x_train, y_train, x_test, y_test = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    y_train = _checked(x_train, y_train, f"{path}: x_train, y_train")
    y_test = _checked(x_test, y_test, f"{path}: x_test, y_test")
    if x_train.shape[1:] != x_test.shape[1:] or (y_train.dtype.kind == "f") != (y_test.dtype.kind == "f"):
        raise InputError(
            f"{path}: x_train has rows of shape {x_train.shape[1:]} and x_test of {x_test.shape[1:]}, y_train holds {y_train.dtype} and y_test {y_test.dtype}."
        )
    return Problem(path.name, x_train, y_train, x_test, y_test)


def rows_in(path: Path, *, targets: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the inputs and targets of an .npz file, x_test and y_test or x and y; without `targets` x, or x_test, and None."""
    if targets:
        x, y = read_arrays(path, ("x_test", "y_test"), ("x", "y"))
        return x, _checked(x, y, f"{path}: x, y")
    (x,) = read_arrays(path, ("x",), ("x_test",))
    _checked(x, np.zeros(x.shape[:1]), f"{path}: x")
    return x, None


def _checked(x: np.ndarray, y: np.ndarray, where: str) -> np.ndarray:
    """Return valid targets of some inputs; booleans are classes."""
    try:
        TensorSource(x, y).settle(torch.float32)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if x.ndim < 2 or not x.size:
        raise InputError(
            f"{where}: the inputs have shape {x.shape}; give (row, feature) or (row, channel, height, width), at least one of each."
        )
    return y.astype(np.int64) if y.dtype.kind == "b" else y


def balanced(problem: Problem, asked: str | Mapping[str, float]) -> tuple[Problem, dict[str, float]]:
    """Return a problem whose training rows are weighted by class, and the weights by class name.

    'balanced' gives every class the same total weight, n / (classes * rows of the class), so that weights average 1 over the rows. Others are
    a dict by class, or text of the command line ('yes=5,no=1'), with 1 for classes not named. They multiply the weights of rows.
    """
    if problem.task != "classification" and problem.likelihood != "bernoulli":
        raise InputError(
            "class weights need a target of classes, and this one is a number; give a weight for each row, or leave them out."
        )
    labels = problem.y_train.astype(np.int64)
    if labels.ndim != 1:
        raise InputError(f"class weights are for one class a row, but y has shape {labels.shape}; leave them out.")
    names = problem.table.classes if problem.table is not None else ()
    names = names or tuple(map(str, range(int(labels.max()) + 1)))
    if asked == "balanced":
        counts = np.bincount(labels, minlength=len(names))
        each = {n: len(labels) / (np.count_nonzero(counts) * c) if c else 1.0 for n, c in zip(names, counts)}
    else:
        each = dict.fromkeys(names, 1.0) | _given(asked, names)
    weights = np.array([each[n] for n in names])[labels]
    return replace(problem, weights=weights if problem.weights is None else weights * problem.weights), each


def _given(asked: str | Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    """Return weights by class from a dict or from comma-separated CLASS=WEIGHT."""
    pairs = asked.items() if isinstance(asked, Mapping) else (p.rpartition("=")[::2] for p in asked.split(","))
    found: dict[str, float] = {}
    for name, weight in pairs:
        key = str(name or weight).strip()
        if key not in names or key in found:
            known = ", ".join(short(n, 20) for n in names[:10])
            raise InputError(
                f"class weights name {short(key)!r}{' twice' if key in found else ''}; the classes are {known}; write balanced, or each class once "
                f"with its weight, such as yes=5,no=1.{did_you_mean(key, names)}"
            )
        with suppress(ValueError):
            found[key] = float(weight)
        if not 0 <= found.get(key, math.nan) < math.inf:
            raise InputError(f"class weights name {short(key)!r} with {weight}; give a number of 0 or more.")
    return found
