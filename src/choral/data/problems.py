"""Problems: training and test data with what is known about them, by name or from a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from choral.base.errors import InputError, did_you_mean
from choral.data.arrays import read_arrays
from choral.data.tables import encode_inputs, encode_target, learn_encoding, read_table

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
    table: dict[str, Any] | None = None
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
    shift, scale = float(y[train].mean()), float(y[train].std())
    scaled = ((y[train] - shift) / scale).astype(np.float32)
    table = {"target_mean": shift, "target_std": scale}
    return Problem(name, x[train], scaled, x[test], y[test].astype(np.float32), table)


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


def _from_table(path: Path, target: str | None, task: str | None, holdout: float, seed: int) -> Problem:
    if target is None:
        raise InputError(f"{path} is a table, so the column to predict must be named; add --target COLUMN.")
    frame = read_table(path)
    train, test = split(len(frame), holdout, seed)
    whole = learn_encoding(frame, target, task=task, path=str(path))  # checks every row; knows every category and class
    encoding = whole | learn_encoding(frame.iloc[train], target, task=whole["task"], path=str(path))
    encoding["reason"] = whole["reason"]
    if "classes" in whole:
        encoding["classes"] = whole["classes"]
    for column, full in zip(encoding["columns"], whole["columns"]):
        if column["kind"] == "category":
            column["values"] = full["values"]
    parts = [frame.iloc[train], frame.iloc[test]]
    x_train, x_test = (encode_inputs(p, encoding, path=str(path)) for p in parts)
    y_train = encode_target(parts[0], encoding, scaled=True)
    return Problem(path.name, x_train, y_train, x_test, encode_target(parts[1], encoding, scaled=False), encoding)


def load_problem(
    data: str, *, target: str | None = None, task: str | None = None, holdout: float = 0.25, seed: int = 0
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
