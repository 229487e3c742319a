"""Names, numbers and tables as text, and shell-style name patterns."""

import html
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from choral.base.errors import InputError, did_you_mean

# Control characters, halves of surrogate pairs, what XML forbids, and characters that turn the direction of what follows.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)


def visible(text: str) -> str:
    r"""Return text in which characters that steer a terminal, a page or the reading direction are replaced.

    Line ends and tabs stay.

    >>> visible("red \x1b[31m")
    'red �[31m'
    """
    return _UNSEEN.sub("\ufffd", text)


def short(name: str, most: int = 60) -> str:
    """Return a name on one line, with the middle of a long one left out."""
    line = " ".join(visible(name).split())
    half = (most - 1) // 2
    return line if len(line) <= most else f"{line[:half]}…{line[-half:]}"


def number(value: Any) -> str:
    """Return a value as a cell of a table: numbers rounded, None as an empty text.

    >>> number(0.12345), number(21136.68), number(1234567), number(3.21e12), number(1e-5), number("Ulm")
    ('0.1235', '21,137', '1,234,567', '3.21 T', '1e-05', 'Ulm')
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "" if value is None else str(value)
    size = abs(value)
    if size >= 1e18 or 0 < size < 1e-3:
        return f"{value:.2g}"
    for scale, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if size >= scale:
            return f"{value / scale:.3g} {unit}"
    digits = 0 if isinstance(value, int) or size >= 1000 else 4 if size < 10 else 2
    return f"{value:,.{digits}f}"


_GROWING = ("accuracy", "auroc", "average_precision", "exact_match", "f1", "r2")


def grows(name: str) -> bool:
    """Return whether a measure, whatever stands before its name, grows as predictions get better; all others shrink.

    >>> [grows(n) for n in ("exact_match", "member_accuracy", "ood_auroc", "aupr_out", "nll", "c_nll")]
    [True, True, True, True, False, False]
    """
    return name.endswith(_GROWING) or name.startswith("aupr_")


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, columns to the right but the first."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))) for row in rows]


def html_table(rows: Sequence[Sequence[str]], caption: str, *, header: bool = True) -> str:
    """Return a table for notebooks, everything in it escaped; the first row is the header if there is one.

    >>> html_table([["a"], ["<b>"]], "c")
    '<table><caption>c</caption><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    lines = [
        "".join(f"<{tag}>{html.escape(visible(cell))}</{tag}>" for cell in row)
        for row, tag in zip(rows, ["th" if header else "td", *["td"] * len(rows)])
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{html.escape(visible(caption))}</caption>{body}</table>"


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of the patterns.

    >>> matches("layer1.0.conv1", ("layer1.*",)), matches("fc.weight", ("*bias", "norm*"))
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def fitting(names: Iterable[str], patterns: Sequence[str], what: str) -> list[str]:
    """Return the names that match the patterns of an option called `what`; InputError for a pattern without a match."""
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InputError(
                f"{what}: nothing matches {pattern!r}; there are {', '.join(filter(None, known))}.{did_you_mean(pattern, known)}"
            )
    return [name for name in known if matches(name, patterns)]
