"""Corrections of members: their temperature and their weights.

A temperature minimizes the NLL of the *ensemble*, the members' average of softmax(logits / T), so members and ensemble are not
calibrated against each other. Stacking finds the weights of the best mixture. Greedy selection picks members one by one, with
replacement, and counts become weights. The caller defines what is averaged and its loss, so one search serves mixtures, averaged
logits, averaged quantiles and averaged outputs: see `Predictive.blend`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from choral.base import rng
from choral.base.errors import InputError
from choral.base.values import NotNegative, Positive, Value
from choral.metrics.classification import logits_nll
from choral.metrics.inputs import checked_finite, checked_labels, checked_weights, double, mixture_log, row_chunks

_COLDEST, _HOTTEST = 0.05, 20.0


@dataclass(frozen=True, kw_only=True)
class Correction(Value, ABC):
    """A fitted correction of predictions. An ensemble has at most one of each `rank`, and applies them by rank."""

    rank: ClassVar[int]

    @abstractmethod
    def corrected(self, prediction: Any) -> Any:
        """Return a prediction (`choral.predictions.Predictive`) with the correction applied."""


@dataclass(frozen=True, kw_only=True)
class Temperature(Correction):
    """The number that divides the logits.

    Args:
        temperatures: one for all members or one for each member, all positive; 1 changes nothing.

    >>> Temperature(temperatures=(2.0,)).apply(torch.tensor([[[1.0, 3.0]]])).tolist()
    [[[0.5, 1.5]]]
    """

    rank: ClassVar[int] = 1
    temperatures: tuple[Positive, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise InputError("temperatures is empty; give one for all members, or one for each.")

    def corrected(self, prediction: Any) -> Any:
        return prediction.cooled(self)

    def apply(self, member_logits: Tensor) -> Tensor:
        """Return logits divided by their temperature. Shapes: (member, batch, class) -> the same."""
        if len(self.temperatures) not in (1, len(member_logits)):
            raise InputError(
                f"member_logits has {len(member_logits)} members but there are {len(self.temperatures)} temperatures; "
                "there must be one for all or one for each."
            )
        divisors = torch.tensor(self.temperatures, dtype=torch.float64).to(member_logits)
        return member_logits / divisors.reshape(-1, *[1] * (member_logits.ndim - 1))


def fit_temperature(
    member_logits: Tensor,
    labels: Tensor,
    *,
    per: Literal["ensemble", "member"] = "ensemble",
    weights: Tensor | None = None,
) -> Temperature:
    """Return the temperature that minimizes the ensemble's NLL on held-out data.

    A grid over [0.05, 20] finds the basin, L-BFGS its minimum. If the NLL is not below that at 1 (in the given precision), the result is 1.

    Args:
        member_logits: logits of held-out rows (member, batch, class).
        labels: (batch,).
        per: one temperature for the whole "ensemble" or one for each "member".
        weights: weights of members in the average (member,), uniform by default.

    Reference: Guo et al., "On Calibration of Modern Neural Networks", 2017, arXiv:1706.04599, section 4.2; for
    ensembles Rahaman & Thiery, "Uncertainty Quantification and Deep Ensembles", 2021, arXiv:2007.08792.
    """
    from scipy.optimize import minimize

    logits = checked_finite(member_logits, "member_logits")
    if logits.ndim != 3 or not logits.numel():
        raise InputError(
            f"member_logits has shape {tuple(logits.shape)}; it must be (member, batch, class), not empty."
        )
    members, labels, shares = len(logits), checked_labels(labels, logits), checked_weights(weights, logits)
    own = labels.expand(members, -1).unsqueeze(-1)

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the ensemble's mean NLL at log inverse temperatures, and its gradient."""
        at = torch.tensor(point, device=logits.device, requires_grad=True)
        scores = (at.exp().reshape(-1, 1, 1) * logits).log_softmax(-1).gather(-1, own).squeeze(-1)
        nll = -mixture_log(scores, shares).mean()
        (slope,) = torch.autograd.grad(nll, at)
        return float(nll.detach()), slope.cpu().numpy()

    grid = np.linspace(-np.log(_HOTTEST), -np.log(_COLDEST), 9)
    start = min(grid, key=lambda point: objective(np.array([point]))[0])
    free = members if per == "member" else 1
    fitted = minimize(objective, np.full(free, start), jac=True, method="L-BFGS-B", bounds=[(grid[0], grid[-1])] * free)
    found = Temperature(temperatures=tuple(float(t) for t in np.exp(-fitted.x)))
    before = logits_nll(member_logits, labels, weights=weights)
    return found if logits_nll(found.apply(member_logits), labels, weights=weights) < before else Temperature()


@dataclass(frozen=True, kw_only=True)
class StackingWeights(Correction):
    """The weight of each member in the average.

    Args:
        weights: one for each member, not negative, summing to 1.

    >>> StackingWeights(weights=(0.25, 0.75)).apply(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [[0.25, 0.75]]
    """

    rank: ClassVar[int] = 2
    weights: tuple[NotNegative, ...]

    def __post_init__(self) -> None:
        if not abs(sum(self.weights) - 1) < 1e-3:
            raise InputError(f"weights are {self.weights}; give numbers of 0 or more that sum to 1.")

    def corrected(self, prediction: Any) -> Any:
        return prediction.weighed(self.weights)

    def apply(self, member_values: Tensor) -> Tensor:
        """Return the weighted average over members of probabilities or means. Shapes: (member, ...) -> (...)."""
        return torch.tensordot(torch.tensor(self.weights, dtype=torch.float64).to(member_values), member_values, dims=1)


def fit_stacking(member_log_scores: Tensor) -> StackingWeights:
    """Return the weights on the simplex that maximize the mean log score of the mixture on held-out data.

    Expectation maximization from uniform weights, w_m <- w_m g_m with g_m = mean of p_m / mixture, never lowers the score. The problem is
    concave and log max g bounds the distance to the optimum, so the search stops below 1e-7 nats, or after 5,000 steps.

    Args:
        member_log_scores: log score of each member for each row (member, batch).

    Reference: Yao et al., "Using Stacking to Average Bayesian Predictive Distributions", 2018, arXiv:1704.02030,
    equation 4.
    """
    scores = checked_finite(member_log_scores, "member_log_scores")
    if scores.ndim != 2 or not scores.numel():
        raise InputError(
            f"member_log_scores has shape {tuple(scores.shape)}; it must be (member, batch), not empty. "
            "Sum over the targets of a row first."
        )
    scores, _ = mixture(scores)  # relative to the best member of a row, which changes no comparison
    weights = torch.full((len(scores),), 1.0 / len(scores), dtype=torch.float64, device=scores.device)
    for _ in range(5_000):
        growth = (scores / (weights @ scores)).mean(1)
        if math.log(max(float(growth.max()), 1.0)) <= 1e-7:
            break
        weights = weights * growth
    return StackingWeights(weights=tuple((weights / weights.sum()).tolist()))


Loss = Callable[[Tensor], Tensor]
"""What averages cost at each point: (candidate, batch, ...) -> (candidate, batch)."""
_GAIN = 1e-9  # of the loss; less is rounding
_PATIENCE = 4  # a third share may gain where halves do not


def mixture(member_log_scores: Tensor) -> tuple[Tensor, Loss]:
    """Return the values that a mixture averages, and their loss: minus the log of the average, averaged over a row's own axes.

    Scores are relative to the best member of each entry, so that exponentials do not underflow.

    Shapes: member_log_scores (member, batch, ...) -> values of the same shape, and their loss.
    """
    scores = double(member_log_scores)
    best = scores.nan_to_num(nan=-math.inf, posinf=math.inf).max(0).values
    values = (scores - best).exp()

    def loss(average: Tensor) -> Tensor:
        rows = -(average.clamp_min(torch.finfo(torch.float64).tiny).log() + best)
        return rows.flatten(2).mean(-1) if rows.dim() > 2 else rows

    return values, loss


def greedy_selection(
    member_values: Tensor, loss: Loss | None = None, *, picks: int = 32, weights: Tensor | None = None
) -> tuple[int, ...]:
    """Return how often each member is picked, one by one: each time the one that makes the average of all picks best.

    The search ends after `picks` picks, or when several in a row gain nothing. The shortest sequence with the best loss is kept, so the
    result is never worse on these rows than the best single member. Members with non-finite values are never picked.

    Args:
        member_values: what is averaged, (member, batch, ...); without `loss`, log scores (member, batch) of a mixture.
        loss: the loss of averages at each row, see `Loss`; None for a mixture.
        picks: largest number of picks.
        weights: weights of rows (batch,), equal if None.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, sections 2 and 2.1.

    >>> log_scores = torch.tensor([[0.9, 0.2], [0.2, 0.9], [0.3, 0.3]]).log()
    >>> greedy_selection(log_scores, picks=8)
    (1, 1, 0)
    """
    values, cost = mixture(member_values) if loss is None else (double(member_values), loss)
    if values.dim() < 2 or not values.numel():
        raise InputError(f"member_values has shape {tuple(values.shape)}; give (member, batch, ...), not empty.")
    shares, total = _shares(weights, values), torch.zeros_like(values[0])
    chosen: list[int] = []
    losses: list[float] = []
    best = 0  # how many of the choices to keep
    while len(chosen) < min(picks, best + _PATIENCE):
        parts = [
            torch.einsum("b,mb->m", shares, cost((total + values[some]) / (len(chosen) + 1)))
            for some in row_chunks(len(values), width=values[0].numel())
        ]
        found = torch.cat(parts).nan_to_num(nan=math.inf)
        index = int(found.argmin())
        chosen.append(index)
        losses.append(float(found[index]))
        if not math.isfinite(losses[-1]):
            raise InputError("no member has finite values on these points; there is nothing to choose from.")
        if not best or losses[-1] < losses[best - 1] - _GAIN * (1 + abs(losses[best - 1])):
            best = len(chosen)
        total = total + values[index]
    return tuple(chosen[:best].count(i) for i in range(len(values)))


def bagged_selection(
    member_values: Tensor,
    loss: Loss | None = None,
    *,
    share: float = 0.5,
    picks: int = 32,
    weights: Tensor | None = None,
    seed: int = 0,
) -> StackingWeights:
    """Return the mean weights of 20 greedy selections, each from some of the members and on bootstrapped rows.

    One selection on few rows picks few members that happen to suit these rows; the mean of many generalizes better.

    Args:
        member_values, loss, picks, weights: as in `greedy_selection`.
        share: share of the members that each selection may pick from, drawn at random; all if none of these is finite.
        seed: seed of all draws.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, section 2.3.
    """
    values, cost = mixture(member_values) if loss is None else (double(member_values), loss)
    shares, total = _shares(weights, values), torch.zeros(len(values), dtype=torch.float64)
    finite = values.flatten(1).isfinite().all(1).cpu()
    if not bool(finite.any()):
        raise InputError("no member has finite values on these points; there is nothing to choose from.")
    for bag in range(20):
        generator = rng.generator(seed, "bag", bag)
        points = torch.multinomial(shares.cpu(), len(shares), replacement=True, generator=generator)
        drawn = finite & (torch.rand(len(values), generator=generator) < share)
        some = (drawn if bool(drawn.any()) else finite).nonzero().flatten()
        counted = points.bincount(minlength=len(shares)).double().to(values.device)
        counts = torch.tensor(greedy_selection(values[some], cost, picks=picks, weights=counted))
        total[some] += counts.double() / counts.sum()
    return StackingWeights(weights=tuple((total / total.sum()).tolist()))


def _shares(weights: Tensor | None, values: Tensor) -> Tensor:
    batch = values.shape[1]
    if weights is None:
        return torch.full((batch,), 1.0 / batch, dtype=torch.float64, device=values.device)
    found = double(weights).to(values.device)
    if tuple(found.shape) != (batch,) or not bool((found >= 0).all()) or not 0 < float(found.sum()) < math.inf:
        raise InputError(
            f"weights has shape {tuple(found.shape)}; give (batch,) = ({batch},) numbers of 0 or more, not all 0."
        )
    return found / found.sum()
