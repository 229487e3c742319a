"""Problems: training and test data with what is known about them, by name or from a file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from choral.base.errors import InputError, did_you_mean
from choral.data.arrays import read_arrays
from choral.data.columns import Scale
from choral.data.tables import Kind, Table, learn_table, read_table

BUILT_IN = ("digits", "diabetes", "wine", "breast_cancer")


@dataclass(frozen=True)
class Problem:
    """Data to fit and data to judge by.

    Attributes:
        name: where it came from.
        x_train, y_train: training data; real targets are in training units.
        x_test, y_test: test data; real targets are in their own units.
        table: how a table's columns became inputs, or the scale of the target; None for plain arrays.
        image_shape: height and width, where inputs are images stored flat.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    table: Table | None = None
    image_shape: tuple[int, int] | None = None

    @property
    def task(self) -> str:
        """'classification' for integer targets, else 'regression'."""
        return "classification" if self.y_train.dtype.kind in "iub" else "regression"

    @property
    def outputs(self) -> int:
        """Outputs a network needs: one for each class, or mean and variance of each target."""
        if self.task == "classification":
            return int(max(self.y_train.max(), self.y_test.max() if len(self.y_test) else 0)) + 1
        return 2 * (1 if self.y_train.ndim == 1 else self.y_train.shape[1])


def split(rows: int, holdout: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shuffled row numbers for training and test."""
    order = np.random.default_rng(seed).permutation(rows)
    count = round(rows * holdout)
    return np.sort(order[count:]), np.sort(order[:count])


def _built_in(name: str, holdout: float, seed: int) -> Problem:
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    train, test = split(len(x), holdout, seed)
    if name == "digits":
        x = (x / 16.0).astype(np.float32)
    else:
        mean, std = x[train].mean(0), x[train].std(0)
        x = ((x - mean) / np.where(std > 0, std, 1)).astype(np.float32)
    if name != "diabetes":
        shape = (8, 8) if name == "digits" else None
        y = y.astype(np.int64)
        return Problem(name, x[train], y[train], x[test], y[test], image_shape=shape)
    scale = Scale.of(y[train])
    scaled = scale.apply(y[train]).astype(np.float32)
    return Problem(name, x[train], scaled, x[test], y[test].astype(np.float32), Table(scale=scale))


def _from_npz(path: Path) -> Problem:
    arrays = read_arrays(path)
    wanted = ("x_train", "y_train", "x_test", "y_test")
    absent = [n for n in wanted if n not in arrays]
    if absent:
        raise InputError(f"{path} lacks {', '.join(absent)}; it holds {', '.join(arrays)}; give {', '.join(wanted)}.")
    for name in ("y_train", "y_test"):
        if arrays[name].dtype.kind not in "iufb":
            raise InputError(f"{path}: {name} holds {arrays[name].dtype}, not numbers; encode labels as 0, 1, 2, ...")
    x_train, y_train, x_test, y_test = (arrays[n] for n in wanted)
    return Problem(path.name, x_train, y_train, x_test, y_test)


def _from_table(path: Path, target: str | None, task: Kind | None, holdout: float, seed: int) -> Problem:
    if target is None:
        raise InputError(f"{path} is a table, so the column to predict must be named; add --target COLUMN.")
    frame = read_table(path)
    train, test = split(len(frame), holdout, seed)
    table = learn_table(frame, target, task=task, rows=train, path=str(path))
    x = table.inputs(frame, path=str(path))
    y_train, y_test = (table.targets(frame.iloc[rows], scaled=s) for rows, s in ((train, True), (test, False)))
    return Problem(path.name, x[train], y_train, x[test], y_test, table)


def load_problem(
    data: str, *, target: str | None = None, task: Kind | None = None, holdout: float = 0.25, seed: int = 0
) -> Problem:
    """Return a problem by name or from a file.

    Args:
        data: a built-in name (digits, diabetes, wine, breast_cancer: they ship inside scikit-learn), an .npz file with x_train,
            y_train, x_test, y_test, or a .csv or .parquet table.
        target: the column to predict, for a table.
        task: 'classification' or 'regression'; guessed from the target if None.
        holdout: part of the rows kept for testing (not for .npz, which says itself).
        seed: decides the split; not the seed of training.
    """
    if task not in (None, "classification", "regression"):
        raise InputError(f"task is {task!r}; give 'classification' or 'regression'.")
    if data in BUILT_IN:
        return _built_in(data, holdout, seed)
    path = Path(data)
    if path.suffix not in (".npz", ".csv", ".parquet"):
        raise InputError(
            f"data is '{data}'; give one of {', '.join(BUILT_IN)}, or a file ending in .npz, .csv or .parquet."
            + did_you_mean(data, BUILT_IN)
        )
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path of the data.")
    return _from_npz(path) if path.suffix == ".npz" else _from_table(path, target, task, holdout, seed)
