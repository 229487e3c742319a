"""Average precision of classes against scikit-learn and values worked out by hand."""

import pytest
import torch
from sklearn.metrics import average_precision_score

from choral import metrics


def test_each_class_is_told_from_all_others():
    draw = torch.Generator().manual_seed(0)
    probs = torch.rand(80, 4, generator=draw).softmax(1)
    labels = torch.randint(0, 3, (80,), generator=draw)  # the last class has no row
    found = metrics.class_report(probs, labels)["average_precision"]
    for i in range(3):
        own = average_precision_score((labels == i).numpy(), probs[:, i].numpy())
        assert found[i] == pytest.approx(own, abs=1e-9)
    assert found[3] is None


def test_probabilities_that_say_nothing_have_the_share_of_the_class():
    probs, labels = torch.full((10, 2), 0.5), (torch.arange(10) < 2).long()
    assert metrics.average_precisions(probs, labels) == pytest.approx([0.8, 0.2])


def test_many_classes_have_no_matrix():
    assert "confusion" in metrics.class_report(torch.eye(100), torch.arange(100))
    assert not {"confusion", "average_precision"} & set(metrics.class_report(torch.eye(101), torch.arange(101)))
