"""How uncertain each prediction is, and why: total, aleatoric (noise) and epistemic (members differ).

Classification: H(mean of members) = mean of H(member) + mutual information. Regression, by the law of total variance:
variance of the mixture = mean of the members' variances + variance of the members' means.
"""

import torch
from torch import Tensor

from choral.metrics.inputs import checked_finite, checked_member_probs, checked_weights, double


def mean_probs(member_probs: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the members' (weighted) average probabilities in float64.

    Shapes: member_probs (member, batch, class), weights (member,) -> (batch, class).
    """
    member_probs = checked_member_probs(member_probs)
    weights = checked_weights(weights, members=len(member_probs), like=member_probs)
    return torch.einsum("m,mbc->bc", weights, member_probs)


def entropy(probs: Tensor) -> Tensor:
    """Return the entropy of each row in nats; 0 log 0 counts as 0.

    Shapes: probs (..., class) -> (...).

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.6931471805599453, 0.0]
    """
    probs = double(probs)
    return -torch.special.xlogy(probs, probs).sum(-1) + 0.0  # no minus zero


def expected_entropy(member_probs: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the members' average entropy: the aleatoric part.

    Shapes: member_probs (member, batch, class) -> (batch,).
    """
    member_probs = checked_member_probs(member_probs)
    weights = checked_weights(weights, members=len(member_probs), like=member_probs)
    return torch.einsum("m,mb->b", weights, entropy(member_probs))


def mutual_information(member_probs: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the mutual information of label and member: the epistemic part, H(mean) - mean of H.

    It is 0 where all members agree exactly and at most log(members); rounding below 0 is cut off.

    Shapes: member_probs (member, batch, class) -> (batch,).

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.6931471805599453]
    """
    return information_of(checked_member_probs(member_probs), weights)


def information_of(member_probs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mutual information of checked float64 probabilities."""
    weights = checked_weights(weights, members=len(member_probs), like=member_probs)
    total = entropy(torch.einsum("m,mbc->bc", weights, member_probs))
    return information_gap(total, torch.einsum("m,mb->b", weights, entropy(member_probs)))


def information_gap(total: Tensor, expected: Tensor) -> Tensor:
    """Return total - expected entropy, exactly 0 where it is rounding: noise would break ties when rows are ranked."""
    gap = total - expected
    return torch.where(gap > 16 * torch.finfo(torch.float64).eps * total, gap, 0.0)


def variation_ratio(member_probs: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the share of members that do not vote for the most voted class: v = 1 - f / M.

    Shapes: member_probs (member, batch, class) -> (batch,).

    Reference: Beluch et al., "The Power of Ensembles for Active Learning in Image Classification", CVPR 2018.

    >>> variation_ratio(torch.tensor([[[0.9, 0.1]], [[0.6, 0.4]], [[0.2, 0.8]], [[0.7, 0.3]]])).tolist()
    [0.25]
    """
    return votes_outside_mode(checked_member_probs(member_probs), weights)


def votes_outside_mode(member_probs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the variation ratio of checked float64 probabilities."""
    weights = checked_weights(weights, members=len(member_probs), like=member_probs)
    votes = torch.nn.functional.one_hot(member_probs.argmax(-1), member_probs.shape[-1]).double()
    outside = 1.0 - torch.einsum("m,mbc->bc", weights, votes).max(-1).values
    return outside.round(decimals=12).clamp_min(0.0) + 0.0  # equal votes must give equal numbers


def aleatoric_variance(variances: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the members' average predicted variance.

    Shapes: variances (member, batch, ...) -> (batch, ...).
    """
    variances = checked_finite(variances, "variances")
    weights = checked_weights(weights, members=len(variances), like=variances)
    return torch.einsum("m,m...->...", weights, variances)


def epistemic_variance(means: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the (population) variance of the members' means.

    Shapes: means (member, batch, ...) -> (batch, ...).

    >>> epistemic_variance(torch.tensor([[1.0, 5.0], [3.0, 5.0]])).tolist()
    [1.0, 0.0]
    """
    means = checked_finite(means, "means")
    weights = checked_weights(weights, members=len(means), like=means)
    centered = means - torch.einsum("m,m...->...", weights, means)
    return torch.einsum("m,m...->...", weights, centered.square())
