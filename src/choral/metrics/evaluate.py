"""All scalars of one evaluation, at once or from batches.

Every scalar of one evaluation under stable names.

The same numbers from batches: accumulators for sets whose member probabilities do not fit in memory.

Feed `(member, batch, class)` blocks in any sizes, then ask once. Everything that is a mean over rows is kept as a sum,
so the result equals the full computation up to rounding. Only one or two numbers are kept for each row (its confidence
for the adaptive calibration error, its scores for AUROC), never its probabilities.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.classification import (
    ReliabilityTable,
    bin_sums,
    brier_rows,
    correct_rows,
    equal_count_gap,
    nll_rows,
    table_of_sums,
)
from choral.metrics.diversity import PairSums, mean_of_pairs, member_correlation, pair_sums
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
    ood_scores,
    votes_outside_mode,
)

_ELEMENTS = 1 << 20  # of one working copy in float64: 8 MiB; about ten are alive at once


class _Column:
    """A growing (row,) of float64.

    One buffer that doubles: many small tensors kept between large ones that come and go would pin the allocator's heap,
    which was seen to grow tenfold.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(1024, dtype=torch.float64)
        self._used = 0

    def extend(self, values: Tensor) -> None:
        """Append the values."""
        needed = self._used + len(values)
        if needed > len(self._buffer):
            larger = torch.empty(max(needed, 2 * len(self._buffer)), dtype=torch.float64)
            larger[: self._used] = self._buffer[: self._used]
            self._buffer = larger
        self._buffer[self._used : needed] = values
        self._used = needed

    def values(self) -> Tensor:
        """Return a copy of everything appended so far."""
        return self._buffer[: self._used].clone()


class ClassificationStream:
    """Accumulates every scalar of `evaluate_classification` over batches.

    Args:
        bins: bins of the calibration errors (equally wide for ECE and MCE, equally full for the adaptive one).
        drop_at_most: bins with at most this many rows do not count for MCE.
        weights: (member,) for the average of members, uniform by default.
        pairs: also compare members pair by pair (disagreement, KL, correlation); costs members² a row.

    >>> stream = ClassificationStream()
    >>> stream.update(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]), torch.tensor([0]))
    >>> stream.update(torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]]), torch.tensor([1]))
    >>> stream.compute()["accuracy"], stream.compute()["disagreement"]
    (0.5, 0.5)
    """

    def __init__(
        self, *, bins: int = 15, drop_at_most: int = 0, weights: Tensor | None = None, pairs: bool = True
    ) -> None:
        self._bins, self._drop_at_most, self._weights, self._with_pairs = bins, drop_at_most, weights, pairs
        self._shape: tuple[int, int] | None = None  # members, classes
        self._rows = 0
        self._sums: dict[str, float] = {}
        self._bin_sums = torch.zeros(3, bins, dtype=torch.float64)
        self._pairs: PairSums | None = None
        self._confidence, self._correct = _Column(), _Column()

    def update(self, member_probs: Tensor, labels: Tensor) -> None:
        """Take in one batch.

        Shapes: member_probs (member, batch, class), labels (batch,); members and classes equal in every batch.
        """
        if member_probs.ndim != 3:
            checked_member_probs(member_probs)  # raises, with the shape in its message
        members, batch, classes = member_probs.shape
        if self._shape not in (None, (members, classes)):
            raise InputError(
                f"this batch has {members} members and {classes} classes, the ones before had {self._shape}; "
                "use one stream for each ensemble."
            )
        labels = checked_labels(labels, batch=batch, classes=classes)
        blocks = list(row_chunks(batch, width=members * classes, elements=_ELEMENTS))
        for rows in blocks:
            self._take(checked_member_probs(member_probs[:, rows]), labels[rows].to(member_probs.device))
        self._shape = (members, classes)

    def _take(self, member_probs: Tensor, labels: Tensor) -> None:
        weights = checked_weights(self._weights, members=len(member_probs), like=member_probs)
        probs = torch.einsum("m,mbc->bc", weights, member_probs)
        confidence, correct = probs.max(-1).values, correct_rows(probs, labels)
        total, expected = entropy(probs), torch.einsum("m,mb->b", weights, entropy(member_probs))
        rows = {
            "accuracy": correct,
            "nll": nll_rows(probs, labels),
            "brier": brier_rows(probs, labels),
            "entropy": total,
            "expected_entropy": expected,
            "mutual_information": information_gap(total, expected),
            "variation_ratio": votes_outside_mode(member_probs, weights),
            "member_accuracy": correct_rows(member_probs, labels).mean(0),
            "member_nll": nll_rows(member_probs, labels).mean(0),
        }
        for name, values in rows.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        self._rows += len(labels)
        self._bin_sums += bin_sums(confidence, correct, bins=self._bins).cpu()
        self._confidence.extend(confidence)
        self._correct.extend(correct)
        if self._with_pairs:
            part = pair_sums(member_probs)
            self._pairs = part if self._pairs is None else self._pairs + part

    def table(self) -> ReliabilityTable:
        """Return the reliability table of all rows so far."""
        return table_of_sums(self._bin_sums)

    def pairs(self) -> dict[str, Tensor]:
        """Return the (member, member) matrices of all rows so far: disagreement, pairwise_kl, member_correlation."""
        if self._pairs is None:
            raise InputError("no pairs were accumulated; feed at least one batch to a stream with pairs=True.")
        return {
            "disagreement": self._pairs.disagreement(),
            "pairwise_kl": self._pairs.kl(),
            "member_correlation": self._pairs.correlation(),
        }

    def compute(self) -> dict[str, float]:
        """Return every scalar of all rows so far, by the names `evaluate_classification` documents."""
        if not self._rows:
            raise InputError("nothing was accumulated; feed at least one batch with update(member_probs, labels).")
        means = {name: value / self._rows for name, value in self._sums.items()}
        table = self.table()
        means |= {
            "ece": table.ece,
            "mce": table.mce(drop_at_most=self._drop_at_most),
            "adaptive_ece": equal_count_gap(self._confidence.values(), self._correct.values(), bins=self._bins),
        }
        if self._with_pairs:
            means |= {name: mean_of_pairs(matrix) for name, matrix in self.pairs().items()}
        return means


class ScoreStream:
    """Accumulates the out-of-distribution scores of `ood_scores` over batches: five numbers a row.

    Args:
        weights: (member,) for the average of members, uniform by default.
    """

    def __init__(self, *, weights: Tensor | None = None) -> None:
        self._weights = weights
        self._columns: dict[str, _Column] = {}

    def update(self, member_probs: Tensor, *, member_logits: Tensor | None = None) -> None:
        """Take in one batch of (member, batch, class) probabilities, and logits if max_logit is wanted."""
        if member_probs.ndim != 3:
            checked_member_probs(member_probs)  # raises, with the shape in its message
        members, batch, classes = member_probs.shape
        for rows in row_chunks(batch, width=members * classes, elements=_ELEMENTS):
            logits = None if member_logits is None else member_logits[:, rows]
            part = ood_scores(member_probs[:, rows], member_logits=logits, weights=self._weights)
            if self._columns and set(self._columns) != set(part):
                raise InputError("member_logits must be given for every batch or for none.")
            for name, scores in part.items():
                self._columns.setdefault(name, _Column()).extend(scores)

    def compute(self) -> dict[str, Tensor]:
        """Return each score of all rows so far, (batch,)."""
        if not self._columns:
            raise InputError("nothing was accumulated; feed at least one batch with update(member_probs).")
        return {name: column.values() for name, column in self._columns.items()}


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
    stream = ClassificationStream(bins=bins, drop_at_most=drop_at_most, weights=weights, pairs=pairs)
    stream.update(member_probs, labels)
    return stream.compute()


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
