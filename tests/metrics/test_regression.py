import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import root_mean_squared_error
from torchmetrics.functional.regression import continuous_ranked_probability_score

from choral.base.errors import InputError
from choral.metrics import (
    crps,
    gaussian_log_scores,
    mixture_nll,
    rmse,
)


def case(seed: int, members: int = 4, batch: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(members, batch, generator=generator, dtype=torch.float64)
    variances = torch.rand(members, batch, generator=generator, dtype=torch.float64) + 0.05
    targets = torch.randn(batch, generator=generator, dtype=torch.float64) * 1.5
    weights = torch.rand(members, generator=generator, dtype=torch.float64)
    return means, variances, targets, weights / weights.sum()


@given(seed=st.integers(0, 10_000), members=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_rmse_and_mixture_density_agree_with_scikit_learn_and_scipy(seed: int, members: int) -> None:
    means, variances, targets, weights = case(seed, members)
    center = (weights[:, None] * means).sum(0)
    assert rmse(means, targets, weights=weights) == pytest.approx(root_mean_squared_error(targets, center), abs=1e-12)
    densities = norm.pdf(targets.numpy(), means.numpy(), variances.sqrt().numpy())
    expected = -np.log((weights[:, None].numpy() * densities).sum(0)).mean()
    assert mixture_nll(means, variances, targets, weights=weights) == pytest.approx(expected, abs=1e-9)


def test_one_member_is_the_plain_gaussian() -> None:
    means, variances, targets, _ = case(1, members=1)
    expected = -norm.logpdf(targets, means[0], variances[0].sqrt()).mean()
    assert mixture_nll(means, variances, targets) == pytest.approx(expected, abs=1e-12)
    # By hand: N(0, 1) at 0 is 2 phi(0) - 1 / sqrt(pi).
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    by_hand = 2 / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi)
    assert crps(zero, one, zero[0]) == pytest.approx(by_hand, abs=1e-12)


def test_far_targets_stay_finite() -> None:
    far = mixture_nll(torch.zeros(2, 1), torch.ones(2, 1), torch.full((1,), 1e4))
    assert far == pytest.approx(0.5e8 + 0.5 * math.log(2 * math.pi))


@pytest.mark.parametrize("members", [1, 5])
def test_crps_agrees_with_its_integral(members: int) -> None:
    # CRPS = integral of (F(z) - 1[y <= z])² dz, by the midpoint rule on a fine grid.
    means, variances, targets, weights = case(7, members)
    step = 1e-3
    grid = torch.arange(-15, 15, step, dtype=torch.float64) + step / 2
    for row in range(len(targets)):
        column = grid.unsqueeze(0).expand(members, -1)
        at = norm.cdf(column.numpy(), means[:, row, None].numpy(), variances[:, row, None].sqrt().numpy())
        mixture = (weights[:, None].numpy() * at).sum(0)
        integral = float((((mixture - (grid >= targets[row]).numpy()) ** 2) * step).sum())
        one = slice(row, row + 1)
        closed = crps(means[:, one], variances[:, one], targets[one], weights=weights)
        assert closed == pytest.approx(integral, abs=1e-3)


def test_crps_agrees_with_monte_carlo() -> None:
    means, variances, targets, weights = case(9, members=3, batch=4)
    generator, draws = torch.Generator().manual_seed(0), 400_000
    which = torch.multinomial(weights, 2 * draws, replacement=True, generator=generator)
    noise = torch.randn(2 * draws, 4, generator=generator, dtype=torch.float64)
    samples = means[which] + variances[which].sqrt() * noise
    first, second = samples[:draws], samples[draws:]
    expected = (samples - targets).abs().mean(0) - 0.5 * (first - second).abs().mean(0)
    assert crps(means, variances, targets, weights=weights) == pytest.approx(float(expected.mean()), abs=3e-3)


def test_crps_of_points_agrees_with_torchmetrics() -> None:
    means, _, targets, _ = case(3, members=12, batch=30)
    expected = continuous_ranked_probability_score(means.T, targets)
    assert crps(means, None, targets) == pytest.approx(float(expected), abs=1e-6)
    assert crps(means, torch.full_like(means, 1e-20), targets) == pytest.approx(float(expected), abs=1e-6)


def test_targets_with_more_axes_are_averaged_over_all_entries() -> None:
    means, variances, targets, _ = case(6)
    wide = (means.reshape(4, 3, 2), variances.reshape(4, 3, 2), targets.reshape(3, 2))
    assert mixture_nll(*wide) == pytest.approx(mixture_nll(means, variances, targets))
    assert crps(*wide) == pytest.approx(crps(means, variances, targets))
    assert gaussian_log_scores(*wide).shape == (4, 3, 2)


def test_wrong_arguments_are_refused() -> None:
    means, variances, targets, _ = case(0)
    with pytest.raises(InputError, match="infinite"):
        mixture_nll(means, torch.zeros_like(means), targets)
    with pytest.raises(InputError, match="never negative"):
        crps(means, -variances, targets)
    with pytest.raises(InputError, match="expand_as"):
        mixture_nll(means, variances[:1], targets)
    with pytest.raises(InputError, match="they must be"):
        rmse(means, targets.unsqueeze(1))  # (4, 6) against (6, 1) would broadcast to nonsense
    with pytest.raises(InputError, match="NaN"):
        rmse(means, targets * math.nan)
