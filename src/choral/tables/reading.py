"""Read tables with pandas: files as data frames, and the cells of a column as numbers, dates and words.

Text is parsed once for each distinct value of a column.
"""

import csv
import io
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from choral.base.errors import InputError, needed, warn
from choral.base.text import short

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".xlsx")
MOSTLY = 0.9  # of the cells with a value that must be numbers, or dates, for the column to be one
_NOTES = "choral"  # key of `DataFrame.attrs`: line of the first row; whether most decimals of the file follow a comma, None if none can
_MARKS = {",": "a comma", ";": "';'", "\t": "a tab", "|": "'|'"}
_THOUSANDS = (r"^\D*\d{1,3},\d{3}\D*$", r"\d,\d{3}[.,]\d", r"^\D*\d*\.\d")  # perhaps, surely, and decimals
_ERRORS = ["#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!", "#N/A"]  # of spreadsheets
_EMPTY = ["", "?", "na", "NA", "n/a", "N/A", "n.a.", "N.A.", "nan", "NaN", "null", "NULL", "Null", "<NA>", *_ERRORS]
_BLANK = {*(word.lower() for word in _EMPTY), "none", "-", "--", ".", "missing", "unknown"}
_SIGNS = "$€£¥₹₽₩"
_CODES = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "CHF": "CHF", "CAD": "CAD", "AUD": "AUD"}
_MONEY, _SYMBOLS = rf"[{_SIGNS}]|{'|'.join(_CODES)}", {*_SIGNS, *_CODES.values()}
_CODE = re.compile(r"\s*0\d+\s*")  # 00123, which would be lost with a numeric dtype
_NUMBER = re.compile(
    rf"(?P<sign>[-+\u2212]?)\s*(?P<before>{_MONEY})?\s*(?P<minus>-?)"
    r"(?P<digits>[1-9]\d{0,2}(?:[,\s'\u2019]\d{3})+(?:\.\d*)?|\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)\s*"
    rf"(?P<after>%|{_MONEY}|°?[^\W\d_]{{1,12}}[²³23]?(?:/[^\W\d_]{{1,8}}[²³23]?)?)?",
    re.IGNORECASE,
)


def ending(path: Path) -> str:
    """Return the ending of a table's file in lower case; empty for other files.

    >>> ending(Path("a.CSV")), ending(Path("b.tsv.gz")), ending(Path("c.npz"))
    ('.csv', '.tsv.gz', '')
    """
    return max((e for e in ENDINGS if path.name.lower().endswith(e)), key=len, default="")


def read_table(path: Path) -> Any:
    """Return a table's file as a pandas data frame; InputError says what is wrong with it."""
    kind = ending(path)
    if not kind:
        raise InputError(f"{path} is not a table choral reads; give a file ending in {', '.join(ENDINGS)}.")
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path of the table.")
    with _parsing(path, kind):
        pd, said = needed("pandas", "tables"), ""
        if kind == ".parquet":
            frame = pd.read_parquet(path)
        elif kind == ".xlsx":
            with pd.ExcelFile(path) as book:
                frame, sheets = pd.read_excel(book, keep_default_na=False, na_values=_EMPTY), book.sheet_names
            frame.attrs[_NOTES] = (2, None)
            said = f"from the first of {len(sheets)} sheets, {short(str(sheets[0]))!r}" * (len(sheets) > 1)
        else:
            frame, said = _text(path, kind)
    if said:
        warn(f"{path} is read {said}.")
    return _named(frame, path)


def read_chunks(path: Path, rows: int) -> Iterator[Any]:
    """Yield what `read_table` returns of a .parquet file or one of text, so many rows at a time."""
    kind = ending(path)
    with _parsing(path, kind):
        if kind == ".parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(path, pre_buffer=False) as file:  # which would hold all that was read
                for batch in file.iter_batches(rows):
                    yield _named(batch.to_pandas(), path)
        else:
            for frame in _text(path, kind, rows)[0]:
                yield _named(frame, path)


def _named(frame: Any, path: Path) -> Any:
    return as_frame(frame.set_axis([str(name).strip() for name in frame.columns], axis=1), str(path))


@contextmanager
def _parsing(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (InputError, ImportError):
        raise
    except Exception as error:  # parsers fail in ways of their own
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        said = f"{path} cannot be read as a {kind} table: {reason}; correct it, or remove lines above the header."
        raise InputError(said) from error


def _text(path: Path, kind: str, rows: int | None = None) -> tuple[Any, str]:
    """Return a text file as a data frame with pandas' dtypes, and notes on how it was read; the header line determines the separator.

    `rows` makes it an iterator of frames of this many rows, each with its own dtypes.
    """
    import gzip

    import pandas as pd

    packed, usual = kind.endswith(".gz"), "\t" if kind.startswith(".tsv") else ","
    opened: Any = gzip.open if packed else open
    with opened(path, "rb") as file:
        begin = file.read(1 << 16)
    encodings = ["utf-16"] if begin[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig", "cp1252", "latin-1"]
    sample = begin.decode(encodings[0], errors="replace").lstrip()
    header, _, body = sample.partition("\n")
    bare = re.sub(r'"[^"]*"', "", header)
    mark = max([usual, *_MARKS], key=bare.count)
    comma = mark != "," and len(re.findall(r"\d,\d", body)) > len(re.findall(r"\d\.\d", body))
    options: dict[str, Any] = {"sep": mark, "decimal": "," if comma else ".", "compression": "gzip" if packed else None}
    options |= {"keep_default_na": False, "na_values": _EMPTY, "skipinitialspace": True}
    options |= {"index_col": False, "low_memory": False, "dtype": _codes(sample, mark)}
    encoding = next(name for name in encodings if name == encodings[-1] or _is_encoded(opened(path, "rb"), name))

    def strict(read: Any) -> Any:
        """Return what a call reads, with the lines that it stands in."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of lines that lose their last cells
            frame = read()
        frame.attrs[_NOTES] = (frame.index[0] + 2 if len(frame) else 2, None if mark == "," else comma)
        return frame

    def frames(reader: Any) -> Iterator[Any]:
        with reader, suppress(StopIteration):
            while True:
                yield strict(reader.__next__)

    if rows is None:
        found = strict(lambda: pd.read_csv(path, encoding=encoding, **options))
    else:
        found = frames(pd.read_csv(path, encoding=encoding, chunksize=rows, **options))
    said = [f"with {_MARKS[mark]} between its cells{' and decimal commas' * comma}"] if mark != usual else []
    said += [f"as {encoding} (Western European), since it is not UTF-8"] if encoding != encodings[0] else []
    return found, " and ".join(said)


def _is_encoded(file: Any, encoding: str) -> bool:
    """Return whether all bytes of a file, which is closed, are text in an encoding."""
    with suppress(UnicodeDecodeError), io.TextIOWrapper(file, encoding) as text:
        while text.read(1 << 20):
            pass
        return True
    return False


def _codes(sample: str, mark: str) -> dict[str, type]:
    """Return the columns whose first cells have zeros before whole numbers, as text."""
    lines = [line for line in sample.splitlines()[:200] if line.strip()]
    rows = [row for row in csv.reader(lines, delimiter=mark, skipinitialspace=True) if row]
    whole = [row for row in rows if len(row) == len(rows[0])]
    return {name: str for name, *cells in zip(*whole) if any(map(_CODE.fullmatch, cells))}


def is_frame(value: Any) -> bool:
    """Return whether a value is a pandas data frame, without loading pandas where nobody did."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def rows_of(x: Any) -> Any:
    """Return the rows of a file as a data frame if x is a path, else x."""
    return read_table(Path(x)) if isinstance(x, str | Path) else x


def as_frame(frame: Any, where: str = "the table") -> Any:
    """Return a data frame with text for column names and rows counted from 0; InputError for what no table can be."""
    if not len(frame):
        raise InputError(f"{where} has no rows; give at least one row below the header.")
    return named_once(frame.set_axis([str(c) for c in frame.columns], axis=1).reset_index(drop=True), where)


def named_once(frame: Any, where: str) -> Any:
    """Return a data frame; InputError for a name that occurs twice."""
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise InputError(f"{where} has more than one column named '{short(twice[0])}'; give each its own name.")
    return frame


def places_of(values: Sequence[str]) -> dict[str, int]:
    """Return the place of each of some different words, by its one spelling."""
    return {fold: i for i, fold in enumerate(folded(values))}


def folded(words: Any) -> np.ndarray:
    """Return words in one spelling: small letters, single spaces, whole numbers without .0."""
    import pandas as pd

    text = pd.Series(np.asarray(words, object), dtype=object).astype(str).str.casefold().str.strip()
    text = text.str.replace(r"\s+", " ", regex=True).str.replace(r"^(-?\d+)\.0$", r"\1", regex=True)
    return np.asarray(text.to_numpy(object))


class Cells:
    """One column of a table, and the ways to read it, each computed once.

    The series has timedeltas as seconds; `is_number`, `is_flag` (bool), `is_category` and `is_date` say which dtype it has.
    """

    def __init__(self, series: Any):
        self._is_span = series.dtype.kind == "m"
        self.series, self.name = series.dt.total_seconds() if self._is_span else series, str(series.name)
        self._first_line, self._comma = series.attrs.get(_NOTES, (None, None))
        self.is_category, kind = str(series.dtype) == "category", self.series.dtype.kind
        self.is_number, self.is_flag, self.is_date = (kind in of and not self.is_category for of in ("fiu", "b", "M"))
        self._is_typed = self.is_number or self.is_flag or self.is_date

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.series)

    @cached_property
    def is_nested(self) -> bool:
        """Whether cells hold lists or structures."""
        odd = list | dict | tuple | set | np.ndarray
        return self.series.dtype == np.dtype(object) and any(isinstance(v, odd) for v in self.series.head(50))

    @cached_property
    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of each row's word, -1 for none, and the different words without spaces around them."""
        import pandas as pd

        if self.is_category:
            codes, held = self.series.cat.codes.to_numpy(), self.series.cat.categories
        else:
            codes, held = pd.factorize(self.series.map(repr) if self.is_nested else self.series)
        words = pd.Series(np.asarray(held, object), dtype=object).astype(str).str.strip()
        return np.asarray(codes), np.asarray(words.to_numpy(object))

    @cached_property
    def words(self) -> np.ndarray:
        """The different words, in the order of their first rows."""
        return self._values[1]

    @cached_property
    def counts(self) -> np.ndarray:
        """Rows of each word."""
        return np.bincount(self._values[0] + 1, minlength=len(self.words) + 1)[1:]

    def spread(self, values: Any, otherwise: Any) -> np.ndarray:
        """Return a value for each row, from one for each word and one for rows without a word."""
        return np.append(np.asarray(values), otherwise)[self._values[0]]

    @cached_property
    def folds(self) -> np.ndarray:
        """The different words in one spelling each."""
        return folded(self.words)

    @cached_property
    def _blank(self) -> np.ndarray:
        return np.isin(self.folds, list(_BLANK))

    @cached_property
    def absent(self) -> np.ndarray:
        """Which rows have no value: an empty cell, or a word for a missing value."""
        return np.asarray(self.series.isna() if self._is_typed else self.spread(self._blank, True), bool)

    @property
    def empty(self) -> np.ndarray:
        """The same for a target, where words that may well name a class ('none', 'unknown', '-') are values."""
        if self._is_typed:
            return self.absent
        return self.spread(np.isin(self.folds, [word.lower() for word in _EMPTY]), True).astype(bool)

    @property
    def has_value(self) -> np.ndarray:
        """Which of the words are values."""
        return ~self._blank & (self.counts > 0)

    @cached_property
    def held(self) -> np.ndarray:
        """The different words of cells that have a value."""
        return self.words[self.has_value]

    def ranks(self, place: Mapping[str, int]) -> np.ndarray:
        """Return the place of each row's word (row,), by its one spelling; -1 for others."""
        return self.spread([place.get(word, -1) for word in self.folds], -1).astype(np.int64)

    @cached_property
    def different(self) -> int:
        """How many different values there are."""
        return int(self.series.nunique()) if self.is_number or self.is_date else len(self.held)

    @cached_property
    def _parsed(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of each different word, NaN for none, and its unit ('' for none); decimals follow what reads more cells."""
        points = _parsed(self.words)
        if self._comma is None:
            return points
        commas = _parsed([str(word).translate(str.maketrans(",.", ".,")) for word in self.words])
        read, other = (int(self.counts[np.isfinite(values)].sum()) for values, _ in (points, commas))
        return commas if other > read or (other == read and self._comma) else points

    def say_doubt(self, path: str) -> None:
        """Warn of ambiguous numbers such as 3,141, read as 3141, if all are such or others are like 3.14."""
        if self._is_typed or self._comma or not len(self.words):
            return
        values, units = self._parsed
        known = np.isfinite(values) & (self.counts > 0)
        odd, sure, point = (known & [bool(re.search(form, str(w))) for w in self.words] for form in _THOUSANDS)
        if odd.any() and (point.any() or odd[known].all()) and not sure.any() and _SYMBOLS.isdisjoint(units[known]):
            cells = self.spread(odd, False).astype(bool)
            warn(
                f"{path}: column '{short(self.name)}' holds {short(self.first(cells))!r} in {self.lines(cells)}, which is read with its separator "
                "between thousands, but may be a decimal; write decimals as 3.141."
            )

    @cached_property
    def commonest_unit(self) -> str:
        """What most numbers have behind or before them (kg, %, $), if anything; next to a currency, numbers alone are amounts of it."""
        if self._is_typed:
            return "seconds" if self._is_span else ""
        values, units = self._parsed
        rows = {unit: int(self.counts[(units == unit) & ~np.isnan(values)].sum()) for unit in set(units)}
        reach = {unit: count + rows.get("", 0) * (unit in _SYMBOLS) for unit, count in rows.items() if count}
        return max(reach, key=lambda unit: (reach[unit], unit), default="")

    @cached_property
    def own_numbers(self) -> np.ndarray:
        """The numbers in the commonest unit."""
        return self.numbers(self.commonest_unit)

    @property
    def is_numeric(self) -> bool:
        """Whether nearly all cells with a value are numbers in one unit, and none is a code such as 00123."""
        if not self._is_typed and any(map(_CODE.fullmatch, self.words)):
            return False
        return bool((~np.isnan(self.own_numbers)).sum() >= max(1, MOSTLY * (~self.absent).sum()))

    def numbers(self, unit: str = "") -> np.ndarray:
        """Return the numbers in a unit, float64 (row,), NaN where there is none; numbers alone count where no cell names a unit."""
        if self.is_number or self.is_flag:
            return np.asarray(self.series.to_numpy(np.float64, na_value=np.nan))
        if self.is_date:
            return np.full(len(self), np.nan)
        values, units = self._parsed
        bare = unit in ("", "seconds", *_SYMBOLS) or not (units != "").any()
        known = (units == unit) | ((units == "") & bare)
        return self.spread(np.where(known & ~self._blank, values, np.nan), np.nan)

    @cached_property
    def dated(self) -> tuple[tuple[str, ...], str]:
        """The formats of the dates, two at most, and one of them if all could have day and month the other way round."""
        from pandas.tseries.api import guess_datetime_format

        if self.is_date:
            return (), ""
        left, found, doubtful = self.held, list[str](), ""
        for _ in range(2):
            tries: dict[str, int] = {}
            for word in (w for w in left[:5] if 6 <= len(w) <= 40):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of days above 12 where the month is expected
                    guesses = [guess_datetime_format(word, dayfirst=first) for first in ("/" not in word, "/" in word)]
                for form in ["ISO8601"] if re.match(r"\d{4}-\d\d-\d\d", word) else guesses:
                    if form and form not in tries and turned(form) not in found:
                        tries[form] = int(np.isfinite(_days(left, form)).sum())
            best = max(tries, key=lambda form: tries[form], default=None)
            if best is None or not tries[best]:
                break
            other = turned(best)
            if other != best and tries.get(other) == tries[best] and (_days(left, best) != _days(left, other)).any():
                doubtful = doubtful or str(left[0])
            found.append(best)
            left = left[np.isnan(_days(left, best))]
        return tuple(found), doubtful

    def days(self, formats: tuple[str, ...]) -> np.ndarray:
        """Return dates as days since 1970 (row,), with their fractions in UTC; NaN where there is none."""
        if self.is_date:
            return _days(self.series)
        found = np.full(len(self.words), np.nan)
        for form in formats or ("ISO8601",):
            found = np.where(np.isnan(found), _days(self.words, form), found)
        return self.spread(np.where(self._blank, np.nan, found), np.nan)

    def lines(self, which: np.ndarray) -> str:
        """Return where the first of some rows are: lines as people count them in a file, or rows as a data frame names them."""
        begin = self._first_line
        found = [str(i + begin if begin else i) for i in self.series.index[which][:5].tolist()]
        word = ("line" if begin else "row") + "s" * (len(found) > 1)
        return f"{word} {', '.join(found[:4])}{', ...' * (len(found) > 4)}"

    def first(self, which: np.ndarray) -> str:
        """Return the word of the first of some rows; an empty text for a cell without one."""
        place = self._values[0][np.flatnonzero(which)[0]]
        return str(self.words[place]) if place >= 0 else ""


def _parsed(held: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each word, NaN for none, and its unit ('' for none)."""
    import pandas as pd

    words = pd.Series(held, dtype=object)
    values, units = np.array(pd.to_numeric(words, errors="coerce"), np.float64), np.full(len(words), "", object)
    values[np.isinf(values)] = np.nan
    rest = np.flatnonzero(np.isnan(values))
    if len(rest):
        parts = words.iloc[rest].str.extract(f"^(?:{_NUMBER.pattern})$", flags=re.IGNORECASE).fillna("").astype(str)
        digits = parts["digits"].str.replace(r"[,\s'\u2019]", "", regex=True)
        sign = (parts["sign"] + parts["minus"]).map({"": 1.0, "+": 1.0, "-": -1.0, "\u2212": -1.0})  # NaN for two signs
        share = np.where(parts["after"] == "%", 100.0, 1.0)
        values[rest] = np.asarray(sign * pd.to_numeric(digits, errors="coerce") / share, np.float64)
        money = parts[["before", "after"]].apply(lambda side: side.str.upper().map(_CODES).fillna(side))
        units[rest] = money["before"] + money["after"]
    return values, units


def turned(form: str) -> str:
    """Return a format of dates with day and month the other way round."""
    return form.translate(str.maketrans("dm", "md")) if "%m" in form else form


def _days(values: Any, form: str | None = None) -> np.ndarray:
    import pandas as pd

    when = pd.to_datetime(pd.Series(values), format=form, errors="coerce", utc=True)
    return np.asarray((when - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1), np.float64)
