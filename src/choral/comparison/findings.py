"""Findings: what a comparison says in words, with differences that may be noise called so."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from choral.base.directions import grows

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
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # of 95 %, for 2, 3, ... seeds


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
    sign = 1 if grows(name) else -1
    pairs = [sign * (a - b) for a, b in zip(own, other)]
    if len(pairs) < 2:
        return Difference(pairs[0], None)
    wide = _STUDENT[len(pairs) - 2] if len(pairs) - 2 < len(_STUDENT) else 2.0
    return Difference(statistics.fmean(pairs), wide * statistics.stdev(pairs) / math.sqrt(len(pairs)))


def findings(by_seed: Sequence[Sequence[Mapping[str, Any]]], *, baseline: str) -> list[str]:
    """Return what a comparison found: first what to use, then a sentence for each method, best first.

    Args:
        by_seed: the rows of every seed, the same methods in each.
        baseline: the method that others are held against.
    """
    methods = [str(row["method"]) for row in by_seed[0]]
    score = next((n for n in ("nll", "pinball", "loss") if _values(by_seed, baseline, n)), None)
    if score is None or len(methods) < 2:
        return []
    held = [m for m in methods if _values(by_seed, m, score)]
    order = sorted(held, key=lambda m: statistics.fmean(_values(by_seed, m, score)))
    return [_advice(by_seed, order, baseline, score), *(_about(by_seed, m, baseline) for m in order if m != baseline)]


def _values(by_seed: Sequence[Sequence[Mapping[str, Any]]], method: str, name: str) -> list[float]:
    """Return a measure of a method by seed; nothing if a seed lacks it."""
    found = [row.get(name) for rows in by_seed for row in rows if row["method"] == method]
    numbers = [float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    return numbers if len(numbers) == len(found) else []


def _compared(by_seed: Any, method: str, other: str) -> dict[str, Difference]:
    pairs = {n: (_values(by_seed, method, n), _values(by_seed, other, n)) for n in MEASURES}
    return {n: difference(n, own, held) for n, (own, held) in pairs.items() if own and held}


def _cost(by_seed: Any, method: str, other: str, name: str) -> float | None:
    own, held = _values(by_seed, method, name), _values(by_seed, other, name)
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
    """Return what to use: the best in the score that is no worse in accuracy or RMSE and in calibration, and what is level with it."""

    def is_sound(method: str) -> bool:
        found = _compared(by_seed, method, baseline)
        behind = [n for n, d in found.items() if d.word == "worse" and (n in POINT or d.gain < -_TOLERATED)]
        return not any(n in (*POINT, *CALIBRATION) for n in behind)

    sound = [m for m in order if is_sound(m)]
    best = sound[0] if sound else order[0]
    seeds = len(by_seed)
    chance = "" if seeds > 1 else " One seed only, so small differences may be noise; --seeds 3 tells."
    if best == baseline:
        return f"Use {baseline}: no method is better in {MEASURES.get(score, score)} at this budget.{chance}"
    gain = difference(score, _values(by_seed, best, score), _values(by_seed, baseline, score))
    if gain.word != "better":
        return f"Nothing is better than {baseline} beyond noise at this budget; {best} is ahead by chance or by little."
    level = [
        m
        for m in sound
        if m not in (best, baseline)
        and difference(score, _values(by_seed, best, score), _values(by_seed, m, score)).word == "level"
    ]
    near = f" Level with it within noise: {_listed(level)}." if level and seeds > 1 else ""
    point = next((MEASURES[n] for n in POINT if _values(by_seed, best, n)), "")
    those = f" of the methods that lose no {point} or calibration to {baseline}" if point else ""
    return f"Use {best}: the best {MEASURES.get(score, score)}{those}.{near}{chance}"


def _listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))
