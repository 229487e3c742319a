"""What the shell shows: JSON for machines, tables and a progress bar for people.

Names of files, columns and methods are shown as they are: what rich would read as markup and what a terminal would obey
is taken out here, in `say`, `note` and `table`, through which everything goes.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from choral.base.lettering import visible

if TYPE_CHECKING:
    from rich.text import Text

HIGHER = {"accuracy", "coverage_95"}


def write_json(content: Any) -> None:
    """Print JSON on standard output (numbers that JSON lacks become null)."""
    sys.stdout.write(json.dumps(_finite(content), indent=1) + "\n")


def _finite(item: Any) -> Any:
    if (isinstance(item, float) and item != item) or item in (float("inf"), float("-inf")):
        return None
    if isinstance(item, dict):
        return {k: _finite(v) for k, v in item.items()}
    if isinstance(item, list | tuple):
        return [_finite(v) for v in item]
    return item


def write_csv(handle: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows under a header; text that a spreadsheet would take for a formula is quoted."""
    import csv

    writer = csv.writer(handle)
    writer.writerow([_cell(name) for name in rows[0]])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)


def _cell(value: Any) -> Any:
    """Return a value as a cell of a CSV file.

    >>> [_cell(v) for v in ("=1+1", "@a", "-1", "- a", -0.5, "b")]
    ["'=1+1", "'@a", '-1', "'- a", '-0.5', 'b']
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and value.strip(" "):
        try:
            float(value)
        except ValueError:
            return "'" + value
    return value


def say(text: str) -> None:
    """Print a line for people on standard output."""
    sys.stdout.write(_encodable(text, sys.stdout.encoding) + "\n")


def note(text: str) -> None:
    """Print a line on standard error, where it does not disturb output read by machines."""
    sys.stderr.write(_encodable(text, sys.stderr.encoding) + "\n")


def _encodable(text: str, encoding: str | None) -> str:
    """Return text that can be written to a stream: nothing that steers a terminal, nothing its encoding lacks."""
    name = encoding or "utf8"
    return visible(text).encode(name, "replace").decode(name)


def plain(text: str, style: str = "") -> "Text":
    """Return text for rich, which would read brackets in a str as markup."""
    from rich.text import Text

    return Text(visible(text), style=style)


def number(value: Any) -> str:
    """Return a value as a table cell.

    >>> number(0.12345), number(1234567), number(3.2e12)
    ('0.1235', '1,234,567', '3.2e+12')
    """
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, float):
        return f"{value:.2g}" if abs(value) >= 1e5 else f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(title: str, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table; the best of accuracy, rmse, nll and ece is bold."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=plain(title), title_justify="left")
    for i, column in enumerate(columns):
        words = all(isinstance(r.get(column), str) for r in rows)
        shown.add_column(plain(column), justify="left" if words else "right", overflow="fold", no_wrap=i == 0)
    best: dict[str, Any] = {}
    for column in columns:
        values = [r[column] for r in rows if isinstance(r.get(column), float)]
        if values and column in ("accuracy", "nll", "ece", "rmse", "crps"):
            best[column] = max(values) if column in HIGHER else min(values)
    for row in rows:
        cells = [number(row.get(c)) for c in columns]
        marked = [c in best and row.get(c) == best[c] for c in columns]
        shown.add_row(*(plain(cell, "bold" if m else "") for cell, m in zip(cells, marked)))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(shown)


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int], Callable[[dict[str, Any]], None]]]:
    """Yield a function (name, epochs) -> event listener that draws a bar with the time left.

    Nothing is drawn when `quiet` or when standard error is not a terminal; warnings are always said.
    """
    from choral.listeners import bars

    with bars(drawn=sys.stderr.isatty() and not quiet, say=note) as bar:
        yield bar
