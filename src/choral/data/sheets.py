"""Files of tables - CSV and its kin, Parquet, Excel - read into data frames, with what was noticed on the way.

Text files keep their cells as text: what a cell means is decided column by column (`choral.data.recognition`), with all
cells in view, and not by the reader of the file.
"""

import csv
import io
import math
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from choral.base.errors import InputError
from choral.base.text import short
from choral.data.cells import FIRST_LINE, Cells
from choral.data.headers import SEPARATORS, after_notes, after_titles, say_titles, separator, titles_in, without_units

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".xlsx")
_SUMS = re.compile(
    r"(?:grand|sub|over)?[\s-]*(?:totals?|sum|average|avg|mean|median|count|all|summe|gesamt|insgesamt|somme|suma|totale|итого|合计|合計|总计)"
    r"(?:\s+(?:general|général|generale|count|rows))?\s*[:.=]?",
    re.IGNORECASE,
)
_MERGED = re.compile(rb'<mergeCell ref="([A-Z]+\d+:[A-Z]+(\d+))"')
_UNPACKED = 1 << 30  # bytes that a packed file may hold in any case,
_RATIO = 100  # and how many times its size beyond that


def ending(path: Path) -> str:
    """Return how a table's file ends, in small letters; empty if it is not a table.

    >>> ending(Path("a.CSV")), ending(Path("b.tsv.gz")), ending(Path("c.npz"))
    ('.csv', '.tsv.gz', '')
    """
    name = path.name.lower()
    found = [e for e in ENDINGS if name.endswith(e)]
    return max(found, key=len, default="")


def read_table(path: Path) -> Any:
    """Return a table's file as a pandas data frame; InputError says what is wrong with it."""
    kind = ending(path)
    if not kind:
        raise InputError(f"{path} is not a table choral reads; give a file ending in {', '.join(ENDINGS)}.")
    try:
        import pandas  # noqa: F401  # whether it is there is the question
    except ImportError as error:
        raise InputError(f"reading {path} needs pandas; install it with: pip install 'choral[tables]'.") from error
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path of the table.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the file of a table.")
    if kind == ".parquet":
        return as_frame(_typed(path, kind), str(path))
    frame, line = _typed(path, kind) if kind == ".xlsx" else _text(path, kind)
    frame, line = without_units(frame, path, line)
    frame.attrs[FIRST_LINE] = line
    return as_frame(frame, str(path))


def is_frame(value: Any) -> bool:
    """Return whether a value is a pandas data frame, without loading pandas where nobody did."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def as_frame(frame: Any, where: str = "the table") -> Any:
    """Return a data frame with text for column names and rows counted from 0; InputError without rows, or for a name twice."""
    if not len(frame):
        raise InputError(f"{where} has no rows; give at least one row below the header.")
    names = [str(c) for c in frame.columns]
    twice = sorted({c for c in names if names.count(c) > 1})
    if twice:
        raise InputError(f"{where} has more than one column named '{short(twice[0])}'; give each its own name.")
    found = frame.set_axis(names, axis=1).reset_index(drop=True)
    found = with_plain_types(found, where)
    _say_footer(found, where)
    return found


def with_plain_types(frame: Any, where: str) -> Any:
    """Return a data frame whose periods are dates; InputError for complex numbers."""
    odd = [name for name in frame.columns if _kind(frame[name]) in "Pc"]
    return frame.assign(**{name: _read(frame[name], where) for name in odd}) if odd else frame


def _kind(column: Any) -> str:
    """Return the letter of numpy's kind of a column, 'P' for periods of pandas."""
    return "P" if str(column.dtype).startswith("period") else getattr(column.dtype, "kind", "O")


def _read(column: Any, where: str) -> Any:
    """Return periods as the dates they begin with, which would be words otherwise."""
    if _kind(column) == "c":
        raise InputError(
            f"{where}: column '{short(column.name)}' holds complex numbers; give their real and imaginary parts as two columns."
        )
    return column.dt.to_timestamp()


def _say_footer(frame: Any, where: str) -> None:
    """Warn of a last row that sums up the others, or is a note below them: a word for that, or one cell alone, and gaps beside it."""
    if len(frame) < 4 or len(frame.columns) < 2:
        return
    end = frame.tail(4)
    rows = [
        [str(cell).strip() if full else "" for cell, full in zip(*row)]
        for row in zip(end.to_numpy(object), end.notna().to_numpy())
    ]
    last, held = rows[-1], [i for i, cell in enumerate(rows[-1]) if cell]
    noted = len(held) == 1 and len(frame.columns) > 2 and all(sum(map(bool, row)) > 1 for row in rows[:-1])
    sums = [i for i in held if _SUMS.fullmatch(last[i]) and len(held) < len(last)]
    sums = [i for i in sums if (frame.iloc[:-1, i].astype(str).str.strip() != last[i]).all()]
    if noted or sums:
        cell = last[(sums or held)[0]]
        blank = next(str(name) for name, value in zip(frame.columns, last) if not value)
        warnings.warn(
            f"{where}: the last row ({Cells(frame.iloc[:, 0]).lines(np.array([len(frame) - 1]))}) holds {short(cell)!r} and nothing in column "
            f"'{short(blank)}', as the footer of a table "
            "does; it is read as a row like the others, so remove it if it is none.",
            stacklevel=3,
        )


def _typed(path: Path, kind: str) -> Any:
    import pandas as pd

    try:
        if kind == ".parquet":
            return _with_categories(pd.read_parquet(path), path)
        return _book(path)
    except InputError:
        raise
    except ImportError as error:
        package = "pyarrow" if kind == ".parquet" else "openpyxl"
        raise InputError(f"reading {path} needs {package}; install it, or save the table as .csv.") from error
    except Exception as error:  # the readers of these formats fail in ways of their own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} cannot be read as a {kind} table: {reason}.") from error


def _book(path: Path) -> tuple[Any, int]:
    """Return the first sheet of a workbook, read as a file of text is, and the line of its first row."""
    import pandas as pd

    words: dict[str, Any] = {
        "keep_default_na": False,
        "na_values": [""],
    }  # None and NA are such until a column is known
    with pd.ExcelFile(path) as book:
        rows = pd.read_excel(book, header=None, nrows=50, dtype=object, **words).to_numpy(object).tolist()
        above = titles_in(rows)
        frame = pd.read_excel(book, header=above, **words)
        sheets = [str(name) for name in book.sheet_names]
    if len(sheets) > 1:
        warnings.warn(f"{path} has {len(sheets)} sheets; the first, {short(sheets[0])!r}, is read.", stacklevel=5)
    titles = [(i + 1, ", ".join(str(c) for c in row if c == c)) for i, row in enumerate(rows[:above])]
    say_titles(str(path), [(line, title) for line, title in titles if title])
    _say_merged(path, above + 1)
    given = [*(rows[above] if rows else ()), *(math.nan for _ in frame.columns)]
    names = [
        name if cell != cell else str(cell).strip() for name, cell in zip(frame.columns, given)
    ]  # pandas would number those that occur twice
    return frame.set_axis(names, axis=1).dropna(how="all").infer_objects(), above + 2


def _say_merged(path: Path, header: int) -> None:
    """Warn of merged cells below the header of a first sheet; the reader of workbooks does not tell of them."""
    import zipfile

    with zipfile.ZipFile(path) as packed:
        name = "xl/worksheets/sheet1.xml"
        found = _MERGED.findall(packed.read(name)) if name in packed.namelist() else []
    below = [where.decode() for where, last in found if int(last) > header]
    if below:
        warnings.warn(
            f"{path} has {len(below):,} range(s) of merged cells below the header ({below[0]}), of which the first cell alone has the value and the others are "
            "empty; part them and fill in the value.",
            stacklevel=6,
        )


def _with_categories(frame: Any, path: Path) -> Any:
    """Return a frame of a Parquet file, in which categories that are numbers have their type again; pyarrow forgets it."""
    from pyarrow import parquet

    noted = (parquet.read_schema(path).pandas_metadata or {}).get("columns", [])
    names = [c["field_name"] for c in noted if c.get("pandas_type") == "categorical" and c["field_name"] in frame]
    lost = [n for n in names if frame[n].dtype.kind in "iuf"]
    whole = [n for n in lost if (frame[n].dropna() % 1 == 0).all()]  # they are 1.0 beside gaps
    return frame.astype(dict.fromkeys(whole, "Int64")).astype(dict.fromkeys(lost, "category"))


def _text(path: Path, kind: str) -> tuple[Any, int]:
    """Return a file of text as a frame of text, and the line of its first row."""
    import pandas as pd

    usual = "\t" if kind.startswith(".tsv") else ","
    text, said = after_notes(path, _decoded(path, _bytes(path, kind)), usual)
    text = after_titles(path, text, usual, said)
    lines = [line for line in text[:100_000].splitlines() if line.strip()][:50]
    if not lines:
        raise InputError(f"{path} is empty; give a header and at least one row below it.")
    mark = said or separator(lines, usual)
    if mark != usual:
        why = ", as its first line says" if said else ""
        warnings.warn(f"{path} is read with {SEPARATORS.get(mark, repr(mark))} between its cells{why}.", stacklevel=3)
    header, rows, line = _cells(path, text, mark)
    return pd.DataFrame(rows, columns=header, dtype=object), line


def _bytes(path: Path, kind: str) -> bytes:
    try:
        if not kind.endswith(".gz"):
            return path.read_bytes()
        import gzip

        most = max(_UNPACKED, _RATIO * path.stat().st_size)
        with gzip.open(path) as held:
            data = held.read(most + 1)
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if len(data) > most:
        raise InputError(f"{path} unpacks to more than {most:,} bytes; unpack it yourself and give the file.")
    return data


def _decoded(path: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError:
            pass
    if b"\x00" in data[:100_000]:
        raise InputError(f"{path} is not a file of text; give a table as text, or with the ending of what it is.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        try:
            text, name = data.decode("cp1252"), "cp1252"
        except UnicodeDecodeError:
            text, name = data.decode("latin-1"), "latin-1"
    warnings.warn(f"{path} is not written in UTF-8; it is read as {name} (Western European).", stacklevel=4)
    return text


def _cells(path: Path, text: str, mark: str) -> tuple[list[str], list[list[str]], int]:
    """Return the header, the rows, all as long as the header, and the line of the first row."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    rows: list[list[str]] = []
    header: list[str] = []
    fewer, line, again = 0, 1, []
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header, line = _trimmed(row), reader.line_num
                continue
            if len(row) > len(header) and any(c.strip() for c in row[len(header) :]):
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(row)} cells, but the header (line {line}) names {len(header)} column(s); quote cells "
                    "that hold the separator, remove lines above the header, or correct the line."
                )
            if len(header) > 1 and _trimmed(row) == header:
                again.append(reader.line_num)
                continue
            fewer += len(row) < len(header)
            rows.append((row + [""] * len(header))[: len(header)])
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num} cannot be read ({error}); correct it.") from error
    _say_rows(path, fewer, again)
    return [name or f"Unnamed: {i}" for i, name in enumerate(header)], rows, line + 1


def _trimmed(row: list[str]) -> list[str]:
    """Return cells without spaces around them, and without those at the end that are empty."""
    found = [cell.strip() for cell in row]
    while len(found) > 1 and not found[-1]:
        found.pop()
    return found


def _say_rows(path: Path, fewer: int, again: list[int]) -> None:
    if again:
        warnings.warn(
            f"{path}: {len(again):,} row(s) repeat the header (line {again[0]}) and are passed over.", stacklevel=5
        )
    if fewer:
        warnings.warn(
            f"{path}: {fewer:,} row(s) end before the last column; what they lack is left empty.", stacklevel=5
        )
