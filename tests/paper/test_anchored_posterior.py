"""Anchored ensembles on linear regression with known noise, where the posterior is known exactly."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from choral import Compute
from choral.fit import fit
from choral.objectives.likelihoods import FixedGaussian
from choral.plan import SGD, DrawAnchor, StepAnchor
from choral.plan.bayes import GuidedWalk
from choral.plan.state import State
from choral.recipes import anchored, sequential_anchored
from choral.recipes.training import Training

POINTS, PRIOR_STD, NOISE_STD = 20, 0.7, 0.5


def problem():
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(POINTS, 4, generator=generator, dtype=torch.double)
    columns[:, 0] = 1  # the bias
    orthogonal, _ = torch.linalg.qr(columns)
    x = orthogonal[:, 1:] * POINTS**0.5 * torch.tensor([1.0, 0.7, 0.5], dtype=torch.double)
    y = x @ torch.tensor([0.5, -1.0, 0.3], dtype=torch.double) + 0.2
    y = y + NOISE_STD * torch.randn(POINTS, generator=generator, dtype=torch.double)
    return x.float(), y.float().unsqueeze(1)


def exact():
    """Mean and precision of the posterior of (weights, bias), from the textbook."""
    x, y = problem()
    design = torch.cat([x, torch.ones(POINTS, 1)], 1).double()
    precision = design.T @ design / NOISE_STD**2 + torch.eye(4).double() / PRIOR_STD**2
    mean = torch.linalg.solve(precision, design.T @ y.double() / NOISE_STD**2)[:, 0]
    return mean, precision


# the loss is quadratic with curvatures from 1.1 to 4.1: heavy ball at its best loses a factor of 3 of the error in a step
CONVERGING = Training(lr=0.42, optimizer=SGD(momentum=0.11, weight_decay=0.3), batch_size=POINTS, schedule="constant")
COMMON = {"prior_std": PRIOR_STD, "training": CONVERGING}


def members(recipe, seed=0):
    likelihood = FixedGaussian(precision=NOISE_STD**-2)
    ensemble = fit(
        lambda: nn.Linear(3, 1),
        problem(),
        recipe,
        seed=seed,
        likelihood=likelihood,
        compute=Compute(executor="vectorized"),
    )
    rows = [torch.cat([s.params["weight"][0], s.params["bias"]]) for s in ensemble.states()]
    return torch.stack(rows).double()


@pytest.mark.full
def test_the_weights_of_2000_anchored_members_follow_the_exact_posterior():
    mean, precision = exact()
    found = members(anchored(budget=2000 * 16, members=2000, target_noise=True, **COMMON))
    root = torch.linalg.cholesky(precision)
    white = (found - mean) @ root  # independent standard normals if the posterior is right
    for column in white.T:
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-3
    assert white.mean(0).abs().max() < 4 / 2000**0.5
    covariance = white.T @ white / 2000
    # a sample variance has standard error sqrt(2 / n), a sample covariance sqrt(1 / n)
    assert (covariance - torch.eye(4)).abs().max() < 4 * (2 / 2000) ** 0.5
    variance = found.var(0)
    assert torch.allclose(variance, torch.linalg.inv(precision).diagonal(), rtol=4 * (2 / 2000) ** 0.5)


def test_without_noise_on_the_targets_the_members_are_as_narrow_as_the_formula_says():
    mean, precision = exact()
    inverse = torch.linalg.inv(precision)
    expected = inverse / PRIOR_STD**2 @ inverse
    found = members(anchored(budget=400 * 16, members=400, **COMMON))
    white = (found - mean) @ torch.linalg.cholesky(torch.linalg.inv(expected))
    assert white.mean(0).abs().max() < 4 / 400**0.5
    assert (white.T @ white / 400 - torch.eye(4)).abs().max() < 4 * (2 / 400) ** 0.5
    assert (found.var(0) < 0.6 * inverse.diagonal()).all()


@pytest.mark.full
def test_long_sequential_chains_follow_the_exact_posterior_too():
    mean, precision = exact()
    chains, steps = 16, 150
    recipe = sequential_anchored(
        budget=chains * (16 + steps * 6),
        chains=chains,
        first_epochs=16,
        step_epochs=6,
        walk=GuidedWalk(step_std=0.5, relative_step=True),
        target_noise=True,
        **COMMON,
    )
    assert recipe.members == chains * (steps + 1)
    found = members(recipe).view(chains, steps + 1, 4)
    white = (found - mean) @ torch.linalg.cholesky(precision)
    # chains are independent, so the spread of their averages gives honest error bars whatever the autocorrelation
    for statistic, expected in ((white, 0.0), (white.square(), 1.0)):
        averages = statistic.mean(1)
        t = (averages.mean(0) - expected) / (averages.std(0) / chains**0.5)
        assert t.abs().max() < stats.t.ppf(1 - 1e-4, chains - 1)
        assert (averages.std(0) / chains**0.5).max() < 0.15  # and they are short
    # neighbors are close, members of a chain are not copies
    steps_taken = (white[:, 1:] - white[:, :-1]).square().mean(1).sqrt()
    assert steps_taken.min() > 0.1
    assert steps_taken.max() < 0.8


class Place:
    """The context of one place in a plan, as far as an anchor needs it."""

    def __init__(self, seed):
        self.seed = seed

    def generator(self, purpose):
        return torch.Generator().manual_seed(self.seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_thinned_anchors_of_a_long_chain_pass_a_kolmogorov_smirnov_test_against_the_prior(seed):
    walk = GuidedWalk(step_std=0.3, relative_step=True)
    settings = {"walk": walk, "prior_std": PRIOR_STD}
    state = State({"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}, {})
    state = DrawAnchor(**settings).apply(state, Place(seed))
    kept = []
    for i in range(20000):
        if i % 40 == 0:
            kept.append(torch.cat([v.flatten() for v in state.slots["anchor"].values()]))
        state = StepAnchor(**settings).apply(state, Place(1000 * seed + i))
    anchors = torch.stack(kept).numpy()
    for column in anchors.T:
        thinned = column - column.mean()
        assert abs((thinned[1:] * thinned[:-1]).mean() / thinned.var()) < 4 / len(column) ** 0.5  # thinned enough
        assert stats.kstest(column, stats.norm(scale=PRIOR_STD).cdf).pvalue > 1e-3
    assert np.corrcoef(anchors.T)[0, 1] < 0.2
