"""Predictions of a large parquet file, chunk by chunk: the memory of one chunk, however many rows there are."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choral.base.errors import InputError

CHUNK = 1 << 16
"""Rows read, predicted and written at once; files of fewer are read whole."""


def is_large(data: Path, out: Path | None) -> bool:
    """Return whether both files are parquet and the first has more rows than a chunk."""
    if out is None or not all(path.name.lower().endswith(".parquet") for path in (data, out)) or not data.is_file():
        return False
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return bool(parquet.read_metadata(data).num_rows > CHUNK)
    except (pa.ArrowException, OSError):  # whoever reads it whole says what is wrong
        return False


def predict_chunks(loaded: Any, data: Path, out: Path, ids: list[str], *, everything: bool) -> int:
    """Write the predictions of a parquet file into another, and return how many there are.

    Args:
        loaded: the ensemble.
        data: where rows come from.
        out: where predictions go; written whole or not at all.
        ids: columns to show beside predictions.
        everything: whether to show all columns.
    """
    import pyarrow as pa
    from pyarrow import parquet

    from choral.cli.prediction import beside_names, check_kind, free_names, predicted
    from choral.tables.reading import as_frame

    check_kind(loaded, str(data))
    names, count, shown = None, 0, list[str]()
    with parquet.ParquetFile(data) as file, _whole(out) as part, _Writer(part) as writer:
        for batch in file.iter_batches(CHUNK):
            frame = batch.to_pandas()
            frame = as_frame(frame.set_axis([str(name).strip() for name in frame.columns], axis=1), str(data))
            own = predicted(loaded, loaded.table.inputs(frame, path=str(data)), str(data)).columns()
            if names is None:  # said once
                shown = beside_names(loaded, list(frame.columns), data, ids, everything)
                names = free_names(shown, ("row", *own))
            columns = {"row": pa.array(range(count, count + len(frame)))}
            columns |= {names[n]: pa.array(frame[n], from_pandas=True) for n in shown}
            writer.write(pa.table(columns | {n: pa.array(values) for n, values in own.items()}))
            count += len(frame)
    return count


class _Writer:
    """A parquet file whose columns are those of the first chunk."""

    def __init__(self, path: Path):
        self.path = path
        self.file: Any = None

    def __enter__(self) -> "_Writer":
        return self

    def write(self, chunk: Any) -> None:
        """Add a chunk."""
        from pyarrow import ArrowException, parquet

        if self.file is None:
            self.file = parquet.ParquetWriter(self.path, chunk.schema)
        try:
            self.file.write_table(chunk.cast(self.file.schema))
        except (ArrowException, ValueError) as error:
            raise InputError(
                f"a column has other types further down ({str(error)[:200]}); leave it out, or give it one type."
            ) from error

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield another name in the same folder, which becomes the path at the end, or is removed."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
