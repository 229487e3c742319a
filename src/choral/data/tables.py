"""Tables (CSV, Parquet) as training data: numbers standardised, categories one-hot, the rules kept for prediction."""

from pathlib import Path
from typing import Any

import numpy as np

from choral.base.errors import InputError, did_you_mean

_FEW = 20  # integer targets with at most this many different values are read as classes


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


def _check_column(frame: Any, name: str, path: str) -> None:
    if name not in frame.columns:
        known = [str(c) for c in frame.columns]
        raise InputError(f"{path} has no column '{name}'; it has {', '.join(known)}.{did_you_mean(name, known)}")


def _check_missing(frame: Any, path: str) -> None:
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


def _is_number(column: Any) -> bool:
    return column.dtype.kind in "fiu"


def guess_task(column: Any) -> tuple[str, str]:
    """Return 'classification' or 'regression' for a target column, and the reason in words."""
    values = column.nunique()
    if not _is_number(column):
        return "classification", f"its {values} values are not numbers"
    if column.dtype.kind in "iu" and values <= _FEW:
        return "classification", f"it holds only {values} different whole numbers"
    return "regression", f"it holds {values} different numbers"


def learn_encoding(frame: Any, target: str, *, task: str | None = None, path: str = "the table") -> dict[str, Any]:
    """Return how a table's columns become inputs and targets, learned from training rows (JSON types only)."""
    _check_column(frame, target, path)
    _check_missing(frame, path)
    guessed, reason = guess_task(frame[target])
    decided = task or guessed
    columns: list[dict[str, Any]] = []
    for name in frame.columns:
        if name == target:
            continue
        column = frame[name]
        if _is_number(column):
            values = column.to_numpy(np.float64)
            if not np.isfinite(values).all():
                raise InputError(f"{path}: column '{name}' holds infinite values; replace them first.")
            std = float(values.std())
            columns.append(
                {"name": name, "kind": "number", "mean": float(values.mean()), "std": std if std > 0 else 1.0}
            )
        else:
            known = sorted({str(v) for v in column})
            columns.append({"name": name, "kind": "category", "values": known})
    if not columns:
        raise InputError(f"{path} has no column besides the target '{target}'; add at least one input column.")
    encoding: dict[str, Any] = {"target": target, "task": decided, "reason": reason if task is None else "as asked"}
    encoding["columns"] = columns
    if decided == "classification":
        values = frame[target]
        ordered = sorted(values.unique()) if _is_number(values) else sorted({str(v) for v in values})
        encoding["classes"] = [str(v) for v in ordered]
        if len(ordered) < 2:
            raise InputError(
                f"{path}: the target '{target}' has a single value, {ordered[0]}; there is nothing to learn."
            )
    else:
        if not _is_number(frame[target]):
            raise InputError(
                f"{path}: the target '{target}' holds text, so it cannot be a regression; use classification."
            )
        numbers = frame[target].to_numpy(np.float64)
        encoding |= {"target_mean": float(numbers.mean()), "target_std": float(numbers.std()) or 1.0}
    return encoding


def encode_inputs(frame: Any, encoding: dict[str, Any], *, path: str = "the table") -> np.ndarray:
    """Return the input matrix of a table under a learned encoding, float32 (row, feature)."""
    wanted = [c["name"] for c in encoding["columns"]]
    for name in wanted:
        _check_column(frame, name, path)
    _check_missing(frame[wanted], path)
    parts = []
    for column in encoding["columns"]:
        values = frame[column["name"]]
        if column["kind"] == "number":
            if not _is_number(values):
                raise InputError(f"{path}: column '{column['name']}' holds text where training had numbers.")
            parts.append(((values.to_numpy(np.float64) - column["mean"]) / column["std"])[:, None])
        else:
            text = values.astype(str).to_numpy()
            odd = sorted(set(text) - set(column["values"]))
            if odd:
                raise InputError(
                    f"{path}: column '{column['name']}' holds {odd[0]!r}, which was not in the training data; "
                    f"known values: {', '.join(column['values'][:10])}."
                )
            parts.append((text[:, None] == np.array(column["values"])[None, :]).astype(np.float64))
    return np.concatenate(parts, 1).astype(np.float32)


def encode_target(frame: Any, encoding: dict[str, Any], *, scaled: bool) -> np.ndarray:
    """Return targets: class numbers (int64), or real numbers (float32), in training units if `scaled`."""
    column = frame[encoding["target"]]
    if encoding["task"] == "classification":
        number = {name: i for i, name in enumerate(encoding["classes"])}
        text = [str(v) for v in column]
        odd = sorted(set(text) - set(number))
        if odd:
            raise InputError(
                f"the target '{encoding['target']}' holds {odd[0]!r}, a class the training data did not have."
            )
        return np.array([number[v] for v in text], dtype=np.int64)
    values = column.to_numpy(np.float64)
    if scaled:
        values = (values - encoding["target_mean"]) / encoding["target_std"]
    return values.astype(np.float32)
