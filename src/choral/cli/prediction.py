"""The command that predicts. A file of predictions is what its name ends in, and never written over an input."""

import io
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError, did_you_mean
from choral.cli.options import Json, Saved
from choral.cli.output import json_text, note, say, write_json

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".json", ".parquet", ".xlsx")
_SHOWN = 10  # rows in a terminal
_TOLD = 5.0  # seconds between words about progress


def predict(
    ensemble: Saved,
    data: Annotated[Path, typer.Argument(help="A table (.csv, .tsv, .parquet, .xlsx), or an .npz with x.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File for the predictions: .csv, .tsv, .json, .parquet or .xlsx; printed if left out."),
    ] = None,
    id: Annotated[
        list[str] | None, typer.Option(help="Column of the table to show beside predictions; may be repeated.")
    ] = None,
    keep_columns: Annotated[
        bool, typer.Option("--keep-columns", help="Show every column of the table beside predictions.")
    ] = False,
    json: Json = False,
) -> None:
    """Predict with a saved ensemble: one line for each row, with how sure it is.

    Example: choral predict runs/houses-auto new.csv --out predictions.csv
    """
    import pandas as pd

    from choral.deploy.stream import is_large
    from choral.fit import load

    if out is not None:
        _check_out(out, data, ensemble)
    loaded = load(ensemble)
    if out is not None and not json and is_large(data, out):
        done = _predict_large(loaded, data, out, id or [], everything=keep_columns)
        _say_unit(loaded.table)
        note(f"choral: {done} predictions written to {out}")
        return
    x, frame = rows_to_predict(loaded, data)
    beside = _beside(loaded, frame, data, id or [], keep_columns)
    own = predicted(loaded, x, str(data)).columns()
    _say_unit(loaded.table)
    names = free_names(list(beside), ("row", *own))
    found = pd.DataFrame({"row": range(len(x))} | {names[n]: v for n, v in beside.items()} | own)
    if out is not None:
        from choral.engine.files import write_bytes

        write_bytes(out, _encoded(out, found))
        note(f"choral: {len(found)} predictions written to {out}")
    if json:
        write_json(_records(found))
    elif out is None and sys.stdout.isatty():
        with pd.option_context("display.max_columns", 0, "display.float_format", _rounded):  # 0: as many as fit
            say(repr(found[:_SHOWN].set_index("row")))
        say(f"{min(len(found), _SHOWN)} of {len(found):,} rows, rounded; --out predictions.csv writes all of them.")
    elif out is None:
        sys.stdout.write(_csv(found))


def _predict_large(loaded: Any, data: Path, out: Path, ids: list[str], *, everything: bool) -> int:
    """Write the predictions of a large parquet file chunk by chunk; the same command goes on after a kill."""
    import pandas as pd

    from choral.deploy.stream import by_chunks
    from choral.tables.reading import as_frame

    check_kind(loaded, str(data))
    names, told = dict[str, str](), [time.monotonic()]

    def made(chunk: Any, first: int) -> Any:
        frame = as_frame(chunk.set_axis([str(name).strip() for name in chunk.columns], axis=1), str(data))
        own = predicted(loaded, loaded.table.inputs(frame, path=str(data)), str(data)).columns()
        if not names:  # said once
            names.update(free_names(beside_names(loaded, list(frame.columns), data, ids, everything), ("row", *own)))
        beside = {new: frame[name].array for name, new in names.items()}
        return pd.DataFrame({"row": range(first, first + len(frame))} | beside | own)

    def tell(done: int, rows: int) -> None:
        if time.monotonic() - told[0] > _TOLD:
            told[0] = time.monotonic()
            note(f"choral: {done:,} of {rows:,} rows; if this is stopped, the same command goes on")

    return by_chunks(data, out, made, key=f"{loaded._digest} {sorted(ids)} {everything}", tell=tell)


def predicted(loaded: Any, x: Any, name: str) -> Any:
    """Return the prediction of an ensemble; errors name the data."""
    try:
        return loaded._predictive(x)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _check_out(path: Path, data: Path, ensemble: Path) -> None:
    """Raise InputError unless a path says what to write, and is neither an input nor a file of the run."""
    from choral.engine.folder import belongs_to

    if not path.name.lower().endswith(ENDINGS):
        raise InputError(f"--out {path} does not say what to write; give a name ending in {', '.join(ENDINGS)}.")
    for name, other in (("the input", data), ("the ensemble", ensemble)):
        if path.exists() and other.exists() and os.path.samefile(path, other):
            raise InputError(f"--out {path} is {name}, which is never overwritten; give another name.")
    folder = ensemble if ensemble.is_dir() else ensemble.parent
    if any((folder / name).exists() for name in ("plan.json", "choice.json")) and belongs_to(folder, path):
        raise InputError(
            f"--out {path} belongs to the run in {folder}, which is never overwritten; give another name, such as "
            f"{folder / 'predictions.csv'}."
        )


def _encoded(path: Path, found: Any) -> bytes:
    """Return predictions as bytes of the kind of file that a path names."""
    name, held = path.name.lower(), io.BytesIO()
    if name.endswith(".json"):
        return json_text(_records(found)).encode()
    if name.endswith(".parquet"):
        found.to_parquet(held, index=False)
    elif name.endswith(".xlsx"):
        _without_formulas(found).to_excel(held, index=False)
    else:
        import gzip

        text = _csv(found, "\t" if ".tsv" in name else ",").encode()
        return gzip.compress(text, mtime=0) if name.endswith(".gz") else text
    return held.getvalue()


def _csv(found: Any, separator: str = ",") -> str:
    return str(_without_formulas(found).to_csv(index=False, sep=separator, lineterminator="\n"))


def _rounded(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"


def _records(found: Any) -> list[dict[str, Any]]:
    """Return rows as dicts of plain types, None for a missing value."""
    return found.astype(object).where(found.notna(), None).to_dict("records")


def _without_formulas(found: Any) -> Any:
    """Return a table whose names and cells no spreadsheet takes for a formula."""
    return found.rename(columns=plain_cell).map(plain_cell)


def plain_cell(value: Any) -> Any:
    """Return a value as a cell that no spreadsheet takes for a formula.

    >>> [plain_cell(v) for v in ("=1+1", "@a", "-1", "- a", -0.5, "b")]
    ["'=1+1", "'@a", '-1', "'- a", -0.5, 'b']
    """
    if isinstance(value, str) and value.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and value.strip(" "):
        try:
            float(value)
        except ValueError:
            return "'" + value
    return value


def _say_unit(table: Any) -> None:
    """Say in which unit numbers are predicted, if their column has one."""
    from choral.tables.table import unit_in_words

    if table is not None and table.task == "regression" and table.unit:
        note(f"choral: '{table.target}' is predicted as training had it: {unit_in_words(table.unit)}.")


def rows_to_predict(loaded: Any, data: Path) -> tuple[Any, Any]:
    """Return inputs as the ensemble was trained on, and the table they come from (None for arrays)."""
    from choral.data.arrays import read_inputs
    from choral.tables.reading import ENDINGS, ending, read_table

    check_kind(loaded, str(data))
    if ending(data):
        frame = read_table(data)
        return loaded.table.inputs(frame, path=str(data)), frame
    if data.suffix.lower() != ".npz" or not data.exists():
        what = "is of no kind choral reads" if data.exists() else "does not exist"
        raise InputError(f"{data} {what}; give a file ending in .npz, {', '.join(ENDINGS)}.")
    return read_inputs(data), None


def check_kind(loaded: Any, data: str) -> None:
    """Raise InputError for a table where an ensemble was fitted on arrays, or the other way round."""
    from choral.tables.reading import ending

    fitted_on_table = loaded.table is not None and bool(loaded.table.columns)
    if ending(Path(data)) and not fitted_on_table:
        raise InputError(f"{data} is a table, but this ensemble was fitted on arrays; give an .npz file.")
    if fitted_on_table and Path(data).suffix.lower() == ".npz":
        raise InputError(f"{data} holds arrays, but this ensemble was fitted on a table; give one with its columns.")


def _beside(loaded: Any, frame: Any, data: Path, ids: list[str], everything: bool) -> dict[str, Any]:
    """Return the columns of a table to show beside predictions, by name."""
    if frame is None:
        if ids or everything:
            raise InputError(
                f"{'--id' if ids else '--keep-columns'} is about a table, but {data} holds arrays; leave it out."
            )
        return {}
    wanted = beside_names(loaded, [str(c) for c in frame.columns], data, ids, everything)
    return {name: frame[name].array for name in wanted}


def beside_names(loaded: Any, names: list[str], data: Path, ids: list[str], everything: bool) -> list[str]:
    """Return which of a table's columns to show beside predictions."""
    for name in ids:
        if name not in names:
            shown = ", ".join(names[:20])
            raise InputError(f"--id: {data} has no column '{name}'; it has {shown}.{did_you_mean(name, names)}")
    return names if everything else [*dict.fromkeys([*(n for n in loaded.table.beside if n in names), *ids])]


def free_names(names: list[str], own: tuple[str, ...]) -> dict[str, str]:
    """Return a name of its own for each column of the table: another one where predictions have one of the same name.

    >>> free_names(["mean", "input_mean", "size"], ("mean",))
    {'mean': 'input_mean_2', 'input_mean': 'input_mean', 'size': 'size'}
    """
    taken, found = {*names, *own}, {}
    for name in names:
        found[name] = name
        if name in own:
            free = (f"input_{name}" + (f"_{i}" if i > 1 else "") for i in count(1))
            found[name] = next(other for other in free if other not in taken)
            taken.add(found[name])
            note(f"choral: the table's column '{name}' is shown as '{found[name]}': predictions have one of that name.")
    return found
