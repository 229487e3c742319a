"""Conformal prediction sets for classification: adaptive (APS) and regularized adaptive (RAPS).

Classes are added in order of probability until enough is gathered; held-out rows say how much is enough. If held-out
and new rows are exchangeable, the set holds the true class with the promised probability, whatever the network is.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.rng import key
from choral.base.values import Value
from choral.calibration.coverage import check_rule, conformal_threshold
from choral.metrics.inputs import checked_labels, checked_probs


@dataclass(frozen=True, kw_only=True)
class ConformalSets(Value):
    """A rule from probabilities to sets of classes.

    Args:
        threshold: classes whose score is at most this are in the set; None (too few held-out rows) takes every class.
        level: the promised coverage, 1 - alpha.
        penalty: added to the score for each rank beyond `free_classes` (lambda of RAPS; 0 is APS).
        free_classes: ranks without penalty (k_reg of RAPS).
        randomized: the last class counts with a random share of its probability, which makes coverage exact.
        keeps_top: the most probable class is always in the set, so no set is empty and coverage can only rise.
    """

    threshold: float | None
    level: float
    penalty: float = 0.0
    free_classes: int = 0
    randomized: bool = True
    keeps_top: bool = False

    def __post_init__(self) -> None:
        check_rule(self.level, (self.threshold, self.penalty))

    def apply(self, probs: Tensor, *, seed: int = 0) -> Tensor:
        """Return which classes are in each row's set. Shapes: probs (batch, class) -> booleans (batch, class).

        Args:
            probs: (batch, class).
            seed: of the random shares; not used by deterministic sets.
        """
        probs = checked_probs(probs)
        scores = class_scores(
            probs,
            shares=_shares(probs, self.randomized, seed),
            penalty=self.penalty,
            free_classes=self.free_classes,
        )
        sets = torch.ones_like(scores, dtype=torch.bool) if self.threshold is None else scores <= self.threshold
        if self.keeps_top:
            sets = sets.scatter(1, probs.argmax(-1, keepdim=True), True)
        return sets


def class_scores(probs: Tensor, *, shares: Tensor, penalty: float, free_classes: int) -> Tensor:
    """Return the score of every class: the probability of all likelier classes, a share of its own, and the penalty.

    Shapes: probs (batch, class), shares (batch, 1) -> (batch, class).
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    ranks = torch.arange(1, probs.shape[-1] + 1, dtype=probs.dtype, device=probs.device)
    scores = before + shares * ordered + penalty * (ranks - free_classes).clamp_min(0.0)
    return torch.empty_like(scores).scatter_(-1, order, scores)


def _shares(probs: Tensor, randomized: bool, seed: int) -> Tensor:
    """Return a number from 0 to 1 for each row (batch, 1), decided by the row's probabilities and the seed.

    Equal rows get equal sets wherever they stand. Held-out and new rows are read by one rule, which keeps them exchangeable.
    """
    if not randomized:
        return torch.ones(len(probs), 1, dtype=probs.dtype, device=probs.device)
    words = (probs.cpu() + 0.0).contiguous().numpy().view(np.uint64)  # + 0.0: there is one zero
    found = np.full(len(words), key(seed, "conformal") % (1 << 64), np.uint64)
    for column in words.T:
        found = _mixed(found + np.uint64(0x9E3779B97F4A7C15) ^ column)
    return torch.from_numpy((found >> np.uint64(11)) * 2.0**-53).unsqueeze(1).to(probs.device)


def _mixed(h: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64 bits of which each depends on all those given."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return h ^ (h >> np.uint64(31))


def fit_conformal_sets(
    probs: Tensor,
    labels: Tensor,
    *,
    level: float = 0.9,
    penalty: float = 0.0,
    free_classes: int = 0,
    randomized: bool = True,
    keeps_top: bool = False,
    seed: int = 0,
) -> ConformalSets:
    """Return the rule whose sets hold the true class with probability `level`: APS, or RAPS with a penalty.

    Args:
        probs: (batch, class) of held-out rows, from the ensemble as it will be used.
        labels: (batch,).
        level: probability to cover, 1 - alpha.
        penalty: see `ConformalSets`; 0 is APS, RAPS uses for example 0.01.
        free_classes: see `ConformalSets`; for example 5 with many classes.
        randomized: see `ConformalSets`.
        keeps_top: see `ConformalSets`.
        seed: of the random shares.

    Reference: Romano, Sesia & Candès, "Classification with Valid and Adaptive Coverage", 2020, arXiv:2006.02544;
    Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal Prediction", 2021, arXiv:2009.14193,
    algorithms 2 and 3.
    """
    if penalty < 0 or free_classes < 0:
        raise InputError(f"penalty is {penalty} and free_classes {free_classes}; neither can be negative.")
    probs = checked_probs(probs)
    labels = checked_labels(labels, batch=len(probs), classes=probs.shape[1]).to(probs.device)
    shares = _shares(probs, randomized, seed)
    scores = class_scores(probs, shares=shares, penalty=penalty, free_classes=free_classes)
    return ConformalSets(
        threshold=conformal_threshold(scores.gather(1, labels.unsqueeze(1)).squeeze(1), level),
        level=level,
        penalty=penalty,
        free_classes=free_classes,
        randomized=randomized,
        keeps_top=keeps_top,
    )
