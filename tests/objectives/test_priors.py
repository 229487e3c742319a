"""Priors scaled to the network: functions of one size whatever the widths, and walks that stay in them."""

import math

import pytest
import torch
from tests.plan.written_out import written_out
from torch import nn

from choral.objectives.penalties import Anchored, in_parameters, in_units, scale
from choral.plan import DrawAnchor, State, StepAnchor
from choral.plan.bayes import GuidedWalk
from choral.recipes import anchored, sequential_anchored


def drawn(width, *, scaled, seed=0):
    """The spread of functions drawn from the prior, at standardized inputs."""
    g = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    x, found = torch.randn(64, 8, generator=g), []
    for _ in range(40):
        params = dict(network.named_parameters())
        anchor, _ = GuidedWalk().start(params, 2**0.5 if scaled else 0.2**0.5, g)
        anchor = in_parameters(anchor) if scaled else anchor
        found.append(torch.func.functional_call(network, anchor, x).detach())
    return torch.stack(found).std().item()


def test_functions_of_the_prior_do_not_grow_with_the_width():
    assert drawn(256, scaled=True) == pytest.approx(drawn(16, scaled=True), rel=0.35)
    assert drawn(256, scaled=False) > 8 * drawn(16, scaled=False)


def test_units_there_and_back():
    params = {"weight": torch.randn(4, 3, 2, 2), "bias": torch.randn(4)}
    back = in_parameters(in_units(params))
    assert all(torch.allclose(back[n], params[n]) for n in params)
    assert scale((4, 3, 2, 2)) == 1 / math.sqrt(12)
    assert torch.equal(in_units(params)["bias"], params["bias"])


def test_the_penalty_is_the_negative_log_density_of_the_scaled_prior():
    params, anchor = ({"w": torch.randn(5, 9), "b": torch.randn(5)} for _ in range(2))
    stds = {"w": 0.7 / 3, "b": 0.7}
    wanted = sum(
        -torch.distributions.Normal(0.0, stds[n]).log_prob(params[n] - anchor[n]).sum()
        + torch.distributions.Normal(0.0, stds[n]).log_prob(torch.zeros_like(params[n])).sum()
        for n in params
    )
    found = Anchored(prior_std=0.7, scaled=True)(params, {"anchor": anchor}, 0.0)
    assert found.item() == pytest.approx(float(wanted), rel=1e-5)


def test_recipes_scale_unless_a_deviation_is_given():
    def prior(recipe):
        drawn = next(phase for phase, _ in written_out(recipe.plan) if isinstance(phase, DrawAnchor))
        return drawn.prior_std, drawn.scaled, recipe.objective.penalties[0].scaled

    for make in (anchored, sequential_anchored):
        assert prior(make(budget=20)) == (3 * 2**0.5, True, True)
        assert prior(make(budget=20, prior_std=0.3)) == (0.3, False, False)


class Lent:
    """The randomness an operator is lent."""

    def __init__(self):
        self.held = torch.Generator().manual_seed(0)

    def generator(self, purpose):
        return self.held


def test_anchors_of_a_chain_stay_in_the_scaled_prior():
    context, prior = Lent(), {"walk": GuidedWalk(), "prior_std": 2**0.5, "scaled": True}
    state = DrawAnchor(**prior).apply(State({"w": torch.zeros(64, 64), "b": torch.zeros(4000)}, {}), context)
    first = state.slots["anchor"]
    for _ in range(50):
        state = StepAnchor(**prior).apply(state, context)
    last = state.slots["anchor"]
    for anchor in (first, last):
        assert anchor["w"].std().item() == pytest.approx(2**0.5 / 8, rel=0.05)
        assert anchor["b"].std().item() == pytest.approx(2**0.5, rel=0.05)
    moved = {n: (last[n] - first[n]).abs().mean().item() for n in first}
    assert moved["b"] == pytest.approx(8 * moved["w"], rel=0.1)
