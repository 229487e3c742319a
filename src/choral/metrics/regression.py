"""Scores of Gaussian and Gaussian-mixture predictions: RMSE, NLL, CRPS, intervals and their coverage.

`means` and `variances` are (member, batch, ...), `targets`, `lower` and `upper` (batch, ...), `weights` of members (member,), uniform by
default. The prediction for a target is the mixture sum_m w_m N(mean_m, variance_m). Every entry after the batch axis is a separate
target, and scores are averages over all of them. A variance of 0 is a point prediction; CRPS allows it, a likelihood does not.
"""

import math

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import average, checked_finite, checked_regression, checked_weights, mixture_log

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def rmse(means: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the root mean squared error of the members' (weighted) average.

    >>> rmse(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([2.0, 4.0]))
    1.4142135623730951
    """
    means, _, targets = checked_regression(means, None, targets)
    return math.sqrt(float((average(means, weights) - targets).square().mean()))


def gaussian_log_scores(means: Tensor, variances: Tensor, targets: Tensor) -> Tensor:
    """Return log N(target; mean, variance) of each member in float64.

    Shapes: means and variances (member, batch, ...), targets (batch, ...) -> (member, batch, ...).
    """
    means, variances, targets = checked_regression(means, variances, targets)
    if float(variances.min()) <= 0:
        raise InputError(
            "variances holds a 0, under which a likelihood is infinite; give the noise variance, or use crps, which "
            "allows points."
        )
    return -0.5 * (targets - means).square() / variances - 0.5 * variances.log() - _HALF_LOG_TWO_PI


def mixture_nll(means: Tensor, variances: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the mean negative log density of the targets under the members' mixture, in nats.

    -log sum_m w_m N(y; mean_m, variance_m); with more than one target in a row, the mean over targets.

    >>> round(mixture_nll(torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(1)), 6)
    0.918939
    """
    return float(-mixture_log(gaussian_log_scores(means, variances, targets), weights).mean())


def _expected_distance(centered: Tensor, scales: Tensor) -> Tensor:
    """Return E|X| of X ~ N(centered, scales²): 2 s phi(c/s) + c (2 Phi(c/s) - 1), and |c| where the scale is 0."""
    z = centered / scales.clamp_min(1e-300)
    density = torch.exp(-0.5 * z.square() - _HALF_LOG_TWO_PI)
    smooth = 2.0 * scales * density + centered * torch.special.erf(z / math.sqrt(2.0))
    return torch.where(scales > 0, smooth, centered.abs())


def crps_rows(means: Tensor, variances: Tensor | None, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return each target's score as in `crps`. Memory grows with the members, not with their pairs."""
    means, variances, targets = checked_regression(means, variances, targets)
    shares = checked_weights(weights, means)
    to_target = average(_expected_distance(targets - means, variances.sqrt()), shares)
    between = torch.zeros_like(targets)
    for share, mean, variance in zip(shares, means, variances):
        between += share * average(_expected_distance(mean - means, (variance + variances).sqrt()), shares)
    return to_target - 0.5 * between


def crps(means: Tensor, variances: Tensor | None, targets: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the mean continuous ranked probability score of the members' Gaussian mixture, in closed form.

    E|X - y| - E|X - X'| / 2 with X, X' independent draws of the mixture; both expectations are sums of folded normal
    means. With variances None the members are points and this is the score of an empirical distribution.

    Reference: Grimit et al., "The continuous ranked probability score for circular variables and its application to
    mesoscale forecast ensemble verification", 2006, equation 5; of one Gaussian Gneiting et al., "Calibrated probabilistic
    forecasting using ensemble model output statistics and minimum CRPS estimation", 2005, equation 5.

    >>> round(crps(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1)), 6)
    0.233695
    """
    return float(crps_rows(means, variances, targets, weights=weights).mean())


def interval_coverage(lower: Tensor, upper: Tensor, targets: Tensor) -> float:
    """Return the share of targets that lie in their closed interval; infinite ends are allowed.

    >>> interval_coverage(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 2.0]))
    0.5
    """
    targets = checked_finite(targets, "targets")
    if lower.shape != targets.shape or upper.shape != targets.shape:
        raise InputError(
            f"lower has shape {tuple(lower.shape)}, upper {tuple(upper.shape)} and targets {tuple(targets.shape)}; "
            "they must be equal."
        )
    return float(((lower <= targets) & (targets <= upper)).double().mean())


def interval_width(lower: Tensor, upper: Tensor) -> float:
    """Return the mean length of the intervals."""
    return float((upper.double() - lower.double()).mean())
