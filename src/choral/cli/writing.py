"""Files of predictions: each is what its name ends in, written whole or not at all, and never over an input."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from choral.base.errors import InputError
from choral.cli.output import plain_cell, write_csv

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
