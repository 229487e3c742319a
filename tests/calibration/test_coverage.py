import numpy as np
import pytest
import torch

from choral.calibration import conformal_threshold


@pytest.mark.parametrize(("count", "level", "rank"), [(9, 0.9, 9), (99, 0.9, 90), (100, 0.9, 91), (19, 0.95, 19)])
def test_threshold_is_the_documented_order_statistic(count: int, level: float, rank: int) -> None:
    scores = torch.arange(1.0, count + 1)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    assert conformal_threshold(scores, level) == rank


def test_a_new_score_is_below_the_threshold_as_often_as_the_theorem_says() -> None:
    """For n distinct scores the probability is exactly ceil((n + 1) level) / (n + 1)."""
    generator = np.random.default_rng(0)
    n, level, trials = 12, 0.8, 20_000
    hits = 0
    for row in generator.exponential(size=(trials, n + 1)):
        threshold = conformal_threshold(torch.from_numpy(row[:n]), level)
        assert threshold is not None
        hits += row[n] <= threshold
    assert hits / trials == pytest.approx(11 / 13, abs=0.01)
