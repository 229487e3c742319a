"""Greedy selection of members, with replacement (whole counts become weights) or without.

Greedy selection with replacement: an ensemble chosen from many members, as whole counts that become weights.

What is averaged and what the average costs are given by the caller, so one search serves mixtures of probabilities or
densities, averaged logits, averaged quantiles and averaged outputs; `Predictive.blend` says both for every task.

Greedy selection: build a smaller ensemble member by member, each time adding the one that helps most.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base import rng
from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration.stacking import StackingWeights, checked_log_scores
from choral.metrics.inputs import double, row_chunks

Loss = Callable[[Tensor], Tensor]
"""What averages cost at each point: (candidate, batch, ...) -> (candidate, batch)."""
_GAIN = 1e-9  # of the loss; less is rounding
_PATIENCE = 4  # a third share may gain where halves do not


@dataclass(frozen=True, kw_only=True)
class GreedySelection(Value):
    """How often each member was chosen.

    Args:
        counts: one for each member, 0 for those left out.
        losses: held-out loss after each choice that is kept.

    >>> GreedySelection(counts=(3, 0, 1), losses=(0.5, 0.4, 0.4, 0.3)).weights
    (0.75, 0.0, 0.25)
    """

    counts: tuple[int, ...]
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        if not sum(self.counts) or min(self.counts) < 0:
            raise InputError(
                f"counts are {self.counts}; give whole numbers of 0 or more, at least one of them above 0."
            )

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of each member; they sum to 1."""
        total = sum(self.counts)
        return tuple(count / total for count in self.counts)

    @property
    def chosen(self) -> tuple[int, ...]:
        """Places of the members that were chosen at all."""
        return tuple(i for i, count in enumerate(self.counts) if count)

    @property
    def loss(self) -> float:
        """Held-out loss of what was chosen."""
        return self.losses[-1]

    def stacking(self) -> StackingWeights:
        """Return the shares as the correction that an ensemble takes: `ensemble.with_posthoc(selection.stacking())`."""
        return StackingWeights(weights=self.weights)


def mixture(member_log_scores: Tensor) -> tuple[Tensor, Loss]:
    """Return what a mixture averages, and what an average costs: minus its logarithm, the mean over a point's own axes.

    Scores are taken relative to the best member of each entry, so that no exponential leaves its range.

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
) -> GreedySelection:
    """Return members chosen one by one, with replacement: each time the one that makes the average of all choices best.

    The search ends after `picks` choices, or when several in a row gain nothing; the shortest run of choices with the best loss
    is kept, so the result is never worse on these points than the best single member. A member whose values are not finite is
    never chosen.

    Args:
        member_values: what is averaged, (member, batch, ...); without `loss`, log scores (member, batch) of a mixture.
        loss: what averages cost at each point, see `Loss`; None for a mixture.
        picks: largest number of choices.
        weights: of the points (batch,), equal if None.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, sections 2 and 2.1.

    >>> log_scores = torch.tensor([[0.9, 0.2], [0.2, 0.9], [0.3, 0.3]]).log()
    >>> greedy_selection(log_scores, picks=8).counts
    (1, 1, 0)
    """
    values, cost = mixture(member_values) if loss is None else (double(member_values), loss)
    if picks < 1 or values.dim() < 2 or not values.numel():
        raise InputError(
            f"picks is {picks} and member_values has shape {tuple(values.shape)}; give 1 pick or more and (member, batch, ...), "
            "not empty."
        )
    shares = _shares(weights, values)
    chosen: list[int] = []
    losses: list[float] = []
    total, best = torch.zeros_like(values[0]), 0  # the sum of all choices; how many of them to keep
    while len(chosen) < picks and len(chosen) < best + _PATIENCE:
        index, found = _next(values, total, len(chosen) + 1, cost, shares)
        chosen.append(index)
        losses.append(found)
        total = total + values[index]
        if not best or found < losses[best - 1] - _GAIN * (1 + abs(losses[best - 1])):
            best = len(chosen)
    kept = chosen[:best]
    counts = tuple(kept.count(i) for i in range(len(values)))
    return GreedySelection(counts=counts, losses=tuple(losses[:best]))


def bagged_selection(
    member_values: Tensor,
    loss: Loss | None = None,
    *,
    bags: int = 20,
    share: float = 0.5,
    picks: int = 32,
    weights: Tensor | None = None,
    seed: int = 0,
) -> StackingWeights:
    """Return the mean weights of several greedy selections, each from some of the members and by points drawn with replacement.

    One selection by few points takes few members, and those that suit these points; the mean of many takes more of them and is
    better on new points.

    Args:
        member_values, loss, picks, weights: as in `greedy_selection`.
        bags: how many selections.
        share: of the members that each selection may choose from, drawn by lot; all that are finite if that leaves none.
        seed: root of every draw.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, section 2.3.
    """
    values, cost = mixture(member_values) if loss is None else (double(member_values), loss)
    if bags < 1 or not 0 < share <= 1 or values.dim() < 2 or not values.numel():
        raise InputError(
            f"bags is {bags}, share {share} and member_values has shape {tuple(values.shape)}; give 1 bag or more, a share above 0 and "
            "at most 1, and (member, batch, ...), not empty."
        )
    shares, total = _shares(weights, values), torch.zeros(len(values), dtype=torch.float64)
    finite = values.flatten(1).isfinite().all(1)
    for bag in range(bags):
        generator = rng.generator(seed, "bag", bag)
        points = torch.multinomial(shares.cpu(), len(shares), replacement=True, generator=generator)
        drawn = finite.cpu() & (torch.rand(len(values), generator=generator) < share)
        some = (drawn if bool(drawn.any()) else finite.cpu()).nonzero().flatten()
        counted = points.bincount(minlength=len(shares)).double().to(values.device)
        if len(some):
            total[some] += torch.tensor(
                greedy_selection(values[some], cost, picks=picks, weights=counted).weights
            ).double()
    if not float(total.sum()):
        raise InputError("no member has finite values on these points; there is nothing to choose from.")
    return StackingWeights(weights=tuple((total / total.sum()).tolist()))


def _next(values: Tensor, total: Tensor, count: int, cost: Loss, shares: Tensor) -> tuple[int, float]:
    """Return the member whose addition costs least, the first among equals, and that cost."""
    parts = [
        torch.einsum("b,mb->m", shares, cost((total + values[some]) / count))
        for some in row_chunks(len(values), width=values[0].numel())
    ]
    found = torch.cat(parts).nan_to_num(nan=math.inf)
    index = int(found.argmin())
    if not math.isfinite(float(found[index])):
        raise InputError("no member has finite values on these points; there is nothing to choose from.")
    return index, float(found[index])


def _shares(weights: Tensor | None, values: Tensor) -> Tensor:
    """Return what each point counts, summing to 1."""
    batch = values.shape[1]
    if weights is None:
        return torch.full((batch,), 1.0 / batch, dtype=torch.float64, device=values.device)
    found = double(weights).to(values.device)
    if tuple(found.shape) != (batch,) or not bool((found >= 0).all()) or not 0 < float(found.sum()) < math.inf:
        raise InputError(
            f"weights has shape {tuple(found.shape)}; give (batch,) = ({batch},) numbers of 0 or more, not all 0."
        )
    return found / found.sum()


@dataclass(frozen=True, kw_only=True)
class MemberSelection(Value):
    """Which members to use, in the order they were chosen.

    Args:
        indices: places of the chosen members; a member chosen twice counts twice.
        nll: held-out negative log likelihood after each choice.

    >>> MemberSelection(indices=(2, 0), nll=(0.5, 0.4)).apply(torch.tensor([[1.0], [2.0], [3.0]])).tolist()
    [[3.0], [1.0]]
    """

    indices: tuple[int, ...]
    nll: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.indices or min(self.indices) < 0:
            raise InputError(f"indices are {self.indices}; give the places of one or more members, counted from 0.")

    def apply(self, member_values: Tensor) -> Tensor:
        """Return the chosen members' values in order. Shapes: (member, ...) -> (chosen, ...)."""
        return member_values[self.within(len(member_values))]

    def within(self, members: int) -> list[int]:
        """Return the places of the chosen ones among so many members; raises InputError for one beyond them."""
        if max(self.indices) >= members:
            raise InputError(f"there are {members} members but member {max(self.indices)} is among the chosen.")
        return list(self.indices)


def select_members(
    member_log_scores: Tensor, *, members: int, replacement: bool = False, exact: bool = False
) -> MemberSelection:
    """Return members chosen one by one, each the one whose addition gives the average the best held-out log score.

    Args:
        member_log_scores: (member, batch), log of what each member gives to what happened; see `label_log_scores`.
        members: how many choices to make.
        replacement: a member may be chosen again, which gives it more weight.
        exact: keep all choices; otherwise the shortest run of choices with the best score is kept, so the result is
            never worse on this data than the best single member.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, section 2.
    """
    scores = checked_log_scores(member_log_scores).exp()  # (member, batch)
    shift = double(member_log_scores).max(0).values.mean()  # what the check took away
    if members < 1 or (not replacement and members > len(scores)):
        raise InputError(
            f"members is {members} but there are {len(scores)} to choose from; choose from 1 to {len(scores)}, "
            "or allow replacement."
        )
    chosen: list[int] = []
    nll: list[float] = []
    total = torch.zeros_like(scores[0])
    for count in range(1, members + 1):
        gains = ((total + scores) / count).log().mean(1)
        if not replacement and chosen:
            gains[chosen] = -torch.inf
        index = int(gains.argmax())
        chosen.append(index)
        nll.append(-float(gains[index] + shift))
        total = total + scores[index]
    kept = members if exact else 1 + min(range(members), key=lambda i: nll[i])
    return MemberSelection(indices=tuple(chosen[:kept]), nll=tuple(nll[:kept]))
