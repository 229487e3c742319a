"""Comparison: the table of several methods, over one seed or several, as text, frame, CSV or LaTeX."""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choral.base.directions import grows
from choral.base.errors import InputError
from choral.base.text import html_table, text_table
from choral.engine.files import write_bytes

_HEAD = ("method", "members", "epochs")
DIVERGED = "diverged"
"""The key of a row under which it keeps why its method gave no ensemble."""
_MARKS = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})


@dataclass(frozen=True)
class Comparison:
    """Rows of measures, one for each method, the settings they share, and what a report shows beyond them.

    Attributes:
        rows: one flat dict for each method; over several seeds, of means.
        settings: data, budget, seed and training.
        details: evaluation (by method, see `choral.comparison.evaluation.judge`), map (members in function space),
            corruption_errors; over several seeds, deviations and differences (`choral.comparison.comparison.over_seeds`).
    """

    rows: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> list[str]:
        """The scores of a small table, as the task names them."""
        found = (e["shown"] for e in self.details.get("evaluation", {}).values() if "shown" in e)
        return list(next(found, [n for n in ("accuracy", "rmse", "nll") if n in self.rows[0]]))

    @property
    def deviations(self) -> dict[str, dict[str, float]]:
        """By method and measure, the standard deviation over seeds; empty for one seed."""
        return dict(self.details.get("deviations", {}))

    @property
    def differences(self) -> dict[str, dict[str, dict[str, float]]]:
        """By method and measure, the mean difference to the baseline of the same seed and its standard error; empty for one seed."""
        return dict(self.details.get("differences", {}))

    @property
    def findings(self) -> list[str]:
        """What was found, in words: what to use, then a sentence for each method (`choral.comparison.findings.findings`)."""
        return list(self.details.get("findings", []))

    def to_dict(self) -> dict[str, Any]:
        """Return rows and settings as plain types."""
        return {"rows": self.rows, "settings": self.settings}

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame, one line for each method; deviations over seeds in columns `<measure>_std`."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_frame needs pandas; pip install pandas, or use to_csv.") from error
        return pandas.DataFrame(self._whole_rows())

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the rows as CSV, every measure in a column; with a path, write them there too."""
        rows = self._whole_rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        out = io.StringIO()
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return _kept(out.getvalue(), path)

    def to_latex(self, path: str | Path | None = None, *, measures: Sequence[str] | None = None) -> str:
        """Return a table for LaTeX with the package booktabs, the best of each measure bold; with a path, write it too.

        Args:
            path: where to.
            measures: its columns; those of the printed table if None.
        """
        names = list(self.shown if measures is None else measures)
        unknown = [n for n in names if not any(n in row for row in self.rows)]
        if unknown:
            raise InputError(f"measures: there is no {unknown[0]!r}; there are {', '.join(self.rows[0])}.")
        best = {n: min(_values(self.rows, n), key=lambda v: v * _sign(n), default=None) for n in names}
        lines = [f"\\begin{{tabular}}{{l{'r' * len(names)}}}", "\\toprule"]
        lines += [" & ".join(["method", *(n.translate(_MARKS) for n in names)]) + r" \\", "\\midrule"]
        for row in self.rows:
            cells = [self._cell(row, n, r" $\pm$ ").translate({ord("_"): r"\_"}) for n in names]
            bold = [f"\\textbf{{{c}}}" if row.get(n) == best[n] else c for n, c in zip(names, cells)]
            lines.append(" & ".join([str(row["method"]).translate(_MARKS), *bold]) + r" \\")
        return _kept("\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n", path)

    def _whole_rows(self) -> list[dict[str, Any]]:
        stds = self.deviations
        return [row | {f"{n}_std": s for n, s in stds.get(row["method"], {}).items()} for row in self.rows]

    def _cell(self, row: Mapping[str, Any], name: str, joint: str) -> str:
        spread = self.deviations.get(str(row["method"]), {}).get(name)
        return _text(row.get(name)) + ("" if spread is None else f"{joint}{_text(spread)}")

    def _cells(self) -> list[list[str]]:
        names = [*_HEAD, *self.shown, "parameters", "train_seconds"]
        return [names] + [
            [self._cell(row, n, " ± ") if n in self.shown else _text(row.get(n)) for n in names] for row in self.rows
        ]

    def __str__(self) -> str:
        diverged = (f"{row['method']} diverged: {row[DIVERGED]}" for row in self.rows if DIVERGED in row)
        return "\n".join([*text_table(self._cells()), *diverged])

    def _repr_html_(self) -> str:
        return html_table(self._cells(), f"Comparison of {len(self.rows)} methods")


def over_seeds(parts: Mapping[int, Comparison], *, baseline: str) -> Comparison:
    """Return one comparison of several: means of every measure, deviations, and differences paired by seed.

    Args:
        parts: the comparison of each seed, all of the same methods.
        baseline: the method that others are held against.
    """
    first = next(iter(parts.values()))
    rows, deviations, differences = [], {}, {}
    own = _columns(parts, baseline)
    for method in [row["method"] for row in first.rows]:
        columns = _columns(parts, method)
        row = {name: next(v for v in values if v is not None) for name, values in columns.items()}
        measured = {n: v for n, v in columns.items() if n not in _HEAD and all(map(_is_number, v))}
        told = {n: v for n, v in row.items() if n in _HEAD or not _is_number(v)}  # what a seed lacks has no mean
        rows.append(told | {n: statistics.fmean(v) for n, v in measured.items()})
        deviations[method] = {n: statistics.stdev(v) for n, v in measured.items()}
        paired = {
            n: [a - b for a, b in zip(v, own[n])]
            for n, v in measured.items()
            if all(map(_is_number, own.get(n, [None])))
        }
        differences[method] = {
            n: {"mean": statistics.fmean(v), "error": statistics.stdev(v) / math.sqrt(len(v))}
            for n, v in paired.items()
        }
    settings = first.settings | {"seed": ", ".join(map(str, parts)), "seeds": list(parts), "baseline": baseline}
    by_seed = {str(seed): part.rows for seed, part in parts.items()}
    details = first.details | {"deviations": deviations, "differences": differences, "by_seed": by_seed}
    return Comparison(rows, settings, details)


def _columns(parts: Mapping[int, Comparison], method: str) -> dict[str, list[Any]]:
    """Return all that is known of a method, by seed; None where a seed lacks it."""
    rows = [_row(part, method) for part in parts.values()]
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def _row(part: Comparison, method: str) -> dict[str, Any]:
    return next(row for row in part.rows if row["method"] == method)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if _is_number(row.get(name))]


def _sign(name: str) -> int:
    """Return -1 for measures of which more is better."""
    return -1 if grows(name) else 1


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)


def _kept(text: str, path: str | Path | None) -> str:
    if path is not None:
        write_bytes(Path(path), text.encode())
    return text
