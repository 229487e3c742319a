"""How uncertain each prediction is: total, aleatoric (noise) and epistemic (members differ); and out-of-distribution detection.

Classification: H(mean of members) = mean of H(member) + mutual information. Regression, by the law of total variance:
variance of the mixture = mean of the members' variances + variance of the members' means.

`scores_in` are of rows like the training data, `scores_out` of rows from elsewhere; scores are higher for stranger rows. Where a measure
depends on which set counts as positive, the name says so: `out` (finding strangers) or `in` (recognizing friends).
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import checked_finite, checked_member_probs, checked_weights, double


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
    member_probs = checked_member_probs(member_probs)
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


Side = Literal["in", "out"]


def max_logit_score(member_logits: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return minus the largest of the members' (weighted) average logits of each row.

    Shapes: member_logits (member, batch, class) -> (batch,).
    """
    member_logits = checked_finite(member_logits, "member_logits")
    if member_logits.ndim != 3:
        raise InputError(f"member_logits has shape {tuple(member_logits.shape)}; it must be (member, batch, class).")
    weights = checked_weights(weights, members=len(member_logits), like=member_logits)
    return -torch.einsum("m,mbc->bc", weights, member_logits).max(-1).values


def ood_scores(
    member_probs: Tensor, *, member_logits: Tensor | None = None, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Return every score of each row, higher for stranger rows, by name.

    `max_probability`, `entropy`, `mutual_information`, `variation_ratio`, and `max_logit` when logits are given.

    Args:
        member_probs: (member, batch, class).
        member_logits: (member, batch, class); probabilities do not determine logits, so they must be given.
        weights: (member,), uniform by default.

    Reference: appendix E of Packed-Ensembles (arXiv:2210.09184).
    """
    member_probs = checked_member_probs(member_probs)
    weights = checked_weights(weights, members=len(member_probs), like=member_probs)
    mean = torch.einsum("m,mbc->bc", weights, member_probs)
    scores = {
        "max_probability": 1.0 - mean.max(-1).values,
        "entropy": entropy(mean),
        "mutual_information": mutual_information(member_probs, weights=weights),
        "variation_ratio": votes_outside_mode(member_probs, weights),
    }
    if member_logits is not None:
        scores["max_logit"] = max_logit_score(member_logits, weights=weights)
    return scores


def _checked_scores(scores_in: Tensor, scores_out: Tensor) -> tuple[Tensor, Tensor]:
    scores_in, scores_out = checked_finite(scores_in, "scores_in"), checked_finite(scores_out, "scores_out")
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        if scores.ndim != 1 or not len(scores):
            raise InputError(f"{name} has shape {tuple(scores.shape)}; it must be (batch,) with at least one row.")
    return scores_in, scores_out.to(scores_in.device)


def _with_positive(scores_in: Tensor, scores_out: Tensor, positive: Side) -> tuple[Tensor, Tensor]:
    """Return (negative, positive) scores, turned so that the positive set should score higher."""
    scores_in, scores_out = _checked_scores(scores_in, scores_out)
    return (scores_in, scores_out) if positive == "out" else (-scores_out, -scores_in)


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """Return the chance that a strange row scores above a familiar one (ties count half): area under the ROC curve.

    It is the same whichever set counts as positive.

    Shapes: scores_in (batch,), scores_out (other batch,).

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9]))
    0.75
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_labeled(*_checked_scores(scores_in, scores_out))))


def aupr(scores_in: Tensor, scores_out: Tensor, *, positive: Side = "out") -> float:
    """Return the average precision (area under the precision-recall curve, as a step function).

    Args:
        scores_in: (batch,).
        scores_out: (other batch,).
        positive: the set to be found; "out" looks for high scores, "in" for low ones.
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_labeled(*_with_positive(scores_in, scores_out, positive))))


def _labeled(negative: Tensor, positive: Tensor) -> tuple[Any, Any]:
    """Return labels and scores as scikit-learn takes them."""
    labels = torch.cat([torch.zeros(len(negative)), torch.ones(len(positive))])
    return labels.numpy(), torch.cat([negative, positive]).cpu().numpy()


def fpr95(scores_in: Tensor, scores_out: Tensor, *, positive: Side = "out", recall: float = 0.95) -> float:
    """Return the share of negatives that are taken for positives when 95 % of the positives are found.

    The threshold is the strictest one that finds at least `recall` of the positives.

    Args:
        scores_in: (batch,).
        scores_out: (other batch,).
        positive: "out" (flag strangers; torch-uncertainty's convention) or "in" (accept friends; ODIN's and OpenOOD's).
        recall: share of positives to find, in (0, 1].

    >>> fpr95(torch.tensor([0.1, 0.2, 0.8, 0.3]), torch.tensor([0.7, 0.9]))
    0.25
    """
    if not 0.0 < recall <= 1.0:
        raise InputError(f"recall is {recall}; it must lie in (0, 1].")
    negatives, positives = _with_positive(scores_in, scores_out, positive)
    found = max(1, math.ceil(recall * len(positives) - 1e-9))
    threshold = positives.sort(descending=True).values[found - 1]
    return float((negatives >= threshold).double().mean())


def evaluate_scores(scores_in: Tensor, scores_out: Tensor) -> dict[str, float]:
    """Return auroc, aupr_out, aupr_in, fpr95_out and fpr95_in of one score.

    Shapes: scores_in (batch,), scores_out (other batch,).
    """
    return {
        "auroc": auroc(scores_in, scores_out),
        "aupr_out": aupr(scores_in, scores_out, positive="out"),
        "aupr_in": aupr(scores_in, scores_out, positive="in"),
        "fpr95_out": fpr95(scores_in, scores_out, positive="out"),
        "fpr95_in": fpr95(scores_in, scores_out, positive="in"),
    }


def evaluate_ood(scores_in: dict[str, Tensor], scores_out: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """Return `evaluate_scores` of every score both dicts hold: one row of the table for each score.

    Args:
        scores_in: what `ood_scores` gave for the familiar set.
        scores_out: the same for the strange set.
    """
    if set(scores_in) != set(scores_out):
        raise InputError(f"the two sets hold different scores: in {sorted(scores_in)}, out {sorted(scores_out)}.")
    return {name: evaluate_scores(scores_in[name], scores_out[name]) for name in scores_in}
