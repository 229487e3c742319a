"""All scalar scores of an evaluation, under stable names; and scores over corruptions, relative to a baseline."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Count
from choral.metrics.classification import binned, brier_rows, correct_rows, equal_count_gap, nll_rows
from choral.metrics.diversity import mean_of_pairs, pair_matrices
from choral.metrics.inputs import average, checked_labels, checked_probs, row_chunks
from choral.metrics.uncertainty import entropies, votes_outside_mode


def evaluate_classification(
    member_probs: Tensor,
    labels: Tensor,
    *,
    bins: Count = 15,
    drop_at_most: int = 0,
    weights: Tensor | None = None,
    pairs: bool = True,
) -> dict[str, float]:
    """Return all classification scores of an ensemble.

    For the average of members: `accuracy`, `nll`, `brier`, `ece`, `mce`, `adaptive_ece`, and the row means `entropy`, `expected_entropy`,
    `mutual_information`, `variation_ratio`. For members, averaged: `member_accuracy`, `member_nll`. For pairs: `disagreement`,
    `pairwise_kl`, `member_correlation`. Rows are processed in blocks, so memory does not grow with them.

    Args:
        member_probs: (member, batch, class).
        labels: (batch,).
        bins: bins of the calibration errors.
        drop_at_most: bins with at most this many rows do not count for `mce`.
        weights: (member,) for the average of members, uniform by default.
        pairs: also compute pairwise scores, whose cost grows with members².

    >>> result = evaluate_classification(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]), torch.tensor([0]))
    >>> round(result["nll"], 4), result["disagreement"]
    (0.2231, 0.0)
    """
    if member_probs.ndim != 3:
        checked_probs(member_probs, members=True)  # raises, with the shape in its message
    members, batch, classes = member_probs.shape
    labels = checked_labels(labels, member_probs)
    blocks = [
        _classification_rows(checked_probs(member_probs[:, rows], members=True), labels[rows], weights)
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
    probs, labels = average(member_probs, weights), labels.to(member_probs.device)
    total, expected, gap = entropies(member_probs, weights)
    return {
        "confidence": probs.max(-1).values,
        "accuracy": correct_rows(probs, labels),
        "nll": nll_rows(probs, labels),
        "brier": brier_rows(probs, labels),
        "entropy": total,
        "expected_entropy": expected,
        "mutual_information": gap,
        "variation_ratio": votes_outside_mode(member_probs, weights),
        "member_accuracy": correct_rows(member_probs, labels).mean(0),
        "member_nll": nll_rows(member_probs, labels).mean(0),
    }


Errors = Mapping[str, Sequence[float]]


def corrupted_means(results: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean of every score over corruptions and severities, with the prefix `c_`.

    Every (corruption, severity) pair has equal weight: `c_accuracy`, `c_nll`, `c_ece`, ... are the papers' cAcc, cNLL, cECE.

    Args:
        results: corruption -> one dict of scores for each severity, as from `evaluate_classification`.

    >>> corrupted_means({"fog": [{"nll": 0.75}, {"nll": 0.25}], "snow": [{"nll": 1.0}, {"nll": 0.5}]})
    {'c_nll': 0.625}
    """
    cells = [cell for severities in results.values() for cell in severities]
    names = [name for name in cells[0] if all(name in cell for cell in cells)]
    return {f"c_{name}": sum(cell[name] for cell in cells) / len(cells) for name in names}


def corruption_errors(
    errors: Errors, baseline_errors: Errors, *, clean_error: float = 0.0, baseline_clean_error: float = 0.0
) -> dict[str, float]:
    """Return for each corruption the error summed over severities divided by the baseline's (CE; 1 = the baseline).

    With clean errors, it is the error added to the clean one divided by what the baseline adds (relative CE).

    Args:
        errors: corruption -> error rate (1 - accuracy) at each severity.
        baseline_errors: the same for the network compared with.
        clean_error, baseline_clean_error: error rates of both on clean data.

    Reference: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", 2019, arXiv:1903.12261, section 4.1. Papers print these times 100.
    Differs from the paper: appendix D.4 of Ensemble Model Patching subtracts the method's own clean error from the
    baseline's corrupted error; here, as in the original definition, the baseline's own is subtracted.
    """
    own, baseline = ({name: len(values) for name, values in held.items()} for held in (errors, baseline_errors))
    if own != baseline or not own or 0 in own.values():
        raise InputError(
            f"errors holds the corruptions and numbers of severities {own} and baseline_errors {baseline}; "
            "both must hold the same ones, and at least one."
        )
    added = {name: sum(values) - len(values) * clean_error for name, values in errors.items()}
    divisors = {name: sum(values) - len(values) * baseline_clean_error for name, values in baseline_errors.items()}
    for name, divisor in divisors.items():
        if divisor == 0:
            raise InputError(
                f"the baseline's error for {name!r} is 0, so nothing can be measured relative to it; leave it out."
            )
    return {name: value / divisors[name] for name, value in added.items()}


def mean_corruption_error(errors: Errors, baseline_errors: Errors, **clean: float) -> float:
    """Return the mean of `corruption_errors` (mCE, or relative mCE with clean errors; 1 = the baseline); arguments are the same.

    >>> mean_corruption_error({"fog": [0.2, 0.4], "snow": [0.3, 0.3]}, {"fog": [0.4, 0.8], "snow": [0.3, 0.3]})
    0.75
    """
    values = corruption_errors(errors, baseline_errors, **clean)
    return sum(values.values()) / len(values)
