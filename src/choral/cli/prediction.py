"""The commands that use a saved ensemble: predict, export and serve.

The ending of a file name decides its format; predictions never overwrite an input.
"""

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError
from choral.base.text import number
from choral.cli.options import Json, Saved
from choral.cli.output import json_text, note, say, write_json

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".json", ".parquet", ".xlsx")
_SHOWN = 10  # rows in a terminal
_TOLD = 5.0  # seconds between words about progress
_FORMULA = re.compile(r" *(?![-+]?(?:\d+\.?\d*|\.\d+|inf|nan)(?:e[-+]?\d+)?\s*$)[=+\-@\t\r\n]", re.IGNORECASE)


def predict(
    ensemble: Saved,
    data: Annotated[Path, typer.Argument(help="A table (.csv, .tsv, .parquet, .xlsx), or an .npz with x.")],
    out: Annotated[Path | None, typer.Option(help="File to write: .csv, .tsv, .json, .parquet or .xlsx.")] = None,
    id: Annotated[list[str] | None, typer.Option(help="Column to show next to predictions; may be repeated.")] = None,
    keep_columns: Annotated[bool, typer.Option("--keep-columns", help="Show all columns next to predictions.")] = False,
    level: Annotated[float, typer.Option(min=0.01, max=0.999, help="Coverage of the intervals of numbers.")] = 0.95,
    json: Json = False,
) -> None:
    """Predict with a saved ensemble: one line for each row, with its uncertainty.

    Example: choral predict runs/houses-auto new.csv --out predictions.csv
    """
    import pandas as pd

    from choral.deploy.stream import is_large
    from choral.engine.files import write_bytes
    from choral.fit import load
    from choral.tables.table import unit_in_words

    if out is not None:
        _check_out(out, data, ensemble)
    loaded = load(ensemble)
    about = loaded.table
    if about is not None and about.task == "regression" and about.unit:
        note(f"choral: '{about.target}' is predicted as in the training data: {unit_in_words(about.unit)}.")

    def shown(x: Any, frame: Any, first: int = 0) -> Any:
        with called(data):
            own = loaded._predictive(x).columns(level)
        beside = _beside(loaded, frame, data, id or [], ("row", *own), everything=keep_columns, tell=first == 0)
        return pd.DataFrame({"row": range(first, first + len(x))} | beside | own)

    if out is not None and not json and is_large(data, out):
        check_kind(loaded, data)
        key = f"{loaded._digest} {id or []} {level} {keep_columns}"
        done = _write_large(lambda frame, first: shown(frame, frame, first), data, out, key)
        note(f"choral: {done:,} predictions written to {out}")
        return
    x, _, frame = read_rows(loaded, data)
    found = shown(x, frame)
    if out is not None:
        write_bytes(out, _encoded(out.name.lower(), found))
        note(f"choral: {len(found)} predictions written to {out}")
    if json:
        sys.stdout.write(_records(found))
    elif out is None and sys.stdout.isatty():
        with pd.option_context("display.max_columns", 0, "display.float_format", number):  # 0: as many as fit
            say(repr(found[:_SHOWN].set_index("row")))
        say(f"{min(len(found), _SHOWN)} of {len(found):,} rows, rounded; --out predictions.csv writes all of them.")
    elif out is None:
        sys.stdout.write(_encoded(".csv", found).decode())


def _write_large(make: Callable[[Any, int], Any], data: Path, out: Path, key: str) -> int:
    from choral.deploy.stream import by_chunks

    told, name = [time.monotonic()], out.name.lower()

    def tell(done: int) -> None:
        if time.monotonic() - told[0] > _TOLD:
            told[0] = time.monotonic()
            note(f"choral: {done:,} rows; if this is stopped, the same command resumes")

    encode = None if name.endswith(".parquet") else lambda found, first: _encoded(name, found, header=first)
    return by_chunks(data, out, make, key=key, tell=tell, encode=encode)


@contextmanager
def called(data: Any) -> Iterator[None]:
    """Name the data in errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{data}: {error}") from error


def _check_out(path: Path, data: Path, ensemble: Path) -> None:
    """Raise InputError unless a path has a known ending and is neither an input nor a file of the run."""
    from choral.engine.folder import belongs_to

    if not path.name.lower().endswith(ENDINGS):
        raise InputError(f"--out {path} has no known ending; give a name ending in {', '.join(ENDINGS)}.")
    for name, other in (("the input", data), ("the ensemble", ensemble)):
        if path.exists() and other.exists() and os.path.samefile(path, other):
            raise InputError(f"--out {path} is {name}, which is never overwritten; give another name.")
    folder = ensemble if ensemble.is_dir() else ensemble.parent
    if any((folder / name).exists() for name in ("plan.json", "choice.json")) and belongs_to(folder, path):
        raise InputError(
            f"--out {path} belongs to the run in {folder}, which is never overwritten; give another name, such as "
            f"{folder / 'predictions.csv'}."
        )


def _encoded(name: str, found: Any, *, header: bool = True) -> bytes:
    """Return predictions as bytes in the format of a file name; no text is a formula to a spreadsheet."""
    held, safe = io.BytesIO(), found.rename(columns=plain_cell).map(plain_cell)
    if name.endswith(".json"):
        held.write(_records(found).encode())
    elif name.endswith(".parquet"):
        found.to_parquet(held, index=False)
    elif name.endswith(".xlsx"):
        safe.to_excel(held, index=False)
    else:
        packed = {"method": "gzip", "mtime": 0} if name.endswith(".gz") else None
        mark = "\t" if ".tsv" in name else ","
        safe.to_csv(held, index=False, header=header, sep=mark, lineterminator="\n", compression=packed)
    return held.getvalue()


def _records(found: Any) -> str:
    return json_text(found.astype(object).where(found.notna(), None).to_dict("records"))


def plain_cell(value: Any) -> Any:
    """Return a value that a spreadsheet does not take for a formula.

    >>> [plain_cell(v) for v in ("=1+1", "@a", "-1", "- a", -0.5, "b")]
    ["'=1+1", "'@a", '-1', "'- a", -0.5, 'b']
    """
    return f"'{value}" if _FORMULA.match(str(value)) else value


def read_rows(loaded: Any, data: Path, *, targets: bool = False) -> tuple[Any, Any, Any]:
    """Return a file's inputs as in training, its targets if wanted, and the table (None for arrays)."""
    from choral.data.problems import rows_in
    from choral.tables.reading import ENDINGS, ending, read_table
    from choral.tables.table import with_target

    table = loaded.table
    check_kind(loaded, data)
    if ending(data):
        frame = read_table(data)
        frame = with_target(frame, table.target, str(data)) if targets else frame
        y = table.targets(frame, path=str(data)) if targets else None
        return table.inputs(frame, path=str(data)), y, frame
    if data.suffix.lower() != ".npz":
        raise InputError(f"{data} cannot be read; give a file ending in .npz, {', '.join(ENDINGS)}.")
    return *rows_in(data, targets=targets), None


def check_kind(loaded: Any, data: Path) -> None:
    """Raise InputError for a table if the ensemble was fitted on arrays, or the other way round."""
    from choral.tables.reading import ending

    on_table = loaded.table is not None and bool(loaded.table.columns)
    if ending(data) and not on_table:
        raise InputError(f"{data} is a table, but this ensemble was fitted on arrays; give an .npz file.")
    if on_table and data.suffix.lower() == ".npz":
        raise InputError(f"{data} holds arrays, but this ensemble was fitted on a table; give one with its columns.")


def _beside(
    loaded: Any, frame: Any, data: Path, ids: list[str], own: tuple[str, ...], *, everything: bool, tell: bool = True
) -> dict[str, Any]:
    """Return the columns of a table to show next to predictions, under unique names; `tell` prints the changed ones."""
    if frame is None:
        if ids or everything:
            asked = "--id" if ids else "--keep-columns"
            raise InputError(f"{asked} is for tables, but {data} contains arrays; leave it out.")
        return {}
    from choral.tables.table import check_column

    names, found = list(frame.columns), {}
    for name in ids:
        check_column(frame, name, f"--id: {data}")
    for name in names if everything else [*(n for n in loaded.table.beside if n in names), *ids]:
        free = name
        while free in own or (free != name and free in names):
            free = f"input_{free}"
        if free != name and tell:
            note(f"choral: the table's column '{name}' is shown as '{free}': predictions have one of that name.")
        found[free] = frame[name].array
    return found


def export(
    ensemble: Saved,
    to: Annotated[Path, typer.Option(help="The file to write: .onnx, or .pt2 for torch.export.")],
    data: Annotated[Path | None, typer.Option(help="Rows to test the graph with.")] = None,
    members: Annotated[bool, typer.Option("--members", help="Also return the predictions of each member.")] = False,
    json: Json = False,
) -> None:
    """Export a saved ensemble as one graph that predicts with its uncertainty, without choral.

    Example: choral export runs/houses-auto --to model.onnx
    """
    from choral.deploy.export import describe
    from choral.fit import load

    loaded = load(ensemble)
    x, _, frame = (None, None, None) if data is None else read_rows(loaded, data)
    loaded.export(to, x if frame is None else frame, with_members=members)
    about = describe(loaded)
    if json:
        write_json({name: about[name] for name in ("method", "task", "members", "level", "digest")} | {"path": str(to)})
    else:
        say(f"saved {to}, which predicts as {ensemble} does; serve it with: choral serve {to}")


def serve(
    model: Annotated[Path, typer.Argument(help="A file of choral export (.onnx), or a saved ensemble.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8080,
    delay: Annotated[
        float, typer.Option(min=0, max=1000, help="Milliseconds a request waits for others to form a batch.")
    ] = 2.0,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows of a request and of a batch.")] = 1024,
    queue: Annotated[int, typer.Option(min=1, help="Maximum number of waiting requests.")] = 64,
    body: Annotated[int, typer.Option(min=1, help="Maximum size of a request in megabytes.")] = 16,
    json: Json = False,
) -> None:
    """Serve predictions over HTTP: Open Inference Protocol v2, rows of tables (/predict), /metrics, and a page at /.

    If the environment variable CHORAL_TOKEN is set, requests need the header Authorization: Bearer TOKEN. SIGHUP reloads the file.

    Example: choral serve model.onnx --port 8080
    """
    from choral.deploy.serve import Limits, application, load_model, server

    token = os.environ.get("CHORAL_TOKEN") or None
    if host not in ("127.0.0.1", "::1", "localhost") and token is None:
        note(f"choral: everyone who can reach {host} can send requests; set CHORAL_TOKEN to require a token.")
    limits = Limits(body=body << 20, rows=rows, queue=queue, delay=delay / 1000)
    app = application(load_model(model), limits=limits, token=token, reload=lambda: load_model(model))
    if json:
        write_json({"model": str(model), "url": f"http://{host}:{port}/"})
    else:
        note(f"choral: {model} at http://{host}:{port}/ (stop with Ctrl-C)")
    server(app, host=host, port=port).run()
