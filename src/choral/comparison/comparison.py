"""Comparison: the table of several methods over one or several seeds, as text, data frame, CSV or LaTeX, with findings as sentences."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from choral.base.errors import InputError
from choral.base.text import grows, html_table, number, text_table
from choral.base.values import fits
from choral.engine.files import write_bytes

MEASURES = {
    "nll": "likelihood",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "ece": "calibration",
    "coverage_error": "coverage of intervals",
    "c_nll": "likelihood on corrupted inputs",
    "ood_auroc": "OOD detection",
}
POINT = ("accuracy", "rmse")
CALIBRATION = ("ece", "coverage_error")
_TOLERATED = 0.02  # of either, beyond the baseline's


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another in a score, over seeds.

    Attributes:
        gain: the mean difference, above 0 if the first is better.
        noise: the 95 % half-width of that mean, paired by seed; None for one seed.
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
    """Return how much better the first method is than the second in a score, paired by seed.

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


BySeed = Sequence[Sequence[Mapping[str, Any]]]
Values = dict[str, dict[str, list[float]]]


def by_method(by_seed: BySeed) -> Values:
    """Return, by method, the scores that are finite for every seed, each as a list over seeds."""
    found: Values = {}
    for row in by_seed[0]:
        own = [r for rows in by_seed for r in rows if r["method"] == row["method"]]
        each: dict[str, list[Any]] = {n: [r.get(n) for r in own] for n in row}
        found[row["method"]] = {n: v for n, v in each.items() if all(map(is_number, v))}
    return found


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value can be shown, sorted and drawn as a number.

    >>> is_number(0.5), is_number(True), is_number(float("nan")), is_number("0.5"), is_number(10**400)
    (True, False, False, False, False)
    """
    return fits(value, float) and abs(value) < 1e300  # NaN is not below


def verdict(by_seed: BySeed, *, baseline: str) -> tuple[str | None, list[str]]:
    """Return the recommended method, None without a comparison, and the findings: a sentence on that method, then one on each other."""
    values = by_method(by_seed)
    score = next((n for n in ("nll", "pinball", "loss") if n in values.get(baseline, {})), None)
    if score is None or len(values) < 2:
        return None, []
    order = sorted((m for m in values if score in values[m]), key=lambda m: statistics.fmean(values[m][score]))
    best, advice = _advice(values, order, baseline, score)
    return best, [advice, *(_about(values, m, baseline) for m in order if m != baseline)]


def _compared(values: Values, method: str, other: str) -> dict[str, Difference]:
    own, held = values[method], values[other]
    return {n: difference(n, own[n], held[n]) for n in MEASURES if n in own and n in held}


def _about(values: Values, method: str, baseline: str) -> str:
    found = _compared(values, method, baseline)
    words = {w: [MEASURES[n] for n, d in found.items() if d.word == w] for w in ("better", "worse", "level")}
    parts = [f"{w} in {_listed(words[w])}" for w in ("better", "worse") if words[w]]
    if words["level"]:
        parts.append(f"{'' if parts else 'all '}within noise in {_listed(words['level'])}")
    ratios = {"training": "train_flops", "prediction": "predict_flops"}
    costs = [
        f"{ratio:.2g}x its {what}" for what, name in ratios.items() if (ratio := _ratio(values, method, baseline, name))
    ]
    return f"{method} compared with {baseline}: {'; '.join(parts)}" + (f"; {' and '.join(costs)}." if costs else ".")


def _ratio(values: Values, method: str, baseline: str, name: str) -> float:
    own, held = (statistics.fmean(values[m].get(name, [0.0])) for m in (method, baseline))
    return own / held if own and held else 0.0


def _advice(values: Values, order: Sequence[str], baseline: str, score: str) -> tuple[str, str]:
    """Return the recommended method, and a sentence about it: the best score among those that beat the baseline beyond noise and are no
    worse in accuracy or RMSE and in calibration.
    """

    def is_sound(method: str) -> bool:
        found = _compared(values, method, baseline).items()
        return not any(d.gain < -_TOLERATED if n in CALIBRATION else n in POINT and d.word == "worse" for n, d in found)

    def word(method: str, other: str) -> str:
        return difference(score, values[method][score], values[other][score]).word

    sound, seeds = [m for m in order if is_sound(m)], len(values[baseline][score])
    what = MEASURES.get(score, score)
    chance = "" if seeds > 1 else " This is one seed, so small differences may be noise; compare several seeds."
    point = next((MEASURES[n] for n in POINT if n in values[baseline]), "")
    if (sound or order)[0] == baseline:
        lost = f" without losing {_listed([n for n in (point, 'calibration') if n], 'or')}" * (order[0] != baseline)
        return baseline, f"Use {baseline}: no method is better in {what}{lost} at this budget.{chance}"
    better = [m for m in sound if word(m, baseline) == "better"]
    if not better:
        said = f"Use {baseline}: no method is better beyond noise (95 %, {seeds} seeds) at this budget"
        return baseline, f"{said}; more seeds reveal smaller differences."
    best = better[0]
    level = [m for m in sound if m not in (best, baseline) and word(best, m) == "level"]
    near = f" Within noise of it: {_listed(level)}." if level and seeds > 1 else ""
    those = (
        f" among methods that are not worse than {baseline} in {point}, or in calibration by more than {_TOLERATED}"
        if point
        else ""
    )
    return best, f"Use {best}: the best {what}{' beyond noise' * (seeds > 1)}{those}.{near}{chance}"


def _listed(words: Sequence[str], last: str = "and") -> str:
    """Join words as in a sentence.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


_HEAD = ("method", "members", "epochs")
DIVERGED = "diverged"
"""The key of a row under which it keeps why its method gave no ensemble."""
_MARKS = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})


@dataclass(frozen=True)
class Comparison:
    """The scores of several methods.

    Attributes:
        rows: one flat dict for each method, of means if there are several seeds.
        settings: data, budget, seed and training settings.
        details: the evaluation by method (see `choral.comparison.evaluation.judge`), findings and, for several seeds, `over_seeds`.
    """

    rows: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> list[str]:
        """Names of the scores that the printed table shows."""
        found = (e["shown"] for e in self.details.get("evaluation", {}).values() if "shown" in e)
        return list(next(found, [n for n in ("accuracy", "rmse", "nll") if n in self.rows[0]]))

    @property
    def deviations(self) -> dict[str, dict[str, float]]:
        """Standard deviations over seeds, by method and score; empty for one seed."""
        return dict(self.details.get("deviations", {}))

    @property
    def differences(self) -> dict[str, dict[str, dict[str, float]]]:
        """Mean differences to the baseline of the same seed and their standard errors, by method and score; empty for one seed."""
        return dict(self.details.get("differences", {}))

    @property
    def best(self) -> str | None:
        """The recommended method; None if fewer than two methods can be compared."""
        return self.details.get("best")

    @property
    def findings(self) -> list[str]:
        """Which method to use, then a sentence on each method."""
        return list(self.details.get("findings", []))

    def to_dict(self) -> dict[str, Any]:
        """Return rows and settings as plain Python types."""
        return {"rows": self.rows, "settings": self.settings}

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one line for each method; columns `<score>_std` have the standard deviations over seeds."""
        import pandas

        stds = self.deviations
        rows = [row | {f"{n}_std": s for n, s in stds.get(row["method"], {}).items()} for row in self.rows]
        return pandas.DataFrame(rows)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return all scores as CSV; if `path` is given, write them to that file too."""
        return _kept(self.to_frame().to_csv(index=False, lineterminator="\n"), path)

    def to_latex(self, path: str | Path | None = None, *, measures: Sequence[str] | None = None) -> str:
        """Return a LaTeX table (package booktabs) with the best value of each score in bold.

        Args:
            path: file to write the table to as well.
            measures: the columns; by default those of the printed table.
        """
        names = list(self.shown if measures is None else measures)
        unknown = [n for n in names if not any(n in row for row in self.rows)]
        if unknown:
            raise InputError(f"measures: there is no {unknown[0]!r}; there are {', '.join(self.rows[0])}.")
        held = {n: [row[n] for row in self.rows if is_number(row.get(n))] for n in names}
        best = {n: (max if grows(n) else min)(held[n], default=None) for n in names}
        lines = [f"\\begin{{tabular}}{{l{'r' * len(names)}}}", "\\toprule"]
        lines += [" & ".join(["method", *(n.translate(_MARKS) for n in names)]) + r" \\", "\\midrule"]
        for row in self.rows:
            cells = [self._cell(row, n, r" $\pm$ ").translate({ord("_"): r"\_"}) for n in names]
            bold = [f"\\textbf{{{c}}}" if row.get(n) == best[n] else c for n, c in zip(names, cells)]
            lines.append(" & ".join([str(row["method"]).translate(_MARKS), *bold]) + r" \\")
        return _kept("\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n", path)

    def _cell(self, row: Mapping[str, Any], name: str, joint: str) -> str:
        spread = self.deviations.get(str(row["method"]), {}).get(name)
        return number(row.get(name)) + ("" if spread is None else f"{joint}{number(spread)}")

    def _cells(self) -> list[list[str]]:
        names = [*_HEAD, *self.shown, "parameters", "train_seconds"]
        return [names] + [
            [self._cell(row, n, " ± ") if n in self.shown else number(row.get(n)) for n in names] for row in self.rows
        ]

    def __repr__(self) -> str:
        diverged = (f"{row['method']} diverged: {row[DIVERGED]}" for row in self.rows if DIVERGED in row)
        return "\n".join([*text_table(self._cells()), *diverged, *self.findings])

    def _repr_html_(self) -> str:
        return html_table(self._cells(), f"Comparison of {len(self.rows)} methods")


def over_seeds(parts: Mapping[int, Comparison], *, baseline: str) -> Comparison:
    """Return one comparison of several seeds: means, standard deviations, and differences to the baseline, paired by seed."""
    first = next(iter(parts.values()))
    values = by_method([part.rows for part in parts.values()])
    rows, deviations, differences = [], {}, {}
    for method, measured in values.items():
        own = [row for part in parts.values() for row in part.rows if row["method"] == method]
        told = {n: v for row in reversed(own) for n, v in row.items() if n in _HEAD or not is_number(v)}
        held = {n: v for n, v in measured.items() if n not in _HEAD}  # what a seed lacks has no mean
        rows.append(told | {n: v[0] if len(set(v)) == 1 else statistics.fmean(v) for n, v in held.items()})
        deviations[method] = {n: statistics.stdev(v) for n, v in held.items()}
        pairs = {n: [a - b for a, b in zip(v, values[baseline][n])] for n, v in held.items() if n in values[baseline]}
        differences[method] = {
            n: {"mean": statistics.fmean(v), "error": statistics.stdev(v) / math.sqrt(len(v))} for n, v in pairs.items()
        }
    settings = first.settings | {"seed": ", ".join(map(str, parts)), "seeds": list(parts), "baseline": baseline}
    by_seed = {str(seed): part.rows for seed, part in parts.items()}
    details = first.details | {"deviations": deviations, "differences": differences, "by_seed": by_seed}
    return Comparison(rows, settings, details)


def _kept(text: str, path: str | Path | None) -> str:
    if path is not None:
        write_bytes(Path(path), text.encode())
    return text
