import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from choral.metrics import adaptive_ece, ece, mce, reliability_table


def random_case(seed: int, batch: int = 500, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(batch, classes, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    # Labels drawn from the probabilities: the gaps have both signs, so the binning matters.
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def slow_gaps(probs: torch.Tensor, labels: torch.Tensor, bins: int) -> list[tuple[int, float]]:
    """Count and gap of each bin (r / bins, (r + 1) / bins], row by row."""
    gaps = []
    for r in range(bins):
        rows = [i for i in range(len(probs)) if r / bins < float(probs[i].max()) <= (r + 1) / bins]
        right = [float(probs[i].argmax() == labels[i]) for i in rows]
        sure = [float(probs[i].max()) for i in rows]
        gaps.append((len(rows), abs(float(np.mean(right) - np.mean(sure))) if rows else 0.0))
    return gaps


@given(seed=st.integers(0, 10_000), bins=st.integers(1, 25))
@settings(max_examples=25, deadline=None)
def test_errors_agree_with_torchmetrics(seed: int, bins: int) -> None:
    probs, labels = random_case(seed)
    expected = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=bins, norm="l1")
    largest = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=bins, norm="max")
    assert ece(probs, labels, bins=bins) == pytest.approx(float(expected), abs=1e-6)
    assert mce(probs, labels, bins=bins) == pytest.approx(float(largest), abs=1e-6)


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
def test_errors_agree_with_a_slow_reference(bins: int) -> None:
    probs, labels = random_case(11, batch=300)
    gaps = slow_gaps(probs, labels, bins)
    assert ece(probs, labels, bins=bins) == pytest.approx(sum(n * gap for n, gap in gaps) / 300, abs=1e-12)
    for drop in (0, 5, 30):
        kept = [(n, gap) for n, gap in gaps if n > drop]
        largest, rows = max((gap for _, gap in kept), default=0.0), max(1, sum(n for n, _ in kept))
        assert mce(probs, labels, bins=bins, drop_at_most=drop) == pytest.approx(largest, abs=1e-12)
        mean = sum(n * gap for n, gap in kept) / rows
        assert ece(probs, labels, bins=bins, drop_at_most=drop) == pytest.approx(mean, abs=1e-12)


def test_bins_are_closed_on_the_right_and_certainty_shares_the_last_bin() -> None:
    # 0.5 belongs to (0, 0.5]; 1.0 belongs to (0.5, 1.0] together with 0.9.
    probs = torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]], dtype=torch.float64)
    table = reliability_table(probs, torch.tensor([0, 0, 1]), bins=2)
    assert table.counts.tolist() == [1, 2]
    assert table.confidence.tolist() == pytest.approx([0.5, 0.95])
    assert table.accuracy.tolist() == [1.0, 0.5]
    assert table.ece() == pytest.approx((0.5 + 2 * 0.45) / 3)
    assert table.ece(drop_at_most=1) == pytest.approx(0.45)
    assert table.ece(drop_at_most=9) == 0.0
    assert table.mce() == pytest.approx(0.5)
    assert table.mce(drop_at_most=1) == pytest.approx(0.45)
    assert table.mce(drop_at_most=9) == 0.0


def test_adaptive_error_uses_runs_of_equal_count() -> None:
    probs, labels = random_case(5, batch=103)
    sure, right = probs.max(-1).values.numpy(), (probs.argmax(-1) == labels).numpy().astype(float)
    order = np.argsort(sure, kind="stable")
    runs = np.array_split(order, 10)
    assert [len(run) for run in runs] == [11, 11, 11] + [10] * 7
    expected = sum(len(run) / 103 * abs(right[run].mean() - sure[run].mean()) for run in runs)
    assert adaptive_ece(probs, labels, bins=10) == pytest.approx(expected, abs=1e-12)
    # By hand: two runs, {0.6, 0.7} both right and {0.8, 0.9} one right.
    hand = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.7, 0.3]], dtype=torch.float64)
    assert adaptive_ece(hand, torch.tensor([0, 0, 1, 0]), bins=2) == pytest.approx(0.5 * 0.35 + 0.5 * 0.35)


def test_error_of_a_calibrated_simulation_falls_with_the_number_of_rows() -> None:
    errors = []
    for batch in (300, 3_000, 30_000, 150_000):
        over_seeds = []
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            probs = torch.randn(batch, 4, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
            labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
            over_seeds.append((ece(probs, labels), adaptive_ece(probs, labels)))
        errors.append(np.mean(over_seeds, axis=0))
    for smaller, larger in zip(errors[1:], errors):
        assert (smaller < 0.65 * larger).all()  # about 1 / sqrt(10) = 0.32, then 1 / sqrt(5) = 0.45
    assert errors[-1].max() < 0.005
