"""Predictions of a large table in chunks, in the memory of one chunk; a killed run resumes."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from choral.base.errors import InputError
from choral.engine.files import write_bytes
from choral.tables.reading import ending, read_chunks

CHUNK = 1 << 16
"""Rows read, predicted and written at once."""
LARGE = 1 << 22
"""Bytes of a file above which it is read by chunks."""


def is_large(data: Path, out: Path | None) -> bool:
    """Return whether the first file is large, and both can be read and written by chunks."""
    kinds = {".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz"}
    known = out is not None and {ending(data), ending(out)} <= kinds
    return known and data.is_file() and data.stat().st_size > LARGE


def by_chunks(
    data: Path,
    out: Path,
    make: Callable[[Any, int], Any],
    *,
    key: str,
    tell: Callable[[int], None],
    encode: Callable[[Any, bool], bytes] | None = None,
) -> int:
    """Write a function of each chunk of a table to another file, atomically; return the number of rows.

    Finished chunks are stored in a folder next to `out` until all are done. The same call resumes; a call with other data or another key starts
    again.

    Args:
        make: called with a chunk as a data frame and the number of its first row; returns the data frame to write.
        key: identifies the result, such as the digest of an ensemble and the requested columns.
        tell: called after every chunk with the number of rows done.
        encode: returns a data frame as lines of text, with a header or without; None for parquet.
    """
    import pyarrow as pa
    from pyarrow import parquet

    folder, status = out.with_name(f".{out.name}.parts"), data.stat()
    about = json.dumps([key, str(data.resolve()), status.st_size, status.st_mtime_ns, CHUNK]).encode()
    if not (folder / "about.json").exists() or (folder / "about.json").read_bytes() != about:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_bytes(folder / "about.json", about)
    parts, done = list[Path](), 0
    try:
        for frame in read_chunks(data, CHUNK):
            parts.append(folder / f"{len(parts):06d}.parquet")
            if not parts[-1].exists():
                held = io.BytesIO()
                parquet.write_table(pa.Table.from_pandas(make(frame, done), preserve_index=False), held)
                write_bytes(parts[-1], held.getvalue())
            done += len(frame)
            tell(done)
    finally:
        if not any(folder.glob("*.parquet")):  # nothing to continue with
            shutil.rmtree(folder)
    try:
        schema = pa.unify_schemas(
            [parquet.read_schema(part).remove_metadata() for part in parts], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise InputError(
            f"a column of {data} has other types further down ({str(error)[:200]}); give it one."
        ) from error
    whole, tables = folder / "whole", (parquet.read_table(part).cast(schema) for part in parts)
    if encode is None:
        with parquet.ParquetWriter(whole, schema) as writer:
            for table in tables:
                writer.write_table(table)
    else:
        with whole.open("wb") as file:
            for number, table in enumerate(tables):
                file.write(encode(table.to_pandas(), number == 0))
    whole.replace(out)
    shutil.rmtree(folder)
    return done
