"""Output of the command line: JSON for machines, tables and progress for people.

All output goes through `say`, `note` and `table`, which escape names of files, columns and methods for rich and the terminal.
"""

import json
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TextIO

from choral.base.text import grows, number, visible

if TYPE_CHECKING:
    from rich.text import Text

    from choral.callbacks import Bars

_COSTS = ("train_flops", "predict_seconds", "parameters")
SPARE = (*_COSTS, "average_precision", "brier", "crps", "epochs", "train_seconds", "ood_auroc", "c_nll", "ece")
"""Columns that a narrow terminal goes without, in this order."""
_BOLD = ("accuracy", "exact_match", "nll", "ece", "rmse", "crps")


def write_json(content: Any) -> None:
    """Print JSON on standard output."""
    sys.stdout.write(json_text(content))


def json_text(content: Any) -> str:
    """Return content as JSON; numbers that JSON lacks become null, other types become text."""
    plain = json.loads(json.dumps(content, default=str), parse_constant=lambda name: None)
    return json.dumps(plain, indent=1) + "\n"


def say(text: str) -> None:
    """Print a text on standard output; in a terminal long lines wrap between words."""
    _write(text, sys.stdout)


def note(text: str) -> None:
    """Print a text on standard error; in a terminal long lines wrap between words."""
    _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf8"
    lines = visible(text).encode(encoding, "replace").decode(encoding).splitlines()  # what the stream can take
    if stream.isatty():
        width = get_terminal_size().columns
        narrow = (line if len(line) <= width else re.sub(r"(?<=\S) {3,}", "  ", line) for line in lines)
        lines = [textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in narrow]
    stream.write("\n".join(lines) + "\n")


def _plain(text: str, style: str = "") -> "Text":
    """Return text without markup for rich, which would interpret brackets."""
    from rich.text import Text

    return Text(visible(text), style=style)


def table(title: str, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table, with the best accuracy, rmse, nll and ece in bold.

    If the terminal is too narrow, the least important columns (`SPARE`) are omitted, and a line names them.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=160)
    kept = list(columns)
    widths = {c: 3 + max(len(c), *(len(number(r.get(c))) for r in rows)) for c in kept}
    for spare in SPARE:
        if spare in kept and 1 + sum(widths[c] for c in kept) > console.width:
            kept.remove(spare)
    console.print(_plain(title), soft_wrap=not sys.stdout.isatty())
    shown, best = Table(), dict[str, Any]()
    for i, column in enumerate(kept):
        words = all(type(r.get(column)) is str for r in rows)
        shown.add_column(_plain(column), justify="left" if words else "right", overflow="fold", no_wrap=i == 0)
        if column in _BOLD:
            values = [r[column] for r in rows if r.get(column) is not None]
            best[column] = (max if grows(column) else min)(values, default=None)
    for row in rows:
        bold = [c in best and row.get(c) == best[c] for c in kept]
        shown.add_row(*(_plain(number(row.get(c)), "bold" * b) for c, b in zip(kept, bold)))
    console.print(shown)
    if len(kept) < len(columns):
        lacking = ", ".join(c for c in columns if c not in kept)
        say(f"columns not shown: {lacking}; --json shows them.")


def progress(quiet: bool, wanted: bool | None = None) -> "AbstractContextManager[Bars]":
    """Return a context that shows the progress of training: a bar in a terminal, occasional lines elsewhere if wanted. Warnings are always
    printed.
    """
    from choral.callbacks import bars

    terminal = sys.stderr.isatty()
    drawn = not quiet if wanted is None else wanted
    return bars(drawn=terminal and drawn, say=note, told=bool(wanted) and not terminal)


def show_comparison(title: str, comparison: Any) -> None:
    """Print the table of a comparison, best first, and its findings."""
    base = comparison.settings.get("baseline", "single")
    one = next((row["train_flops"] for row in comparison.rows if row["method"] == base), None)
    score = next((n for n in ("nll", "pinball", "loss") if n in comparison.rows[0]), comparison.shown[0])
    rows = []
    for row in sorted(comparison.rows, key=lambda row: row.get(score, 0.0)):
        spread = comparison.deviations.get(row["method"], {}).get(score)
        cost = f"{row['train_flops'] / one:.2f}x" if one and row.get("train_flops") else None
        rows.append(row | {f"{score} ±": spread, "cost": cost})
    more = [n for n in (f"{score} ±", "c_nll", "ood_auroc", "cost") if all(row.get(n) is not None for row in rows)]
    shown = [n for n in comparison.shown if n != "brier"]
    table(title, ["method", "members", *shown, *more, "epochs", "parameters", "train_seconds", "predict_seconds"], rows)
    for sentence in comparison.findings:
        say(sentence)
