"""Measures of an ensemble: pure functions of tensors whose names say what they hold.

`probs` is (batch, class), `member_probs` and `member_logits` are (member, batch, class), `means` and `variances` are
(member, batch, ...). Results are plain floats computed in float64.
"""

from choral.base.fitting import offered
from choral.metrics.accumulators import ClassificationStream, ScoreStream
from choral.metrics.calibration import ReliabilityTable, adaptive_ece, ece, mce, reliability_table
from choral.metrics.classes import average_precision, class_report, precision_curves, precision_recall
from choral.metrics.classification import accuracy, brier, logits_nll, nll
from choral.metrics.corruption import (
    corrupted_means,
    corruption_errors,
    mean_corruption_error,
    relative_corruption_errors,
    relative_mean_corruption_error,
)
from choral.metrics.diversity import (
    average_draws,
    correlation_matrix,
    disagreement,
    disagreement_matrix,
    kl_matrix,
    member_correlation,
    pairwise_kl,
)
from choral.metrics.evaluate import evaluate_classification, evaluate_regression
from choral.metrics.fidelity import agreement, total_variation, w1, w2, wasserstein_rows
from choral.metrics.inputs import PROB_FLOOR
from choral.metrics.ood import (
    aupr,
    auroc,
    evaluate_ood,
    evaluate_scores,
    fpr95,
    max_logit_score,
    max_probability_score,
    ood_scores,
)
from choral.metrics.regression import (
    coverage,
    crps,
    gaussian_crps,
    gaussian_log_scores,
    interval_coverage,
    interval_width,
    mixture_cdf,
    mixture_interval,
    mixture_nll,
    mixture_quantile,
    rmse,
)
from choral.metrics.uncertainty import (
    aleatoric_variance,
    entropy,
    epistemic_variance,
    expected_entropy,
    mean_probs,
    mutual_information,
    variation_ratio,
)

__all__ = [
    "PROB_FLOOR",
    "ClassificationStream",
    "ReliabilityTable",
    "ScoreStream",
    "accuracy",
    "adaptive_ece",
    "agreement",
    "aleatoric_variance",
    "aupr",
    "auroc",
    "average_draws",
    "average_precision",
    "brier",
    "class_report",
    "correlation_matrix",
    "corrupted_means",
    "corruption_errors",
    "coverage",
    "crps",
    "disagreement",
    "disagreement_matrix",
    "ece",
    "entropy",
    "epistemic_variance",
    "evaluate_classification",
    "evaluate_ood",
    "evaluate_regression",
    "evaluate_scores",
    "expected_entropy",
    "fpr95",
    "gaussian_crps",
    "gaussian_log_scores",
    "interval_coverage",
    "interval_width",
    "kl_matrix",
    "logits_nll",
    "max_logit_score",
    "max_probability_score",
    "mce",
    "mean_corruption_error",
    "mean_probs",
    "member_correlation",
    "mixture_cdf",
    "mixture_interval",
    "mixture_nll",
    "mixture_quantile",
    "mutual_information",
    "nll",
    "ood_scores",
    "pairwise_kl",
    "precision_curves",
    "precision_recall",
    "relative_corruption_errors",
    "relative_mean_corruption_error",
    "reliability_table",
    "rmse",
    "total_variation",
    "variation_ratio",
    "w1",
    "w2",
    "wasserstein_rows",
]

globals().update(offered(__all__, globals()))
