"""Diversity of members: disagreement, divergence, correlation.

Each measure has a matrix form (member, member) and a scalar form, the mean over pairs of different members (0 for a single member).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import PROB_FLOOR, checked_finite, checked_probs, row_chunks


def pair_matrices(member_probs: Tensor) -> dict[str, Tensor]:
    """Return the (member, member) matrices `disagreement`, `pairwise_kl` and `member_correlation`, computed in blocks of rows.

    `disagreement` is the share of rows on which two members predict different classes, `pairwise_kl` the mean over rows of KL(row member ||
    column member) in nats, with probabilities of the second raised to `PROB_FLOOR`, and `member_correlation` Pearson's correlation of
    probabilities over rows and classes.

    Shapes: member_probs (member, batch, class).
    """
    members, batch, classes = member_probs.shape
    agree: Any = 0.0
    cross: Any = 0.0
    first: Any = 0.0
    second: Any = 0.0
    for rows in row_chunks(batch, width=members * classes):
        probs = checked_probs(member_probs[:, rows], members=True)
        votes = torch.nn.functional.one_hot(probs.argmax(-1), classes).double().flatten(1)
        flat = probs.flatten(1)
        centered = flat - 1.0 / classes  # a shift leaves the correlation as it is and keeps its sums small
        agree += votes @ votes.T
        cross += flat @ flat.clamp_min(PROB_FLOOR).log().T
        first += centered.sum(1)
        second += centered @ centered.T
    return {
        "disagreement": 1.0 - agree / batch,
        "pairwise_kl": ((cross.diagonal().unsqueeze(1) - cross) / batch).clamp_min(0.0).fill_diagonal_(0.0),
        "member_correlation": _correlation(first, second, batch * classes),
    }


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
    """Return the mean of each member over its draws, between which diversity is measured.

    Args:
        values: values of all draws (draw, ...).
        learners: the member of each draw; members are returned in order of first appearance.
        weights: weights of draws (draw,), uniform by default.

    Shapes: (draw, ...) -> (member, ...).

    >>> average_draws(torch.tensor([[0.0], [2.0], [5.0]]), [4, 4, 1]).tolist()
    [[1.0], [5.0]]
    """
    if len(learners) != len(values):
        raise InputError(f"learners has {len(learners)} entries for {len(values)} draws; give one for each.")
    means = []
    for learner in dict.fromkeys(learners):
        rows = [i for i, of in enumerate(learners) if of == learner]
        own = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights[rows].double()
        own = torch.where(own.sum() > 0, own, 1.0)  # a learner that does not count is described by all its draws
        means.append(torch.tensordot((own / own.sum()).to(values), values[rows], dims=1))
    return torch.stack(means)


def disagreement_matrix(member_probs: Tensor) -> Tensor:
    """Return for each pair of members the share of rows for which they predict different classes.

    Shapes: member_probs (member, batch, class) -> (member, member), symmetric, 0 on the diagonal.
    """
    return pair_matrices(checked_probs(member_probs, members=True))["disagreement"]


def disagreement(member_probs: Tensor) -> float:
    """Return the mean pairwise disagreement of the predicted classes, from 0 to 1.

    Shapes: member_probs (member, batch, class).

    >>> disagreement(torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.8, 0.2], [0.3, 0.7]]]))
    0.5
    """
    return mean_of_pairs(disagreement_matrix(member_probs))


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
    """Return the mean off the diagonal of `correlation_matrix`: 1 for identical members. Shapes: values (member, ...)."""
    return mean_of_pairs(correlation_matrix(values))
