"""Comparison: the table of several methods over one or several seeds, and its findings in words.

Comparison: the table of several methods, over one seed or several, as text, frame, CSV or LaTeX.

Findings: what a comparison says in words, with differences that may be noise called so.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from choral.base.errors import InputError
from choral.base.text import grows, html_table, text_table
from choral.engine.files import write_bytes

MEASURES = {
    "nll": "likelihood",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "ece": "calibration",
    "coverage_error": "coverage of intervals",
    "c_nll": "likelihood on corrupted inputs",
    "ood_auroc": "telling strange inputs apart",
}
POINT = ("accuracy", "rmse")
CALIBRATION = ("ece", "coverage_error")
_TOLERATED = 0.02  # of either, beyond the baseline's


@dataclass(frozen=True)
class Difference:
    """How much better a method is than another in a measure, over seeds.

    Attributes:
        gain: the mean, above 0 if it is better.
        noise: how large it may be by chance (95 %, paired by seed); None for one seed.
    """

    gain: float
    noise: float | None

    @property
    def word(self) -> str:
        """'better', 'worse' or 'level'."""
        if self.gain == 0 or (self.noise is not None and abs(self.gain) <= self.noise):
            return "level"
        return "better" if self.gain > 0 else "worse"


def difference(name: str, own: Sequence[float], other: Sequence[float]) -> Difference:
    """Return how much better the first is than the second in a measure, paired by seed.

    >>> difference("nll", [0.10, 0.11, 0.12], [0.20, 0.20, 0.23]).word, difference("nll", [0.1, 0.3], [0.2, 0.2]).word
    ('better', 'level')
    """
    from scipy.special import stdtrit

    sign = 1 if grows(name) else -1
    pairs = [sign * (a - b) for a, b in zip(own, other)]
    if len(pairs) < 2:
        return Difference(pairs[0], None)
    wide = float(stdtrit(len(pairs) - 1, 0.975))  # Student's t
    return Difference(statistics.fmean(pairs), wide * statistics.stdev(pairs) / math.sqrt(len(pairs)))


def findings(by_seed: Sequence[Sequence[Mapping[str, Any]]], *, baseline: str) -> list[str]:
    """Return what a comparison found: first what to use, then a sentence for each method, best first.

    Args:
        by_seed: the rows of every seed, the same methods in each.
        baseline: the method that others are held against.
    """
    methods = [str(row["method"]) for row in by_seed[0]]
    score = next((n for n in ("nll", "pinball", "loss") if _by_method(by_seed, baseline, n)), None)
    if score is None or len(methods) < 2:
        return []
    held = [m for m in methods if _by_method(by_seed, m, score)]
    order = sorted(held, key=lambda m: statistics.fmean(_by_method(by_seed, m, score)))
    return [_advice(by_seed, order, baseline, score), *(_about(by_seed, m, baseline) for m in order if m != baseline)]


def _by_method(by_seed: Sequence[Sequence[Mapping[str, Any]]], method: str, name: str) -> list[float]:
    """Return a measure of a method by seed; nothing if a seed lacks it."""
    found = [row.get(name) for rows in by_seed for row in rows if row["method"] == method]
    numbers = [float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    return numbers if len(numbers) == len(found) else []


def _compared(by_seed: Any, method: str, other: str) -> dict[str, Difference]:
    pairs = {n: (_by_method(by_seed, method, n), _by_method(by_seed, other, n)) for n in MEASURES}
    return {n: difference(n, own, held) for n, (own, held) in pairs.items() if own and held}


def _cost(by_seed: Any, method: str, other: str, name: str) -> float | None:
    own, held = _by_method(by_seed, method, name), _by_method(by_seed, other, name)
    return statistics.fmean(own) / statistics.fmean(held) if own and held and statistics.fmean(held) else None


def _about(by_seed: Any, method: str, baseline: str) -> str:
    """Return a sentence on one method beside the baseline."""
    found = _compared(by_seed, method, baseline)
    words = {w: [MEASURES[n] for n, d in found.items() if d.word == w] for w in ("better", "worse", "level")}
    parts = [f"{w} in {_listed(words[w])}" for w in ("better", "worse") if words[w]]
    if words["level"]:
        parts.append(f"{'' if parts else 'all '}within noise in {_listed(words['level'])}")
    cost = [
        f"{factor:.2g}x its {what}"
        for name, what in (("train_flops", "training"), ("predict_flops", "prediction"))
        if (factor := _cost(by_seed, method, baseline, name)) is not None
    ]
    return f"{method} beside {baseline}: {'; '.join(parts)}" + (f"; {' and '.join(cost)}." if cost else ".")


def _advice(by_seed: Any, order: Sequence[str], baseline: str, score: str) -> str:
    """Return what to use: the best in the score of those that beat the baseline beyond noise and are no worse in accuracy or RMSE and in calibration."""

    def is_sound(method: str) -> bool:
        found = _compared(by_seed, method, baseline)
        behind = [n for n, d in found.items() if d.word == "worse" and (n in POINT or d.gain < -_TOLERATED)]
        return not any(n in (*POINT, *CALIBRATION) for n in behind)

    sound = [m for m in order if is_sound(m)]
    best = sound[0] if sound else order[0]
    seeds = len(by_seed)
    chance = (
        ""
        if seeds > 1
        else " One seed only, so small differences may be noise; compare with seed=(0, 1, 2), or --seeds 3 at the shell."
    )
    if best == baseline:
        return f"Use {baseline}: no method is better in {MEASURES.get(score, score)} at this budget.{chance}"
    better = [
        m for m in sound if difference(score, *(_by_method(by_seed, n, score) for n in (m, baseline))).word == "better"
    ]
    if not better:
        return f"No method is better than {baseline} beyond noise (95 %, {seeds} seeds) at this budget; more seeds show smaller differences."
    best = better[0]
    level = [
        m
        for m in sound
        if m not in (best, baseline)
        and difference(score, _by_method(by_seed, best, score), _by_method(by_seed, m, score)).word == "level"
    ]
    near = f" Level with it within noise: {_listed(level)}." if level and seeds > 1 else ""
    point = next((MEASURES[n] for n in POINT if _by_method(by_seed, best, n)), "")
    those = f" of the methods that lose no {point} or calibration to {baseline}" if point else ""
    beyond = " beyond noise" if seeds > 1 else ""
    return f"Use {best}: the best {MEASURES.get(score, score)}{beyond}{those}.{near}{chance}"


def _listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


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
        details: evaluation (by method, see `choral.comparison.evaluation.judge`), corruption_errors; over several seeds, deviations and differences (`choral.comparison.comparison.over_seeds`).
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
        """What was found, in words: what to use, then a sentence for each method (`choral.comparison.comparison.findings`)."""
        return list(self.details.get("findings", []))

    def to_dict(self) -> dict[str, Any]:
        """Return rows and settings as plain types."""
        return {"rows": self.rows, "settings": self.settings}

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame, one line for each method; deviations over seeds in columns `<measure>_std`."""
        import pandas

        stds = self.deviations
        rows = [row | {f"{n}_std": s for n, s in stds.get(row["method"], {}).items()} for row in self.rows]
        return pandas.DataFrame(rows)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return the rows as CSV, every measure in a column; with a path, write them there too."""
        return _kept(self.to_frame().to_csv(index=False, lineterminator="\n"), path)

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
        return "\n".join([*text_table(self._cells()), *diverged, *self.findings])

    def __repr__(self) -> str:
        return str(self)

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
