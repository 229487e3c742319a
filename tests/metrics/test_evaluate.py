import pytest
import torch

from choral.metrics import evaluate_classification

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


def test_names_are_stable_and_values_are_floats() -> None:
    generator = torch.Generator().manual_seed(0)
    member_probs = torch.randn(3, 50, 4, generator=generator).softmax(-1)
    result = evaluate_classification(member_probs, torch.randint(4, (50,), generator=generator))
    assert list(result) == CLASSIFICATION
    assert all(type(value) is float for value in result.values())


def test_averaging_never_loses_log_score_against_the_mean_member() -> None:
    generator = torch.Generator().manual_seed(1)
    member_probs = torch.randn(5, 200, 4, generator=generator).mul(3).softmax(-1)
    result = evaluate_classification(member_probs, torch.randint(4, (200,), generator=generator))
    assert result["nll"] < result["member_nll"]  # Jensen
    assert result["entropy"] == pytest.approx(result["expected_entropy"] + result["mutual_information"], abs=1e-12)
