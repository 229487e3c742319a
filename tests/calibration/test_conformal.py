import numpy as np
import pytest
import torch

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.calibration import (
    ConformalQuantile,
    ConformalResidual,
    ConformalSets,
    evaluate_intervals,
    fit_quantile_intervals,
    fit_residual_intervals,
)


def case(seed: int, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predictions with a bias, true scales that vary from row to row, targets with heavy tails."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, batch)
    scales = 0.2 + np.abs(x)
    targets = np.sin(x) + scales * generator.standard_t(4, batch)
    return torch.tensor(np.sin(x) + 0.1), torch.tensor(scales), torch.tensor(targets)


@pytest.mark.parametrize("kind", ["plain", "scaled", "quantile"])
@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_coverage_is_as_promised_over_twenty_seeds(kind: str, level: float) -> None:
    covered = []
    for seed in range(20):
        predictions, scales, targets = case(seed, 2_000)
        fit, new = slice(0, 1_000), slice(1_000, None)
        if kind == "quantile":
            lower, upper = predictions - scales, predictions + scales  # a guess that covers too little
            quantile = fit_quantile_intervals(lower[fit], upper[fit], targets[fit], level=level)
            ends = quantile.apply(lower[new], upper[new])
        else:
            used = scales if kind == "scaled" else None
            residual = fit_residual_intervals(
                predictions[fit], targets[fit], level=level, scales=None if used is None else used[fit]
            )
            ends = residual.apply(predictions[new], scales=None if used is None else used[new])
        covered.append(evaluate_intervals(*ends, targets[new])["coverage"])
    assert np.mean(covered) == pytest.approx(level, abs=0.015)


def test_scaled_intervals_cover_evenly_where_plain_ones_do_not() -> None:
    predictions, scales, targets = case(0, 40_000)
    noisy = scales > 1.5
    plain = fit_residual_intervals(predictions, targets).apply(predictions)
    scaled = fit_residual_intervals(predictions, targets, scales=scales).apply(predictions, scales=scales)
    for ends, spread in ((plain, 0.1), (scaled, 0.0)):
        inside = (ends[0] <= targets) & (targets <= ends[1])
        gap = float(inside[~noisy].double().mean() - inside[noisy].double().mean())
        assert gap == pytest.approx(spread, abs=0.02) if spread == 0.0 else gap > spread


def test_hand_worked_thresholds() -> None:
    predictions, targets = torch.zeros(4), torch.tensor([1.0, -2.0, 3.0, -4.0])
    residual = fit_residual_intervals(predictions, targets, level=0.6)  # ceil(5 * 0.6) = 3rd of 1, 2, 3, 4
    assert residual.thresholds == (3.0,)
    scaled = fit_residual_intervals(predictions, targets, level=0.6, scales=torch.tensor([1.0, 1.0, 3.0, 1.0]))
    assert scaled.thresholds == (2.0,)  # 3rd of 1, 2, 1, 4
    lower, upper = scaled.apply(torch.tensor([10.0]), scales=torch.tensor([0.5]))
    assert (lower.item(), upper.item()) == (9.0, 11.0)
    # Outside by 0, 1, 2 and 3.
    quantile = fit_quantile_intervals(torch.full((4,), -1.0), torch.ones(4), targets, level=0.6)
    assert quantile.thresholds == (2.0,)
    assert [end.item() for end in quantile.apply(torch.tensor([0.0]), torch.tensor([1.0]))] == [-2.0, 3.0]


def test_too_wide_quantiles_are_narrowed_and_ends_never_cross() -> None:
    predictions, _, targets = case(1, 2_000)
    quantile = fit_quantile_intervals(predictions - 50, predictions + 50, targets)
    threshold = quantile.thresholds[0]
    assert threshold is not None
    assert threshold < -40
    lower, upper = quantile.apply(torch.tensor([0.0]), torch.tensor([4.0]))
    assert lower.item() == upper.item() == 2.0


def test_each_target_has_its_own_threshold() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(5_000, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 10.0])
    residual = fit_residual_intervals(torch.zeros_like(targets), targets)
    assert residual.thresholds == pytest.approx([1.645, 16.45], rel=0.06)
    lower, upper = residual.apply(torch.zeros_like(targets))
    for column in range(2):
        inside = (lower[:, column] <= targets[:, column]) & (targets[:, column] <= upper[:, column])
        assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.002)


def test_too_few_rows_give_the_whole_line_and_can_be_written() -> None:
    residual = fit_residual_intervals(torch.zeros(5), torch.ones(5), level=0.9)
    assert residual.thresholds == (None,)
    lower, upper = residual.apply(torch.zeros(3))
    assert evaluate_intervals(lower, upper, torch.full((3,), 1e9))["coverage"] == 1.0
    for value in (residual, ConformalResidual(thresholds=(1.0, None), level=0.9, scaled=True)):
        assert from_dict(value.to_dict()) == value
    quantile = ConformalQuantile(thresholds=(-0.5,), level=0.8)
    assert from_dict(quantile.to_dict()) == quantile


def test_wrong_arguments_are_refused() -> None:
    predictions, scales, targets = case(2, 50)
    scaled = fit_residual_intervals(predictions, targets, scales=scales)
    with pytest.raises(InputError, match="fitted with scales"):
        scaled.apply(predictions)
    with pytest.raises(InputError, match="fitted without scales"):
        fit_residual_intervals(predictions, targets).apply(predictions, scales=scales)
    with pytest.raises(InputError, match="positive"):
        fit_residual_intervals(predictions, targets, scales=scales * 0)
    with pytest.raises(InputError, match="must be equal"):
        fit_residual_intervals(predictions, targets.unsqueeze(1))


def test_a_score_at_the_threshold_is_inside_whatever_its_last_bit():
    probs = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)).softmax(
        -1
    )  # their sums are 1 up to rounding
    rule = ConformalSets(threshold=1.0, level=0.9, randomized=False)
    assert len(set(probs.double().sum(-1).tolist())) > 1
    assert rule.apply(probs).all()
