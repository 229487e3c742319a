"""Uncertainty of predictions: total, aleatoric (noise) and epistemic (disagreement); and out-of-distribution detection.

Classification: H(mean of members) = mean of H(member) + mutual information. Regression, by the law of total variance:
variance of the mixture = mean of the members' variances + variance of the members' means.

Members' probabilities and logits are (member, batch, class), their `weights` (member,), uniform by default; results are (batch,).

`scores_in` (batch,) are scores of in-distribution rows, `scores_out` (other batch,) of out-of-distribution rows, for which they should be
higher. If a measure depends on which set is positive, its name ends in `out` or `in`.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import average, checked_finite, checked_probs, double


def entropy(probs: Tensor) -> Tensor:
    """Return the entropy of each row in nats; 0 log 0 counts as 0.

    Shapes: probs (..., class) -> (...).

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.6931471805599453, 0.0]
    """
    probs = double(probs)
    return -torch.special.xlogy(probs, probs).sum(-1) + 0.0  # no minus zero


def expected_entropy(member_probs: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the members' average entropy: the aleatoric part."""
    return entropies(checked_probs(member_probs, members=True), weights)[1]


def mutual_information(member_probs: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the mutual information of label and member: the epistemic part, H(mean) - mean of H.

    It is 0 where all members agree exactly and at most log(members); rounding below 0 is cut off.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
    [0.6931471805599453]
    """
    return entropies(checked_probs(member_probs, members=True), weights)[2]


def entropies(member_probs: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return H(mean), the mean of H and their difference (batch,), for checked float64 probabilities.

    The difference is exactly 0 where it is rounding: noise would break ties when rows are ranked.
    """
    total, expected = entropy(average(member_probs, weights)), average(entropy(member_probs), weights)
    gap = total - expected
    return total, expected, torch.where(gap > 16 * torch.finfo(torch.float64).eps * total, gap, 0.0)


def variation_ratio(member_probs: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the share of members that do not vote for the most voted class: v = 1 - f / M.

    Reference: Beluch et al., "The Power of Ensembles for Active Learning in Image Classification", CVPR 2018.

    >>> variation_ratio(torch.tensor([[[0.9, 0.1]], [[0.6, 0.4]], [[0.2, 0.8]], [[0.7, 0.3]]])).tolist()
    [0.25]
    """
    return votes_outside_mode(checked_probs(member_probs, members=True), weights)


def votes_outside_mode(member_probs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the variation ratio of checked float64 probabilities."""
    votes = torch.nn.functional.one_hot(member_probs.argmax(-1), member_probs.shape[-1]).double()
    outside = 1.0 - average(votes, weights).max(-1).values
    return outside.round(decimals=12).clamp_min(0.0) + 0.0  # equal votes must give equal numbers


def aleatoric_variance(variances: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the members' average predicted variance. Shapes: variances (member, batch, ...) -> (batch, ...)."""
    return average(checked_finite(variances, "variances"), weights)


def epistemic_variance(means: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the (population) variance of the members' means.

    Shapes: means (member, batch, ...) -> (batch, ...).

    >>> epistemic_variance(torch.tensor([[1.0, 5.0], [3.0, 5.0]])).tolist()
    [1.0, 0.0]
    """
    means = checked_finite(means, "means")
    return average((means - average(means, weights)).square(), weights)


Side = Literal["in", "out"]


def max_logit_score(member_logits: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return minus the largest of the members' (weighted) average logits of each row."""
    member_logits = checked_finite(member_logits, "member_logits")
    if member_logits.ndim != 3:
        raise InputError(f"member_logits has shape {tuple(member_logits.shape)}; it must be (member, batch, class).")
    return -average(member_logits, weights).max(-1).values


def ood_scores(
    member_probs: Tensor, *, member_logits: Tensor | None = None, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Return every score of each row by name, higher for rows less like the training data.

    `max_probability`, `entropy`, `mutual_information`, `variation_ratio`, and `max_logit` if logits are given.

    Args:
        member_probs, weights: as above.
        member_logits: logits, which probabilities do not determine.

    Reference: appendix E of Packed-Ensembles (arXiv:2210.09184).
    """
    member_probs = checked_probs(member_probs, members=True)
    total, _, gap = entropies(member_probs, weights)
    scores = {
        "max_probability": 1.0 - average(member_probs, weights).max(-1).values,
        "entropy": total,
        "mutual_information": gap,
        "variation_ratio": votes_outside_mode(member_probs, weights),
    }
    if member_logits is not None:
        scores["max_logit"] = max_logit_score(member_logits, weights=weights)
    return scores


def _labeled(scores_in: Tensor, scores_out: Tensor, positive: Side) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and scores for scikit-learn, with signs so that the positive set should score higher."""
    sets = [checked_finite(scores_in, "scores_in"), checked_finite(scores_out, "scores_out")]
    for name, scores in zip(("scores_in", "scores_out"), sets):
        if scores.ndim != 1 or not len(scores):
            raise InputError(f"{name} has shape {tuple(scores.shape)}; it must be (batch,) with at least one row.")
    is_out = np.repeat([False, True], [len(scores) for scores in sets])
    both = torch.cat([scores.cpu() for scores in sets]).numpy()
    return (is_out, both) if positive == "out" else (~is_out, -both)


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """Return the area under the ROC curve: the probability that an out-of-distribution row scores above an in-distribution one.

    Ties count half. It does not depend on which set is positive.

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9]))
    0.75
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_labeled(scores_in, scores_out, "out")))


def aupr(scores_in: Tensor, scores_out: Tensor, *, positive: Side = "out") -> float:
    """Return the average precision (area under the precision-recall curve, as a step function).

    Args:
        scores_in, scores_out: as above.
        positive: the positive set; "out" looks for high scores, "in" for low ones.
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_labeled(scores_in, scores_out, positive)))


def fpr95(scores_in: Tensor, scores_out: Tensor, *, positive: Side = "out", recall: float = 0.95) -> float:
    """Return the false positive rate at a true positive rate of 95 %.

    The threshold is the strictest one that finds at least `recall` of the positives.

    Args:
        scores_in, scores_out: as above.
        positive: "out" (torch-uncertainty's convention) or "in" (ODIN's and OpenOOD's).
        recall: share of positives to find, in (0, 1].

    >>> fpr95(torch.tensor([0.1, 0.2, 0.8, 0.3]), torch.tensor([0.7, 0.9]))
    0.25
    """
    if not 0.0 < recall <= 1.0:
        raise InputError(f"recall is {recall}; it must lie in (0, 1].")
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(*_labeled(scores_in, scores_out, positive), drop_intermediate=False)
    return float(false[true >= recall - 1e-9][0])


def evaluate_scores(scores_in: Tensor, scores_out: Tensor) -> dict[str, float]:
    """Return auroc, aupr_out, aupr_in, fpr95_out and fpr95_in of one score."""
    return {
        "auroc": auroc(scores_in, scores_out),
        "aupr_out": aupr(scores_in, scores_out, positive="out"),
        "aupr_in": aupr(scores_in, scores_out, positive="in"),
        "fpr95_out": fpr95(scores_in, scores_out, positive="out"),
        "fpr95_in": fpr95(scores_in, scores_out, positive="in"),
    }


def evaluate_ood(scores_in: dict[str, Tensor], scores_out: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """Return `evaluate_scores` for each of the `ood_scores` of in-distribution and out-of-distribution rows."""
    return {name: evaluate_scores(scores_in[name], scores_out[name]) for name in scores_in}
