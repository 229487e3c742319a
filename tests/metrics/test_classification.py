import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import multiclass_accuracy

from choral.base.errors import InputError
from choral.metrics import PROB_FLOOR, accuracy, brier, logits_nll, nll, top_accuracy


def random_case(seed: int, batch: int = 200, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(batch, classes, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    return probs, torch.randint(classes, (batch,), generator=generator)


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 12))
@settings(max_examples=25, deadline=None)
def test_scores_agree_with_scikit_learn_and_torchmetrics(seed: int, classes: int) -> None:
    probs, labels = random_case(seed, classes=classes)
    names = list(range(classes))
    assert accuracy(probs, labels) == pytest.approx(accuracy_score(labels, probs.argmax(-1)), abs=1e-12)
    by_torchmetrics = multiclass_accuracy(probs, labels, num_classes=classes, average="micro")
    assert accuracy(probs, labels) == pytest.approx(float(by_torchmetrics), abs=1e-6)
    assert nll(probs, labels) == pytest.approx(log_loss(labels, probs.numpy(), labels=names), abs=1e-9)
    onehot = np.eye(classes)[labels.numpy()]
    assert brier(probs, labels) == pytest.approx(float(((probs.numpy() - onehot) ** 2).sum(1).mean()), abs=1e-12)


def test_hand_worked_scores() -> None:
    probs, labels = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]], dtype=torch.float64), torch.tensor([0, 2])
    assert accuracy(probs, labels) == 0.5
    assert nll(probs, labels) == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)
    # The rows cost 0.09 + 0.04 + 0.01 and 0.01 + 0.36 + 0.49.
    assert brier(probs, labels) == pytest.approx((0.14 + 0.86) / 2)


def test_a_true_class_at_zero_costs_the_documented_finite_amount() -> None:
    probs, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert nll(probs, labels) == pytest.approx(-math.log(PROB_FLOOR))
    assert nll(probs, labels) == pytest.approx(87.3365, abs=1e-4)
    assert brier(probs, labels) == 2.0
    assert nll(probs, torch.tensor([0])) == 0.0


def test_logits_nll_equals_nll_of_mean_probs_and_survives_underflow() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 50, 5, generator=generator, dtype=torch.float64) * 3
    labels = torch.randint(5, (50,), generator=generator)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    mean = (weights[:, None, None] * logits.softmax(-1)).sum(0)
    assert logits_nll(logits, labels, weights=weights) == pytest.approx(nll(mean, labels), abs=1e-12)
    far = torch.tensor([[[0.0, 2000.0]], [[0.0, 1000.0]]])
    assert logits_nll(far, torch.tensor([0])) == pytest.approx(1000 + math.log(2), abs=1e-6)
    alone = torch.tensor([1.0, 0.0])  # a weight of zero is allowed and ignored
    assert logits_nll(far, torch.tensor([0]), weights=alone) == pytest.approx(2000, abs=1e-6)


@pytest.mark.parametrize(
    ("probs", "labels", "words"),
    [
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "softmax"),
        (torch.tensor([[0.5, 0.2]]), torch.tensor([0]), "sum 1"),
        (torch.tensor([[float("nan"), 0.5]]), torch.tensor([0]), "NaN"),
        (torch.tensor([0.5, 0.5]), torch.tensor([0]), "(batch, class)"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), "0 ... 1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), "(batch,) = (1,)"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), "whole numbers"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_wrong(probs: torch.Tensor, labels: torch.Tensor, words: str) -> None:
    with pytest.raises(InputError) as caught:
        nll(probs, labels)
    assert words in str(caught.value)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_accuracy_counts_labels_of_rank_k_or_better(k: int) -> None:
    probs = torch.rand(200, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs, labels = probs / probs.sum(1, keepdim=True), torch.arange(200) % 7
    ranks = [
        sum(other > row[label] for other in row) for row, label in zip(probs.tolist(), labels.tolist(), strict=True)
    ]
    assert top_accuracy(probs, labels, k=k) == sum(rank < k for rank in ranks) / 200
    assert top_accuracy(probs, labels, k=9) == 1.0
