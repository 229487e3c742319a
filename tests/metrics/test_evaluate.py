import pytest
import torch

from choral import metrics
from choral.metrics import evaluate_classification, evaluate_regression

CLASSIFICATION = [
    "accuracy",
    "nll",
    "brier",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "variation_ratio",
    "member_accuracy",
    "member_nll",
    "ece",
    "mce",
    "adaptive_ece",
    "disagreement",
    "pairwise_kl",
    "member_correlation",
]
REGRESSION = [
    "rmse",
    "mae",
    "nll",
    "crps",
    "member_rmse",
    "member_nll",
    "member_crps",
    "aleatoric_std",
    "epistemic_std",
    "residual_correlation",
    "coverage_50",
    "width_50",
    "coverage_90",
    "width_90",
    "coverage_95",
    "width_95",
]


def test_names_are_stable_and_values_are_floats() -> None:
    generator = torch.Generator().manual_seed(0)
    member_probs = torch.randn(3, 50, 4, generator=generator).softmax(-1)
    result = evaluate_classification(member_probs, torch.randint(4, (50,), generator=generator))
    assert list(result) == CLASSIFICATION
    assert all(type(value) is float for value in result.values())
    means, targets = torch.randn(3, 50, generator=generator), torch.randn(50, generator=generator)
    result = evaluate_regression(means, torch.ones(3, 50), targets)
    assert list(result) == REGRESSION
    assert all(type(value) is float for value in result.values())


def test_averaging_never_loses_log_score_against_the_mean_member() -> None:
    generator = torch.Generator().manual_seed(1)
    member_probs = torch.randn(5, 200, 4, generator=generator).mul(3).softmax(-1)
    result = evaluate_classification(member_probs, torch.randint(4, (200,), generator=generator))
    assert result["nll"] < result["member_nll"]  # Jensen
    assert result["entropy"] == pytest.approx(result["expected_entropy"] + result["mutual_information"], abs=1e-12)


def test_regression_values_are_those_of_the_single_functions() -> None:
    generator = torch.Generator().manual_seed(2)
    means, targets = torch.randn(4, 30, 2, generator=generator), torch.randn(30, 2, generator=generator)
    variances = torch.rand(4, 30, 2, generator=generator) + 0.1
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    result = evaluate_regression(means, variances, targets, weights=weights, levels=(0.8,))
    assert result["nll"] == metrics.mixture_nll(means, variances, targets, weights=weights)
    assert result["crps"] == metrics.crps(means, variances, targets, weights=weights)
    lower, upper = metrics.mixture_interval(means, variances, level=0.8, weights=weights)
    assert result["coverage_80"] == metrics.interval_coverage(lower, upper, targets)
    assert result["width_80"] == metrics.interval_width(lower, upper)
    center = (weights.double()[:, None, None] * means.double()).sum(0)
    assert result["mae"] == pytest.approx(float((center - targets.double()).abs().mean()))
    single = [metrics.crps(means[i : i + 1], variances[i : i + 1], targets) for i in range(4)]
    assert result["member_crps"] == pytest.approx(sum(single) / 4)
    rmses = [metrics.rmse(means[i : i + 1], targets) for i in range(4)]
    assert result["member_rmse"] == pytest.approx(sum(rmses) / 4)


def test_a_level_between_whole_percents_has_a_name_of_its_own() -> None:
    found = evaluate_regression(torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(2), levels=(0.55, 0.925))
    assert {"coverage_55", "coverage_92.5", "width_92.5"} <= found.keys()
