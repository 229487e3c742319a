"""What the shell shows: JSON for machines, tables and a progress bar for people.

Names of files, columns and methods are shown as they are: what rich would read as markup and what a terminal would obey
is taken out here, in `say`, `note` and `table`, through which everything goes.
"""

import json
import math
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from choral.base.text import grows, visible

if TYPE_CHECKING:
    from rich.text import Text

    from choral.callbacks import Bars

SPARE = (
    "train_flops",
    "predict_seconds",
    "parameters",
    "average_precision",
    "brier",
    "crps",
    "epochs",
    "train_seconds",
    "ood_auroc",
    "c_nll",
    "ece",
)
"""Columns that a narrow terminal goes without, in this order."""


def write_json(content: Any) -> None:
    """Print JSON on standard output."""
    sys.stdout.write(json_text(content))


def json_text(content: Any) -> str:
    """Return content as JSON; numbers that JSON lacks become null, and what is no JSON type becomes text."""
    return json.dumps(_finite(content), indent=1, default=str) + "\n"


def _finite(item: Any) -> Any:
    if isinstance(item, dict):
        return {k: _finite(v) for k, v in item.items()}
    if isinstance(item, list | tuple):
        return [_finite(v) for v in item]
    return None if isinstance(item, float) and not math.isfinite(item) else item


def say(text: str) -> None:
    """Print a line for people on standard output."""
    sys.stdout.write(_encodable(text, sys.stdout.encoding) + "\n")


def note(text: str) -> None:
    """Print a sentence on standard error, where it does not disturb output read by machines; in a terminal it breaks between words."""
    line = _encodable(text, sys.stderr.encoding)
    if sys.stderr.isatty():
        line = textwrap.fill(line, get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    sys.stderr.write(line + "\n")


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
    """Print rows as a table; the best of accuracy, rmse, nll and ece is bold.

    Where the terminal is too narrow, columns that say least (`SPARE`) are left out, and a line says which.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=160)
    columns, spared = _fitting(columns, rows, console.width)
    console.print(plain(title), soft_wrap=True)
    shown = Table()
    for i, column in enumerate(columns):
        words = all(isinstance(r.get(column), str) for r in rows)
        shown.add_column(plain(column), justify="left" if words else "right", overflow="fold", no_wrap=i == 0)
    best: dict[str, Any] = {}
    for column in columns:
        values = [r[column] for r in rows if isinstance(r.get(column), float)]
        if values and column in ("accuracy", "exact_match", "nll", "ece", "rmse", "crps"):
            best[column] = max(values) if grows(column) else min(values)
    for row in rows:
        cells = [number(row.get(c)) for c in columns]
        marked = [c in best and row.get(c) == best[c] for c in columns]
        shown.add_row(*(plain(cell, "bold" if m else "") for cell, m in zip(cells, marked)))
    console.print(shown)
    if spared:
        say(f"left out for want of room: {', '.join(spared)}; --json has them.")


def _fitting(columns: Sequence[str], rows: Sequence[dict[str, Any]], width: int) -> tuple[list[str], list[str]]:
    """Return the columns that fit, and those left out."""
    kept = list(columns)
    widths = {c: 3 + max(len(c), *(len(number(r.get(c))) for r in rows)) for c in kept}
    for spare in SPARE:
        if spare in kept and 1 + sum(widths[c] for c in kept) > width:
            kept.remove(spare)
    return kept, [c for c in columns if c not in kept]


@contextmanager
def progress(quiet: bool, wanted: bool | None = None) -> "Iterator[Bars]":
    """Yield what shows how far training is; warnings are always said.

    Args:
        quiet: show nothing, unless it is wanted.
        wanted: True shows a bar in a terminal and a line now and then elsewhere, False nothing, None a bar in a terminal.
    """
    from choral.callbacks import bars

    terminal = sys.stderr.isatty()
    drawn = terminal and (wanted or (wanted is None and not quiet))
    with bars(drawn=bool(drawn), say=note, told=bool(wanted) and not terminal) as found:
        yield found


def show_comparison(title: str, comparison: Any) -> None:
    """Print the table of a comparison, best first, and what was found."""
    base = comparison.settings.get("baseline", "single")
    one = next((row["train_flops"] for row in comparison.rows if row["method"] == base), None)
    score = next((n for n in ("nll", "pinball", "loss") if n in comparison.rows[0]), comparison.shown[0])
    rows = sorted(comparison.rows, key=lambda row: row.get(score, 0.0))
    spread = comparison.deviations
    rows = [
        row
        | ({"cost": f"{row['train_flops'] / one:.2f}x"} if one else {})
        | ({f"{score} ±": spread[row["method"]][score]} if score in spread.get(row["method"], {}) else {})
        for row in rows
    ]
    more = [n for n in (f"{score} ±", "c_nll", "ood_auroc", "cost") if all(n in row for row in rows)]
    shown = [n for n in comparison.shown if n != "brier"]
    columns = ["method", "members", *shown, *more, "epochs", "parameters", "train_seconds", "predict_seconds"]
    table(title, columns, rows)
    for sentence in comparison.findings:
        say(sentence)
