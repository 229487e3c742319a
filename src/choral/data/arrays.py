"""Arrays from an .npz file, without unpickling, and checked to belong together."""

import zipfile
from pathlib import Path

import numpy as np

from choral.base.errors import InputError, warn

LARGEST = 1e30  # of a number; beyond it float32 cannot square what a network sees


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; InputError says what is wrong with any other file."""
    try:
        held = np.load(path, allow_pickle=False)
        return {n: held[n] for n in held.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        pickled = "allow_pickle" in str(error) and zipfile.is_zipfile(path)
        why = "it holds Python objects, which choral never unpickles" if pickled else str(error).strip()
        raise InputError(
            f"{path} cannot be read as an .npz file of arrays: {why or 'it is empty'}; make it with numpy.savez."
        ) from error


def read_problem(path: Path, *, classes: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x_train, y_train, x_test and y_test of a file, checked to belong together.

    Args:
        path: the .npz file.
        classes: whether whole numbers are classes, which are checked as such.
    """
    held = read_arrays(path)
    wanted = ("x_train", "y_train", "x_test", "y_test")
    absent = [n for n in wanted if n not in held]
    if absent:
        names = ", ".join(held) or "nothing"
        raise InputError(f"{path} lacks {', '.join(absent)}; it holds {names}; give {', '.join(wanted)}.")
    for part in ("_train", "_test"):
        _check_pair(held, part, path)
    x_train, y_train, x_test, y_test = (held[n] for n in wanted)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise InputError(
            f"{path}: x_train has rows of shape {x_train.shape[1:]} and x_test of {x_test.shape[1:]}; make them equal."
        )
    y_train, y_test = (y.astype(np.int64) if y.dtype.kind == "b" else y for y in (y_train, y_test))
    if (y_train.dtype.kind == "f") != (y_test.dtype.kind == "f"):
        raise InputError(
            f"{path}: y_train holds {y_train.dtype} and y_test {y_test.dtype}; give whole numbers (classes) or real numbers "
            "(regression) in both."
        )
    if classes:
        _check_targets(y_train, y_test, path)
    return x_train, y_train, x_test, y_test


def read_labeled(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the labeled rows of an .npz file: x_test and y_test, or x and y."""
    held = read_arrays(path)
    part = "_test" if "x_test" in held else ""
    absent = [n for n in (f"x{part}", f"y{part}") if n not in held]
    if absent:
        names = ", ".join(held) or "nothing"
        raise InputError(f"{path} lacks {', '.join(absent)}; it holds {names}; give x_test and y_test, or x and y.")
    _check_pair(held, part, path)
    y = held[f"y{part}"]
    if y.dtype.kind != "f" and int(y.min()) < 0:
        raise InputError(f"{path}: y{part} holds the negative label {int(y.min())}; number the classes 0, 1, 2, ...")
    return held[f"x{part}"], y.astype(np.int64) if y.dtype.kind == "b" else y


def _check_pair(held: dict[str, np.ndarray], part: str, path: Path) -> None:
    """Raise InputError unless inputs and targets are sound, and as many."""
    for axes, letter in ((2, "x"), (1, "y")):
        check_array(held[letter + part], f"{path}: {letter}{part}", axes=axes)
    x, y = len(held[f"x{part}"]), len(held[f"y{part}"])
    if x != y:
        raise InputError(f"{path}: x{part} has {x:,} rows and y{part} {y:,}; give as many of both.")


def check_array(values: np.ndarray, name: str, *, axes: int) -> None:
    """Raise InputError unless an array holds at least one row of numbers that a network can use.

    Args:
        values: the array.
        name: what to call it.
        axes: the least it must have; the first counts rows.
    """
    if values.dtype.kind not in "iufb":
        advice = "encode labels as 0, 1, 2, ..." if axes == 1 else "encode every column as numbers"
        raise InputError(f"{name} holds {values.dtype}, not numbers; {advice}.")
    if values.ndim < axes:
        wanted = "(row,)" if axes == 1 else "(row, feature) or (row, channel, height, width)"
        raise InputError(f"{name} has shape {values.shape}; give {wanted}.")
    if not len(values) or not values.size:
        raise InputError(f"{name} has {len(values)} rows of {values[:1].size} numbers; give at least one of both.")
    if values.dtype.kind == "f":
        flat = values.reshape(len(values), -1)
        bad = ~np.isfinite(flat).all(1)
        if bad.any():
            raise InputError(
                f"{name}: NaN or infinite values in {bad.sum():,} row(s), the first {_first(bad)}; drop them."
            )
        bad = (np.abs(flat) > LARGEST).any(1)
        if bad.any():
            raise InputError(
                f"{name} holds numbers above {LARGEST:g} in {bad.sum():,} row(s), the first {_first(bad)}, too large for a "
                "network; rescale them."
            )


def _first(rows: np.ndarray) -> int:
    return int(np.flatnonzero(rows)[0])


def _check_targets(train: np.ndarray, test: np.ndarray, path: Path) -> None:
    if train.dtype.kind == "f":
        if len(train) > 1 and (train == train[:1]).all():
            raise InputError(f"{path}: y_train has the same value in every row; there is nothing to learn.")
        return
    known, asked = np.unique(train), np.unique(test)
    highest, lowest = max(int(known[-1]), int(asked[-1])), min(int(known[0]), int(asked[0]))
    if lowest < 0:
        raise InputError(f"{path}: y holds the negative label {lowest}; number the classes 0, 1, 2, ...")
    if len(known) < 2:
        raise InputError(f"{path}: y_train holds a single class, {known[0]}; there is nothing to learn.")
    if highest + 1 > 2 * len(np.union1d(known, asked)) + 10:
        raise InputError(
            f"{path}: y holds {len(np.union1d(known, asked)):,} different labels up to {highest:,}, and a network has one output "
            "for each number up to the highest; number the classes 0, 1, 2, ..., or give real numbers for a regression."
        )
    strange = np.setdiff1d(asked, known)
    if len(strange) == len(asked):
        raise InputError(f"{path}: y_test holds the class {strange[0]}, but y_train none of its classes; mix the rows.")
    if len(strange):
        rows = int(np.isin(test, strange).sum())
        warn(
            f"{path}: y_test holds the class {strange[0]}, which y_train does not have; such rows ({rows:,}) cannot be predicted right.",
        )


def read_inputs(path: Path) -> np.ndarray:
    """Return the inputs of an .npz file to predict: x, or x_test."""
    held = read_arrays(path)
    found = next((held[n] for n in ("x", "x_test") if n in held), None)
    if found is None:
        raise InputError(f"{path} holds {', '.join(held) or 'nothing'}; give the inputs as x.")
    check_array(found, f"{path}: x", axes=2)
    return found
