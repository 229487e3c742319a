"""Metrics of ensembles: pure functions of tensors.

`probs` is (batch, class), `member_probs` and `member_logits` are (member, batch, class), `means` and `variances` are (member, batch, ...).
Results are plain floats computed in float64.
"""

from choral.base.values import offered
from choral.metrics.classification import (
    ReliabilityTable,
    accuracy,
    adaptive_ece,
    average_precisions,
    brier,
    class_report,
    ece,
    logits_nll,
    mce,
    nll,
    reliability_table,
    top_accuracy,
)
from choral.metrics.diversity import (
    average_draws,
    correlation_matrix,
    disagreement,
    disagreement_matrix,
    member_correlation,
    pair_matrices,
)
from choral.metrics.evaluate import corrupted_means, corruption_errors, evaluate_classification, mean_corruption_error
from choral.metrics.inputs import PROB_FLOOR
from choral.metrics.regression import crps, gaussian_log_scores, interval_coverage, interval_width, mixture_nll, rmse
from choral.metrics.uncertainty import (
    aleatoric_variance,
    aupr,
    auroc,
    entropy,
    epistemic_variance,
    evaluate_ood,
    evaluate_scores,
    expected_entropy,
    fpr95,
    max_logit_score,
    mutual_information,
    ood_scores,
    variation_ratio,
)

__all__ = [
    "PROB_FLOOR", "ReliabilityTable", "accuracy", "adaptive_ece", "aleatoric_variance", "aupr", "auroc",
    "average_draws", "average_precisions", "brier", "class_report", "correlation_matrix", "corrupted_means",
    "corruption_errors", "crps", "disagreement", "disagreement_matrix", "ece", "entropy",
    "epistemic_variance", "evaluate_classification", "evaluate_ood", "evaluate_scores",
    "expected_entropy", "fpr95", "gaussian_log_scores", "interval_coverage", "interval_width",
    "logits_nll", "max_logit_score", "mce", "mean_corruption_error", "member_correlation", "mixture_nll",
    "mutual_information", "nll", "ood_scores", "pair_matrices",
    "reliability_table", "rmse", "top_accuracy", "variation_ratio",
]  # fmt: skip

globals().update(offered(__all__, globals()))
