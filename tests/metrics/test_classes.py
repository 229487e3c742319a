"""Precision and recall against scikit-learn and values worked out by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_curve

from choral import metrics
from choral.base.errors import InputError


@pytest.mark.parametrize("rare", [0.5, 0.03])
def test_average_precision_is_scikit_learn_s_also_with_ties(rare):
    draw = np.random.default_rng(1)
    positive = draw.random(500) < rare
    scores = (draw.normal(size=500) + positive).round(1)
    found = metrics.average_precision(torch.tensor(scores), torch.tensor(positive))
    assert found == pytest.approx(average_precision_score(positive, scores), abs=1e-12)
    recall, precision, threshold = metrics.precision_recall(torch.tensor(scores), torch.tensor(positive))
    p, r, t = precision_recall_curve(positive, scores)
    assert threshold.numpy() == pytest.approx(t[::-1])
    assert recall.numpy() == pytest.approx(r[:-1][::-1])
    assert precision.numpy() == pytest.approx(p[:-1][::-1])


def test_scores_that_say_nothing_have_the_share_of_positives():
    assert metrics.average_precision(torch.zeros(10), torch.arange(10) < 2) == pytest.approx(0.2)
    assert metrics.average_precision(-torch.arange(10.0), torch.arange(10) < 2) == 1


def test_positives_are_needed():
    with pytest.raises(InputError, match="0 positive of 3 points"):
        metrics.precision_recall(torch.ones(3), torch.zeros(3))


def test_each_class_is_told_from_all_others():
    draw = torch.Generator().manual_seed(0)
    probs = torch.rand(80, 4, generator=draw).softmax(1)
    labels = torch.randint(0, 3, (80,), generator=draw)  # the last class has no row
    found = metrics.precision_curves(probs, labels)
    for i in range(3):
        own = average_precision_score((labels == i).numpy(), probs[:, i].numpy())
        assert found["average_precision"][i] == pytest.approx(own, abs=1e-9)
        assert len(found["curves"][i]) == 60
        assert found["curves"][i][-1] == pytest.approx([1.0, float((labels == i).double().mean())])
    assert found["average_precision"][3] is None
    assert found["curves"][3] == []


def test_many_classes_have_no_curves():
    labels = torch.arange(30)
    assert "curves" not in metrics.precision_curves(torch.eye(30), labels)
    assert metrics.precision_curves(torch.eye(101), torch.arange(101)) == {}
