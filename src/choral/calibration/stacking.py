"""Stacking: weights of members that maximize the held-out log score of their mixture."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.metrics.classification import nll_rows
from choral.metrics.inputs import checked_finite, checked_labels, checked_member_probs


@dataclass(frozen=True, kw_only=True)
class StackingWeights(Value):
    """How much each member counts in the average.

    Args:
        weights: one for each member, nothing negative, summing to 1.

    >>> StackingWeights(weights=(0.25, 0.75)).apply(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [[0.25, 0.75]]
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(0 <= w < math.inf for w in self.weights) or not abs(sum(self.weights) - 1) < 1e-3:
            raise InputError(f"weights are {self.weights}; give numbers of 0 or more that sum to 1.")

    @property
    def tensor(self) -> Tensor:
        """Return the weights as the metrics take them, (member,) in float64."""
        return torch.tensor(self.weights, dtype=torch.float64)

    def apply(self, member_values: Tensor) -> Tensor:
        """Return the weighted average over members of probabilities or means. Shapes: (member, ...) -> (...)."""
        if len(member_values) != len(self.weights):
            raise InputError(
                f"member_values has {len(member_values)} members but there are {len(self.weights)} weights."
            )
        return torch.einsum("m,m...->...", self.tensor.to(member_values), member_values)


def label_log_scores(member_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the log probability each member gives to each label (never below log `PROB_FLOOR`).

    For regression use `choral.metrics.gaussian_log_scores`.

    Shapes: member_probs (member, batch, class), labels (batch,) -> (member, batch).
    """
    member_probs = checked_member_probs(member_probs)
    labels = checked_labels(labels, batch=member_probs.shape[1], classes=member_probs.shape[2])
    return -nll_rows(member_probs, labels.to(member_probs.device))


def checked_log_scores(member_log_scores: Tensor) -> Tensor:
    """Return log scores (member, batch) as float64, each row shifted so that its best member has 0.

    A shift common to all members changes no comparison between mixtures and keeps the exponentials in range.
    """
    scores = checked_finite(member_log_scores, "member_log_scores")
    if scores.ndim != 2 or not scores.numel():
        raise InputError(
            f"member_log_scores has shape {tuple(scores.shape)}; it must be (member, batch), not empty. "
            "Sum over the targets of a row first."
        )
    return scores - scores.max(0).values


def fit_stacking(member_log_scores: Tensor, *, tolerance: float = 1e-7, steps: int = 5_000) -> StackingWeights:
    """Return the weights on the simplex that maximize the mean log of the mixture's score on held-out data.

    Expectation maximization from uniform weights, w_m <- w_m g_m with g_m = mean of p_m / mixture, which never lowers
    the score; longer steps w_m g_m^eta are tried and kept only when they raise it. The problem is concave and log max
    g bounds the distance to its optimum, so the search stops when that is below `tolerance` nats.

    Args:
        member_log_scores: (member, batch), log of what each member gives to what happened; see `label_log_scores`.
        tolerance: largest loss of mean log score against the best weights, in nats.
        steps: largest number of steps.

    Reference: Yao et al., "Using Stacking to Average Bayesian Predictive Distributions", 2018, arXiv:1704.02030,
    equation 4.
    """
    if steps < 1 or not tolerance >= 0:
        raise InputError(
            f"steps is {steps} and tolerance {tolerance}; give 1 step or more, and a tolerance of 0 or more."
        )
    scores = checked_log_scores(member_log_scores).exp()  # (member, batch)
    weights = torch.full((len(scores),), 1.0 / len(scores), dtype=torch.float64, device=scores.device)
    mixture = weights @ scores
    best, stretch = float(mixture.log().mean()), 1.0
    for _ in range(steps):
        growth = (scores / mixture).mean(1)
        if math.log(max(float(growth.max()), 1.0)) <= tolerance:
            break
        while True:
            proposal = weights * growth**stretch
            proposal /= proposal.sum()
            mixed = proposal @ scores
            score = float(mixed.log().mean())
            if score > best or stretch == 1.0:
                break
            stretch = 1.0
        if score <= best:  # a plain step gains nothing but rounding
            break
        weights, mixture, best, stretch = proposal, mixed, score, 1.5 * stretch
    return StackingWeights(weights=tuple(weights.tolist()))
