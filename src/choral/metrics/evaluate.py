"""Every scalar of one evaluation, under stable names."""

from collections.abc import Sequence

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.classification import binned, brier_rows, correct_rows, equal_count_gap, nll_rows
from choral.metrics.diversity import mean_of_pairs, member_correlation, pair_matrices
from choral.metrics.inputs import checked_labels, checked_member_probs, checked_regression, checked_weights, row_chunks
from choral.metrics.regression import (
    coverage,
    crps,
    gaussian_crps,
    gaussian_log_scores,
    interval_width,
    mixture_interval,
    mixture_nll,
    rmse,
)
from choral.metrics.uncertainty import (
    aleatoric_variance,
    entropy,
    epistemic_variance,
    information_gap,
    votes_outside_mode,
)


def evaluate_classification(
    member_probs: Tensor,
    labels: Tensor,
    *,
    bins: int = 15,
    drop_at_most: int = 0,
    weights: Tensor | None = None,
    pairs: bool = True,
) -> dict[str, float]:
    """Return every classification measure of an ensemble.

    Of the members' average: `accuracy`, `nll`, `brier`, `ece`, `mce`, `adaptive_ece`, and the row means `entropy`,
    `expected_entropy`, `mutual_information`, `variation_ratio`. Of members alone, averaged: `member_accuracy`,
    `member_nll`. Of pairs: `disagreement`, `pairwise_kl`, `member_correlation`. Rows are worked through in blocks, so
    the memory needed beyond the arguments does not grow with them.

    Args:
        member_probs: (member, batch, class).
        labels: (batch,).
        bins: bins of the calibration errors.
        drop_at_most: bins with at most this many rows do not count for `mce`.
        weights: (member,) for the average of members, uniform by default.
        pairs: also the pairwise measures, whose cost grows with members².

    >>> result = evaluate_classification(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]), torch.tensor([0]))
    >>> round(result["nll"], 4), result["disagreement"]
    (0.2231, 0.0)
    """
    if member_probs.ndim != 3:
        checked_member_probs(member_probs)  # raises, with the shape in its message
    members, batch, classes = member_probs.shape
    labels = checked_labels(labels, batch=batch, classes=classes)
    blocks = [
        _classification_rows(checked_member_probs(member_probs[:, rows]), labels[rows], weights)
        for rows in row_chunks(batch, width=members * classes)
    ]
    rows = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
    confidence = rows.pop("confidence")
    table = binned(confidence, rows["accuracy"], bins=bins)
    found = {name: float(values.mean()) for name, values in rows.items()} | {
        "ece": table.ece(),
        "mce": table.mce(drop_at_most=drop_at_most),
        "adaptive_ece": equal_count_gap(confidence, rows["accuracy"], bins=bins),
    }
    if pairs:
        found |= {name: mean_of_pairs(matrix) for name, matrix in pair_matrices(member_probs).items()}
    return found


def _classification_rows(member_probs: Tensor, labels: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
    """Return the measures of each row (batch,) of checked float64 probabilities."""
    weights, labels = (
        checked_weights(weights, members=len(member_probs), like=member_probs),
        labels.to(member_probs.device),
    )
    probs = torch.einsum("m,mbc->bc", weights, member_probs)
    total, expected = entropy(probs), torch.einsum("m,mb->b", weights, entropy(member_probs))
    return {
        "confidence": probs.max(-1).values,
        "accuracy": correct_rows(probs, labels),
        "nll": nll_rows(probs, labels),
        "brier": brier_rows(probs, labels),
        "entropy": total,
        "expected_entropy": expected,
        "mutual_information": information_gap(total, expected),
        "variation_ratio": votes_outside_mode(member_probs, weights),
        "member_accuracy": correct_rows(member_probs, labels).mean(0),
        "member_nll": nll_rows(member_probs, labels).mean(0),
    }


def evaluate_regression(
    means: Tensor,
    variances: Tensor,
    targets: Tensor,
    *,
    levels: Sequence[float] = (0.5, 0.9, 0.95),
    weights: Tensor | None = None,
) -> dict[str, float]:
    """Return every regression measure of an ensemble of Gaussian predictions.

    Of the members' mixture: `rmse`, `mae`, `nll`, `crps`, and for each level (in percent) `coverage_90`, `width_90`,
    ... Of members alone, averaged: `member_rmse`, `member_nll`, `member_crps`. Row means `aleatoric` and `epistemic`
    (variances), and `residual_correlation` between members' errors.

    Args:
        means: (member, batch, ...).
        variances: (member, batch, ...), all positive.
        targets: (batch, ...), in the units of the means.
        levels: probabilities of the central intervals, whole percents between 0 and 1.
        weights: (member,) for the mixture, uniform by default.

    >>> result = evaluate_regression(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([0.0, 1.0, 3.0]))
    >>> round(result["rmse"], 4), round(result["coverage_90"], 4)
    (1.8257, 0.6667)
    """
    means, variances, targets = checked_regression(means, variances, targets)
    members = len(means)
    weights = checked_weights(weights, members=members, like=means)
    copies = targets.expand_as(means)
    center = torch.einsum("m,m...->...", weights, means)
    result = {
        "rmse": rmse(means, targets, weights=weights),
        "mae": float((center - targets).abs().mean()),
        "nll": mixture_nll(means, variances, targets, weights=weights),
        "crps": crps(means, variances, targets, weights=weights),
        "member_rmse": sum(rmse(member.unsqueeze(0), targets) for member in means) / members,
        "member_nll": float(-gaussian_log_scores(means, variances, targets).mean()),
        "member_crps": gaussian_crps(means, variances, copies),
        "aleatoric": float(aleatoric_variance(variances, weights=weights).mean()),
        "epistemic": float(epistemic_variance(means, weights=weights).mean()),
        "residual_correlation": member_correlation(means - targets),
    }
    for level in levels:
        percent = round(100 * level)
        if not 0 < level < 1 or abs(percent - 100 * level) > 1e-9:
            raise InputError(f"levels holds {level}; each must be a whole percent between 0 and 1, such as 0.9.")
        result[f"coverage_{percent}"] = coverage(means, variances, targets, level=level, weights=weights)
        result[f"width_{percent}"] = interval_width(*mixture_interval(means, variances, level=level, weights=weights))
    return result
