"""The command that predicts."""

import sys
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError, did_you_mean
from choral.cli import writing
from choral.cli.display import note, write_csv, write_json
from choral.cli.options import Json, Saved


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
        writing.check_beside(out, ensemble)
        writing.check_out(out, {"the input": data, "the ensemble": ensemble})
    loaded = load(ensemble)
    x, frame = rows_to_predict(loaded, data)
    beside = _beside(loaded, frame, data, id or [], keep_columns)
    own = predicted(loaded, x, str(data)).columns()
    _say_unit(loaded.table)
    names = _free_names(list(beside), ("row", *own))
    columns = {"row": range(len(x))} | {names[n]: v for n, v in beside.items()} | own
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    if out is not None:
        writing.write_rows(out, rows)
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
