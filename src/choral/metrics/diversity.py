"""How different members are from one another: disagreement, divergence, correlation.

Each measure has a matrix form (member, member) and a scalar form, the mean over ordered pairs of different members
(0 for a single member). Matrices are made of sums over rows, so batches can be added up (see `choral.metrics.evaluate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import PROB_FLOOR, checked_finite, checked_member_probs, row_chunks
from choral.metrics.uncertainty import mutual_information

__all__ = [
    "average_draws",
    "correlation_matrix",
    "disagreement",
    "disagreement_matrix",
    "kl_matrix",
    "member_correlation",
    "mutual_information",
    "pairwise_kl",
]


@dataclass(frozen=True, kw_only=True)
class PairSums:
    """Sums over rows from which every pairwise matrix follows; sums of parts add up.

    Args:
        rows: how many rows were summed.
        entries: how many values of each member were summed (rows times classes).
        agree: (member, member) rows on which both name the same class.
        cross: (member, member) sums of p_i log p_j.
        first: (member,) sums of p_i - 1 / classes.
        second: (member, member) sums of (p_i - 1 / classes) (p_j - 1 / classes).
    """

    rows: int
    entries: int
    agree: Tensor
    cross: Tensor
    first: Tensor
    second: Tensor

    def __add__(self, other: "PairSums") -> "PairSums":
        return PairSums(
            rows=self.rows + other.rows,
            entries=self.entries + other.entries,
            agree=self.agree + other.agree,
            cross=self.cross + other.cross,
            first=self.first + other.first,
            second=self.second + other.second,
        )

    def disagreement(self) -> Tensor:
        """Return the share of rows on which two members name different classes."""
        return 1.0 - self.agree / self.rows

    def kl(self) -> Tensor:
        """Return the mean over rows of KL(p_i || p_j)."""
        own = self.cross.diagonal().unsqueeze(1)
        return ((own - self.cross) / self.rows).clamp_min(0.0).fill_diagonal_(0.0)

    def correlation(self) -> Tensor:
        """Return Pearson's correlation of the members' probabilities over all rows and classes."""
        return _correlation(self.first, self.second, self.entries)


def pair_sums(member_probs: Tensor) -> PairSums:
    """Return the sums of checked float64 probabilities (member, batch, class)."""
    members, batch, classes = member_probs.shape
    votes = torch.nn.functional.one_hot(member_probs.argmax(-1), classes).double().reshape(members, -1)
    flat = member_probs.reshape(members, -1)
    centered = flat - 1.0 / classes  # a shift leaves the correlation as it is and keeps its sums small
    return PairSums(
        rows=batch,
        entries=batch * classes,
        agree=votes @ votes.T,
        cross=flat @ flat.clamp_min(PROB_FLOOR).log().T,
        first=centered.sum(1),
        second=centered @ centered.T,
    )


def _all_pair_sums(member_probs: Tensor) -> PairSums:
    member_probs = checked_member_probs(member_probs)
    members, batch, classes = member_probs.shape
    total: PairSums | None = None
    for rows in row_chunks(batch, width=members * classes):
        part = pair_sums(member_probs[:, rows])
        total = part if total is None else total + part
    assert total is not None
    return total


def _correlation(first: Tensor, second: Tensor, entries: int) -> Tensor:
    covariance = second / entries - torch.outer(first, first) / entries**2
    deviations = covariance.diagonal().clamp_min(0.0).sqrt()
    # A member whose values are all equal has deviation 0 up to rounding and correlates with nothing.
    constant = deviations <= 1e-12 * (second.diagonal() / entries).sqrt().clamp_min(1e-300)
    scale = torch.where(constant, torch.inf, deviations)
    return (covariance / torch.outer(scale, scale)).clamp(-1.0, 1.0).fill_diagonal_(1.0)


def mean_of_pairs(matrix: Tensor) -> float:
    """Return the mean of the entries off the diagonal; 0 for a single member."""
    members = len(matrix)
    if members < 2:
        return 0.0
    return float((matrix.sum() - matrix.diagonal().sum()) / (members * (members - 1)))


def average_draws(values: Tensor, learners: Sequence[int], *, weights: Tensor | None = None) -> Tensor:
    """Return each learner's mean over its draws: how different learners are is asked of these, not of single draws.

    Args:
        values: (draw, ...), of all learners.
        learners: the learner of each draw; rows of the result are in the order in which learners first appear.
        weights: (draw,) for the means, uniform by default.

    Shapes: (draw, ...) -> (learner, ...).

    >>> average_draws(torch.tensor([[0.0], [2.0], [5.0]]), [4, 4, 1]).tolist()
    [[1.0], [5.0]]
    """
    if len(learners) != len(values):
        raise InputError(f"learners has {len(learners)} entries for {len(values)} draws; give one for each.")
    means = []
    for learner in dict.fromkeys(learners):
        rows = [i for i, of in enumerate(learners) if of == learner]
        own = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights[rows].double()
        if not float(own.sum()) > 0:  # a learner that does not count is described by all its draws
            own = torch.ones_like(own)
        means.append(torch.tensordot((own / own.sum()).to(values), values[rows], dims=1))
    return torch.stack(means)


def disagreement_matrix(member_probs: Tensor) -> Tensor:
    """Return for each pair of members the share of rows on which they name different classes.

    Shapes: member_probs (member, batch, class) -> (member, member), symmetric, 0 on the diagonal.
    """
    return _all_pair_sums(member_probs).disagreement()


def disagreement(member_probs: Tensor) -> float:
    """Return the mean pairwise disagreement of the named classes, from 0 to 1.

    Shapes: member_probs (member, batch, class).

    >>> disagreement(torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.8, 0.2], [0.3, 0.7]]]))
    0.5
    """
    return mean_of_pairs(disagreement_matrix(member_probs))


def kl_matrix(member_probs: Tensor) -> Tensor:
    """Return KL(row member || column member) averaged over rows, in nats.

    Probabilities of the second member are raised to `PROB_FLOOR`, so the divergence is finite (at most about 87).

    Shapes: member_probs (member, batch, class) -> (member, member), 0 on the diagonal.
    """
    return _all_pair_sums(member_probs).kl()


def pairwise_kl(member_probs: Tensor) -> float:
    """Return the mean Kullback-Leibler divergence over ordered pairs of different members.

    Shapes: member_probs (member, batch, class).
    """
    return mean_of_pairs(kl_matrix(member_probs))


def correlation_matrix(values: Tensor) -> Tensor:
    """Return Pearson's correlation between members over all their values: probabilities, means or residuals.

    A member whose values are all the same has correlation 0 with the others (and 1 with itself), never NaN.

    Shapes: values (member, ...) -> (member, member).

    >>> correlation_matrix(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))[0, 1].item()
    -1.0
    """
    flat = checked_finite(values, "values").flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    return _correlation(flat.sum(1), flat @ flat.T, flat.shape[1])


def member_correlation(values: Tensor) -> float:
    """Return the mean off the diagonal of `correlation_matrix`: 1 for identical members.

    Shapes: values (member, ...).
    """
    return mean_of_pairs(correlation_matrix(values))
