import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.objectives.penalties import Anchored
from choral.plan.bayes import GuidedWalk

MEMBERS = 2000


def minimum(problem, anchor: Tensor, targets: Tensor) -> Tensor:
    """The exact minimum of one member's loss: a quadratic, so one Newton step from anywhere."""
    penalty, points = Anchored(prior_std=problem.prior_std), problem.x.shape[0]

    def loss(theta: Tensor) -> Tensor:
        nll = 0.5 * ((problem.x @ theta - targets) / problem.noise_std).square().mean()
        return nll + penalty({"theta": theta}, {"anchor": {"theta": anchor}}, 0.0) / points

    start = torch.zeros_like(anchor)
    return -torch.linalg.solve(hessian(loss)(start), grad(loss)(start))


def agree(samples: Tensor, mean: Tensor, covariance: Tensor, effective: float) -> bool:
    """Whether samples have this mean and covariance, to 4.5 standard errors of `effective` independent draws."""
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (samples - mean).T, upper=False).T
    center, spread = white.mean(0), white.T.cov() - torch.eye(white.shape[1], dtype=white.dtype)
    return bool(center.abs().max() < 4.5 / effective**0.5 and spread.abs().max() < 4.5 * (2 / effective) ** 0.5)


@pytest.fixture(scope="module")
def draws(linear_regression):
    generator = torch.Generator().manual_seed(0)
    anchors = linear_regression.prior_std * torch.randn(MEMBERS, 4, generator=generator, dtype=torch.float64)
    noise = linear_regression.noise_std * torch.randn(MEMBERS, 12, generator=generator, dtype=torch.float64)
    return anchors, noise


def test_members_with_own_anchors_and_own_target_noise_follow_the_posterior(linear_regression, draws):
    anchors, noise = draws
    members = vmap(lambda a, e: minimum(linear_regression, a, linear_regression.y + e))(anchors, noise)
    assert agree(members, linear_regression.mean, linear_regression.covariance, MEMBERS)


def test_anchors_alone_give_the_posterior_mean_and_a_narrower_covariance(linear_regression, draws):
    members = vmap(lambda a: minimum(linear_regression, a, linear_regression.y))(draws[0])
    covariance = linear_regression.covariance @ linear_regression.covariance / linear_regression.prior_std**2
    assert agree(members, linear_regression.mean, covariance, MEMBERS)
    assert not agree(members, linear_regression.mean, linear_regression.covariance, MEMBERS)
    assert torch.linalg.eigvalsh(linear_regression.covariance - covariance).min() > 0


def test_a_long_sequential_chain_follows_the_posterior_too(linear_regression):
    walk, generator = GuidedWalk(step_std=0.5, relative_step=True), torch.Generator().manual_seed(1)
    scale = {"anchor": linear_regression.prior_std, "noise": linear_regression.noise_std}
    like = {"anchor": torch.zeros(4, dtype=torch.float64), "noise": torch.zeros(12, dtype=torch.float64)}
    chains = {slot: walk.start({slot: value}, scale[slot], generator) for slot, value in like.items()}
    kept: dict[str, list[Tensor]] = {"anchor": [], "noise": []}
    for _ in range(12000):
        for slot in like:
            chains[slot] = walk.step(*chains[slot], scale[slot], generator)
            kept[slot].append(chains[slot][0][slot])
    anchors, noise = torch.stack(kept["anchor"]), torch.stack(kept["noise"])
    members = vmap(lambda a, e: minimum(linear_regression, a, linear_regression.y + e))(anchors, noise)
    # the chain's steps are correlated: a tenth of them counts as independent
    assert agree(members, linear_regression.mean, linear_regression.covariance, 1200)


def test_gradient_is_the_pull_towards_the_anchor():
    generator = torch.Generator().manual_seed(2)
    theta = torch.randn(3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    anchor = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    penalty = Anchored(prior_std=0.3)
    assert torch.autograd.gradcheck(lambda t: penalty({"w": t}, {"anchor": {"w": anchor}}, 0.0), (theta,))
    assert penalty({"w": anchor}, {"anchor": {"w": anchor}}, 0.0) == 0


def test_parameters_without_an_anchor_are_left_alone():
    penalty, ones = Anchored(prior_std=1.0), torch.ones(2)
    assert penalty({"w": ones, "free": 9 * ones}, {"anchor": {"w": 0 * ones}}, 0.0) == 1.0
    with pytest.raises(InputError, match="prior_std"):
        Anchored(prior_std=0.0)
    assert from_dict(penalty.to_dict()) == penalty
