"""Conformal prediction: intervals for numbers, sets for classes and labels, and their coverage.

If held-out and new rows are exchangeable, an interval or set contains the truth with the nominal probability, whatever the network
predicts. Each target of a row, and each label, has its own threshold, so the guarantee holds target by target.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.rng import key
from choral.base.values import Inside, NotNegative, Whole
from choral.calibration.members import Correction
from choral.metrics.inputs import check_level, checked_finite, checked_labels, checked_probs, double
from choral.metrics.regression import interval_coverage, interval_width


def conformal_threshold(scores: Tensor, level: float) -> float | None:
    """Return the ceil((n + 1) level)-th smallest score, or None if n scores are too few for that level.

    A new exchangeable score is at most this with probability at least `level`, and at most level + 1 / (n + 1) if no scores are equal.

    Args:
        scores: scores of held-out rows (batch,).
        level: probability to cover, between 0 and 1.

    >>> conformal_threshold(torch.arange(1.0, 10.0), 0.8), conformal_threshold(torch.arange(1.0, 10.0), 0.95)
    (8.0, None)
    """
    check_level(level)
    if scores.dim() != 1 or not len(scores) or not bool(torch.isfinite(scores).all()):
        raise InputError(
            f"scores has the shape {tuple(scores.shape)}, or holds NaN or infinite numbers; give (batch,) of at least one, all finite."
        )
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return None if rank > len(scores) else float(scores.double().sort().values[rank - 1])


def evaluate_sets(sets: Tensor, labels: Tensor) -> dict[str, float]:
    """Return coverage and mean_size of prediction sets, and the shares of empty sets and of single classes.

    Shapes: sets (batch, class) of booleans, labels (batch,).

    >>> evaluate_sets(torch.tensor([[True, False], [True, True]]), torch.tensor([1, 0]))
    {'coverage': 0.5, 'mean_size': 1.5, 'empty': 0.0, 'single': 0.5}
    """
    if sets.ndim != 2 or sets.dtype != torch.bool:
        raise InputError(
            f"sets has shape {tuple(sets.shape)} and dtype {sets.dtype}; it must be booleans (batch, class)."
        )
    labels, sizes = checked_labels(labels, sets), sets.sum(-1)
    return {
        "coverage": float(sets.gather(1, labels.unsqueeze(1)).double().mean()),
        "mean_size": float(sizes.double().mean()),
        "empty": float((sizes == 0).double().mean()),
        "single": float((sizes == 1).double().mean()),
    }


def evaluate_intervals(lower: Tensor, upper: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the coverage and mean_width of intervals. Shapes: all (batch, ...)."""
    return {"coverage": interval_coverage(lower, upper, targets), "mean_width": interval_width(lower, upper)}


@dataclass(frozen=True, kw_only=True)
class Conformal(Correction):
    """A conformal rule with its level, stored in predictions for their intervals or sets.

    `apply` uses the same operations for any rows, so that exported graphs contain it.
    """

    rank: ClassVar[int] = 3
    level: Inside

    def corrected(self, prediction: Any) -> Any:
        return replace(prediction, conformal=self)


@dataclass(frozen=True, kw_only=True)
class _Rule(Conformal):
    """A threshold for each target or label, None if there were too few held-out rows."""

    thresholds: tuple[float | None, ...]

    def _row(self, values: Tensor) -> Tensor:
        row = [torch.inf if t is None else t for t in self.thresholds]
        return torch.tensor(row, dtype=torch.float64, device=values.device).reshape(values.shape[1:])


@dataclass(frozen=True, kw_only=True)
class ConformalResidual(_Rule):
    """Intervals of prediction ± threshold x scale.

    Args:
        thresholds: one for each target; None (too few held-out rows) gives infinite intervals.
        level: the nominal coverage, 1 - alpha.
        scaled: whether a predicted scale multiplies the threshold.

    >>> lower, upper = ConformalResidual(thresholds=(2.0,), level=0.9).apply(torch.tensor([1.0, 5.0]))
    >>> lower.tolist(), upper.tolist()
    ([-1.0, 3.0], [3.0, 7.0])
    """

    scaled: bool = False

    def apply(self, predictions: Tensor, *, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of (batch,) or (batch, target); scales are needed if the rule was fitted with scales."""
        if (scales is not None) != self.scaled:
            given, wanted = ("given", "without") if scales is not None else ("missing", "with")
            raise InputError(f"scales is {given} but these intervals were fitted {wanted} scales.")
        half = self._row(predictions) * (1.0 if scales is None else double(scales))
        return double(predictions) - half, double(predictions) + half


@dataclass(frozen=True, kw_only=True)
class ConformalQuantile(_Rule):
    """Predicted intervals, widened or narrowed by a threshold at both ends.

    Args:
        thresholds: one for each target, negative to narrow; None (too few held-out rows) gives infinite intervals.
        level: the nominal coverage, 1 - alpha.
    """

    def apply(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the corrected ends, (batch,) or (batch, target); ends that would cross meet halfway."""
        lower, upper, shift = double(lower), double(upper), self._row(lower)
        middle = 0.5 * (lower + upper)
        return torch.minimum(lower - shift, middle), torch.maximum(upper + shift, middle)


def fit_residual_intervals(
    predictions: Tensor, targets: Tensor, *, level: float = 0.9, scales: Tensor | None = None
) -> ConformalResidual:
    """Return intervals around predictions that contain a new target with probability `level`.

    The score of a held-out row is |target - prediction|, divided by its predicted scale if scales are given, which makes intervals wide
    where the ensemble is uncertain.

    Args:
        predictions: the ensemble's means of held-out rows, (batch,) or (batch, target).
        targets: targets of the same shape.
        level: probability to cover, 1 - alpha.
        scales: positive, of the same shape; for example the mixture's standard deviation.

    Reference: Lei et al., "Distribution-Free Predictive Inference for Regression", 2018, arXiv:1604.04173, sections 2.2 and 5.2.
    """
    given = {} if scales is None else {"scales": scales}
    predictions, targets, *held = _checked(predictions=predictions, targets=targets, **given)
    if held and float(held[0].min()) <= 0:
        raise InputError(f"scales goes down to {float(held[0].min()):.4g}; every scale must be positive.")
    scores = (targets - predictions).abs() / (held[0] if held else 1.0)
    return ConformalResidual(thresholds=_thresholds(scores, level), level=level, scaled=scales is not None)


def fit_quantile_intervals(lower: Tensor, upper: Tensor, targets: Tensor, *, level: float = 0.9) -> ConformalQuantile:
    """Return a correction of predicted intervals, after which they contain a new target with probability `level`.

    The score of a held-out row is max(lower - target, target - upper): how far outside it is, or how far inside if negative.

    Args:
        lower: (batch,) or (batch, target), for example of the central interval of the mixture at the same level.
        upper: the upper ends.
        targets: targets of the same shape.
        level: probability to cover, 1 - alpha.

    Reference: Romano, Patterson & Candès, "Conformalized Quantile Regression", 2019, arXiv:1905.03222, algorithm 1.
    """
    lower, upper, targets = _checked(lower=lower, upper=upper, targets=targets)
    return ConformalQuantile(
        thresholds=_thresholds(torch.maximum(lower - targets, targets - upper), level), level=level
    )


def _checked(**tensors: Tensor) -> list[Tensor]:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    first = next(iter(shapes.values()))
    if len(set(shapes.values())) > 1 or len(first) not in (1, 2) or 0 in first:
        raise InputError(f"the shapes are {shapes}; they must be equal, (batch,) or (batch, target), and not empty.")
    found = [checked_finite(tensor, name) for name, tensor in tensors.items()]
    return [tensor.to(found[0].device) for tensor in found]


def _thresholds(scores: Tensor, level: float) -> tuple[float | None, ...]:
    return tuple(conformal_threshold(column, level) for column in scores.reshape(len(scores), -1).T)


@dataclass(frozen=True, kw_only=True)
class ConformalLabels(_Rule):
    """A rule from the probability of a label to a set of answers: an answer is in it if it is probable enough.

    Args:
        thresholds: one for each label; an answer of probability p is in the set if 1 - p is at most this. None (too few held-out rows)
            includes both answers.
        level: the nominal coverage of each label, 1 - alpha.

    >>> ConformalLabels(thresholds=(0.6,), level=0.9).apply(torch.tensor([[0.5], [0.9]])).tolist()
    [[[True, True]], [[False, True]]]
    """

    def apply(self, probs: Tensor, *, seed: int = 0) -> Tensor:
        """Return whether no and yes are in the set of each label. Shapes: probs (batch, label) -> (batch, label, 2)."""
        return torch.stack([double(probs), 1 - double(probs)], -1) <= self._row(probs).unsqueeze(-1)


def fit_label_sets(probs: Tensor, labels: Tensor, *, level: float = 0.9) -> ConformalLabels:
    """Return the rule whose set for each label contains its true answer with probability `level`.

    Args:
        probs: probabilities of held-out rows (batch, label).
        labels: 0 or 1, of the same shape.
        level: probability to cover, 1 - alpha.

    Reference: Sadinle, Lei & Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", 2019,
    arXiv:1609.00451, applied to each label.
    """
    probs, labels = _checked(probs=probs, labels=labels)
    return ConformalLabels(thresholds=_thresholds((labels - probs).abs(), level), level=level)


@dataclass(frozen=True, kw_only=True)
class ConformalSets(Conformal):
    """A rule from probabilities to sets of classes.

    Args:
        threshold: classes whose score is at most this are in the set; None (too few held-out rows) includes every class.
        level: the nominal coverage, 1 - alpha.
        penalty: added to the score for each rank beyond `free_classes` (lambda of RAPS; 0 is APS).
        free_classes: ranks without penalty (k_reg of RAPS).
        randomized: the last class counts with a random share of its probability, which makes coverage exact.
    """

    threshold: float | None
    penalty: float = 0.0
    free_classes: int = 0
    randomized: bool = True

    def apply(self, probs: Tensor, *, seed: int = 0) -> Tensor:
        """Return which classes are in the set of each row. Shapes: probs (batch, class) -> booleans (batch, class).

        Args:
            probs: (batch, class).
            seed: seed of the random shares; not used by deterministic sets.
        """
        probs = checked_probs(probs)
        return self.inside(probs, _shares(probs, seed) if self.randomized else 1.0)

    def inside(self, probs: Tensor, shares: Tensor | float) -> Tensor:
        """Return the sets for float64 probabilities, with these random shares of the last class (batch, 1)."""
        return probs >= 0 if self.threshold is None else self.scores(probs, shares) <= self.threshold

    def scores(self, probs: Tensor, shares: Tensor | float) -> Tensor:
        """Return the score of every class (batch, class): the probability of more probable ones, a share of its own, the penalty."""
        ordered, order = probs.sort(dim=-1, descending=True)
        ranks = torch.arange(1, probs.shape[-1] + 1, dtype=probs.dtype, device=probs.device)
        penalties = self.penalty * (ranks - self.free_classes).clamp_min(0.0)
        sums = ordered.cumsum(-1)
        sums = sums / sums[..., -1:]  # that of all classes is 1 to the last bit: a threshold of 1 takes them all
        scores = sums - (1 - shares) * ordered + penalties
        return torch.zeros_like(scores).scatter(-1, order, scores)


def _shares(probs: Tensor, seed: int) -> Tensor:
    """Return a number from 0 to 1 for each row (batch, 1), determined by its probabilities and the seed.

    Equal rows get equal sets. The same rule for held-out and new rows keeps them exchangeable.
    """
    words = (probs.cpu() + 0.0).contiguous().numpy().view(np.uint64)  # + 0.0: there is one zero
    found = np.full(len(words), key(seed, "conformal") % (1 << 64), np.uint64)
    for column in words.T:
        found = _mixed(found + np.uint64(0x9E3779B97F4A7C15) ^ column)
    return torch.from_numpy((found >> np.uint64(11)) * 2.0**-53).unsqueeze(1).to(probs.device)


def _mixed(h: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return h ^ (h >> np.uint64(31))


def fit_conformal_sets(
    probs: Tensor,
    labels: Tensor,
    *,
    level: float = 0.9,
    penalty: NotNegative = 0.0,
    free_classes: Whole = 0,
    randomized: bool = True,
    seed: int = 0,
) -> ConformalSets:
    """Return the rule whose sets contain the true class with probability `level`: APS, or RAPS with a penalty.

    Args:
        probs: probabilities of held-out rows (batch, class), from the ensemble with all its corrections.
        labels: (batch,).
        level: probability to cover, 1 - alpha.
        penalty, free_classes, randomized: see `ConformalSets`; 0 is APS, RAPS uses for example 0.01 and 5 with many classes.
        seed: seed of the random shares.

    Reference: Romano, Sesia & Candès, "Classification with Valid and Adaptive Coverage", 2020, arXiv:2006.02544;
    Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal Prediction", 2021, arXiv:2009.14193,
    algorithms 2 and 3.
    """
    probs = checked_probs(probs)
    own = checked_labels(labels, probs).unsqueeze(1)
    made: dict[str, Any] = {"penalty": penalty, "free_classes": free_classes, "randomized": randomized}
    rule = ConformalSets(threshold=None, level=level, **made)
    scores = rule.scores(probs, _shares(probs, seed) if randomized else 1.0)
    return replace(rule, threshold=conformal_threshold(scores.gather(1, own).squeeze(1), level))
