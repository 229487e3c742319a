"""The command that predicts.

Files of predictions: each is what its name ends in, written whole or not at all, and never over an input.
"""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError, did_you_mean
from choral.cli.options import Json, Saved
from choral.cli.output import note, plain_cell, write_csv, write_json

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".json", ".parquet", ".xlsx")


def check_out(path: Path, inputs: Mapping[str, Path]) -> None:
    """Raise InputError unless predictions can be written to a path.

    Args:
        path: where to.
        inputs: files that are read, by what they are called; none of them may be overwritten.
    """
    kind = _ending(path)
    if path.is_dir():
        raise InputError(f"--out {path} is a folder; give a file such as {path / 'predictions.csv'}.")
    if not kind:
        raise InputError(f"--out {path} does not say what to write; give a name ending in {', '.join(ENDINGS)}.")
    if not path.parent.is_dir():
        raise InputError(f"--out {path} cannot be written: there is no folder {path.parent}; make it first.")
    for name, other in inputs.items():
        if path.exists() and other.exists() and os.path.samefile(path, other):
            raise InputError(f"--out {path} is {name}, which is never overwritten; give another name.")
    package = {".parquet": "pyarrow", ".xlsx": "openpyxl"}.get(kind)
    if package is not None:
        from importlib.util import find_spec

        absent = [p for p in ("pandas", package) if find_spec(p) is None]
        if absent:
            raise InputError(
                f"--out {path}: writing {kind} needs {absent[0]}; install it, or give a name ending in .csv."
            )


def check_beside(path: Path, ensemble: Path) -> None:
    """Raise InputError if predictions would be written over something of the run they come from.

    Args:
        path: where to.
        ensemble: the run folder, or a file saved in one.
    """
    from choral.engine.folder import belongs_to

    folder = ensemble if ensemble.is_dir() else ensemble.parent
    if any((folder / name).exists() for name in ("plan.json", "choice.json")) and belongs_to(folder, path):
        raise InputError(
            f"--out {path} belongs to the run in {folder}, which is never overwritten; give another name, such as "
            f"{folder / 'predictions.csv'}."
        )


def _ending(path: Path) -> str:
    name = path.name.lower()
    return max((e for e in ENDINGS if name.endswith(e)), key=len, default="")


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to a file that `check_out` has accepted."""
    from choral.engine.files import write_bytes

    write_bytes(path, _encoded(_ending(path), rows))


def _encoded(kind: str, rows: Sequence[dict[str, Any]]) -> bytes:
    if kind == ".json":
        from choral.cli.output import json_text

        return json_text(rows).encode()
    if kind in (".parquet", ".xlsx"):
        import pandas as pd

        frame, held = pd.DataFrame(rows), io.BytesIO()
        if kind == ".parquet":
            frame.to_parquet(held, index=False)
        else:
            frame.map(plain_cell).to_excel(held, index=False)
        return held.getvalue()
    text = io.StringIO(newline="")
    write_csv(text, rows, separator="\t" if kind.startswith(".tsv") else ",")
    data = text.getvalue().encode()
    if kind.endswith(".gz"):
        import gzip

        return gzip.compress(data, mtime=0)
    return data


def predict(
    ensemble: Saved,
    data: Annotated[Path, typer.Argument(help="A table (.csv, .tsv, .parquet, .xlsx), or an .npz with x.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the predictions: .csv, .tsv, .json, .parquet or .xlsx; printed if left out."
        ),
    ] = None,
    id: Annotated[
        list[str] | None, typer.Option("--id", help="Column of the table to show beside predictions; may be repeated.")
    ] = None,
    keep_columns: Annotated[
        bool, typer.Option("--keep-columns", help="Show every column of the table beside predictions.")
    ] = False,
    json: Json = False,
) -> None:
    """Predict with a saved ensemble: one line for each row, with how sure it is."""
    from choral.fit import load

    if out is not None:
        check_beside(out, ensemble)
        check_out(out, {"the input": data, "the ensemble": ensemble})
    loaded = load(ensemble)
    x, frame = rows_to_predict(loaded, data)
    beside = _beside(loaded, frame, data, id or [], keep_columns)
    own = predicted(loaded, x, str(data)).columns()
    _say_unit(loaded.table)
    names = _free_names(list(beside), ("row", *own))
    columns = {"row": range(len(x))} | {names[n]: v for n, v in beside.items()} | own
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    if out is not None:
        write_rows(out, rows)
        note(f"choral: {len(rows)} predictions written to {out}")
    if json:
        write_json(rows)
    elif out is None:
        write_csv(sys.stdout, rows)


def _say_unit(table: Any) -> None:
    """Say in which unit numbers are predicted, if their column has one."""
    from choral.tables.table import unit_in_words

    if table is not None and table.task == "regression" and table.unit:
        note(f"choral: '{table.target}' is predicted as training had it: {unit_in_words(table.unit)}.")


def rows_to_predict(loaded: Any, data: Path) -> tuple[Any, Any]:
    """Return inputs as the ensemble was trained on, and the table they come from (None for arrays)."""
    from choral.data.arrays import read_inputs
    from choral.tables.reading import ENDINGS, ending, read_table

    fitted_on_table = loaded.table is not None and bool(loaded.table.columns)
    if ending(data):
        if not fitted_on_table:
            raise InputError(f"{data} is a table, but this ensemble was fitted on arrays; give an .npz file with x.")
        frame = read_table(data)
        return loaded.table.inputs(frame, path=str(data)), frame
    if data.suffix.lower() != ".npz":
        raise InputError(f"{data} is of no kind choral reads; give a file ending in .npz, {', '.join(ENDINGS)}.")
    if not data.exists():
        raise InputError(f"{data} does not exist; check the path of the data.")
    if fitted_on_table:
        raise InputError(
            f"{data} holds arrays, but this ensemble was fitted on a table; give a table with its columns."
        )
    return read_inputs(data), None


def predicted(loaded: Any, x: Any, name: str) -> Any:
    """Return the prediction of an ensemble; InputError if its networks cannot read rows of this shape."""
    try:
        return loaded._predictive(x)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise
        reason = " ".join(str(error).split())
        raise InputError(
            f"the ensemble cannot read rows of these shapes: {name} {tuple(x.shape[1:])} ({reason[:200]}); give data like its "
            "own."
        ) from error


def _beside(loaded: Any, frame: Any, data: Path, ids: list[str], everything: bool) -> dict[str, Any]:
    """Return the columns of a table to show beside predictions, by name."""
    if frame is None:
        if ids or everything:
            raise InputError(
                f"{'--id' if ids else '--keep-columns'} is about a table, but {data} holds arrays; leave it out."
            )
        return {}
    names = [str(c) for c in frame.columns]
    for name in ids:
        if name not in names:
            shown = ", ".join(names[:20])
            raise InputError(f"--id: {data} has no column '{name}'; it has {shown}.{did_you_mean(name, names)}")
    wanted = names if everything else list(dict.fromkeys([*(n for n in loaded.table.beside if n in names), *ids]))
    return {name: [_shown(v) for v in frame[name]] for name in wanted}


def _free_names(names: list[str], own: tuple[str, ...]) -> dict[str, str]:
    """Return a name of its own for each column of the table: another one where predictions have one of the same name.

    >>> _free_names(["mean", "input_mean", "size"], ("mean",))
    {'mean': 'input_mean_2', 'input_mean': 'input_mean', 'size': 'size'}
    """
    taken, found = {*names, *own}, {}
    for name in names:
        found[name] = name
        if name in own:
            free = (f"input_{name}" + (f"_{i}" if i > 1 else "") for i in count(1))
            found[name] = next(other for other in free if other not in taken)
            taken.add(found[name])
            note(
                f"choral: the table's column '{name}' is shown as '{found[name]}', since predictions have one of that name."
            )
    return found


def _shown(value: Any) -> Any:
    """Return a cell of a data frame as a plain type."""
    import pandas as pd

    if isinstance(value, str):
        return value
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value if isinstance(value, bool | int | float) else str(value)
