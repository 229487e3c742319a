from types import SimpleNamespace

import pytest
import torch
from scipy.stats import binomtest, kstest

from choral.objectives.kl import freeze_gates, gate_keep, posteriors, rho_of, std_of
from choral.plan import Perturb, ResetStds, State


def applied(operator, params, seed):
    """Return parameters after an operator."""
    lent = SimpleNamespace(generator=lambda purpose: torch.Generator().manual_seed(seed))
    return operator.apply(State(params, {}), lent).params


def network(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "fc.weight_mean": torch.randn(60, 50, generator=generator),
        "fc.weight_rho": torch.randn(60, 50, generator=generator) - 2,
        "fc.gate_logit": 3 * torch.randn(60, generator=generator),
        "head.bias": torch.randn(7, generator=generator),
        "norm.running_mean": torch.randn(7, generator=generator),
    }


def free_gates() -> dict[str, torch.Tensor]:
    return {"fc.frozen_gate": torch.full((60,), -1.0), "norm.count": torch.tensor(3)}


@pytest.mark.parametrize("std", [1e-6, 1e-3, 0.2, 1.0, 50.0])
def test_rho_of_inverts_std_of(std):
    torch.testing.assert_close(std_of(torch.tensor(rho_of(std), dtype=torch.float64)).item(), std)
    assert abs(std_of(torch.tensor(rho_of(std))).item() / std - 1) < 1e-5  # in single precision too


def test_perturbed_means_are_exactly_factor_deviations_away_by_fair_coins():
    params = network()
    moved = applied(Perturb(factor=3.0), params, 1)
    steps = (moved["fc.weight_mean"] - params["fc.weight_mean"]) / std_of(params["fc.weight_rho"])
    torch.testing.assert_close(steps.abs(), torch.full_like(steps, 3.0), rtol=1e-3, atol=1e-3)
    assert binomtest(int((steps > 0).sum()), steps.numel()).pvalue > 0.01
    for name in params.keys() - {"fc.weight_mean"}:
        assert moved[name] is params[name]


def test_stds_become_small_or_are_redrawn():
    params = network()
    small = applied(ResetStds(), params, 2)
    torch.testing.assert_close(std_of(small["fc.weight_rho"]), torch.full((60, 50), 1e-6))
    redrawn = applied(ResetStds(how="redraw"), params, 2)
    assert kstest((redrawn["fc.weight_rho"].flatten().numpy() + 6) / 0.05, "norm").pvalue > 0.01
    for name in params.keys() - {"fc.weight_rho"}:
        assert small[name] is params[name]


def test_gates_freeze_by_threshold():
    params, buffers = network(), free_gates()
    frozen_params, frozen = freeze_gates(params, buffers, rule="threshold")
    kept = params["fc.gate_logit"] > 0
    assert torch.equal(frozen["fc.frozen_gate"], kept.float())
    assert torch.equal(gate_keep(params, buffers)["fc"], kept)
    assert torch.equal(gate_keep(frozen_params, frozen)["fc"], kept)
    assert torch.equal(buffers["fc.frozen_gate"], torch.full((60,), -1.0))  # the given state is not changed
    torch.testing.assert_close(frozen_params["fc.gate_logit"].sigmoid(), kept.float())


def test_gates_freeze_by_draw_with_probability_gamma():
    params = {"gate_logit": torch.full((20000,), 0.7)}
    buffers = {"frozen_gate": torch.full((20000,), -1.0)}
    _, frozen = freeze_gates(params, buffers, rule="draw", generator=torch.Generator().manual_seed(3))
    gamma = torch.tensor(0.7).sigmoid().item()
    assert binomtest(int(frozen["frozen_gate"].sum()), 20000, gamma).pvalue > 0.01


def test_frozen_gates_stay_frozen():
    params, buffers = network(), free_gates()
    once = freeze_gates(params, buffers, rule="draw", generator=torch.Generator().manual_seed(3))
    again = freeze_gates(*once, rule="draw", generator=torch.Generator().manual_seed(4))
    assert torch.equal(once[1]["fc.frozen_gate"], again[1]["fc.frozen_gate"])
    fixed = {**free_gates(), "fc.frozen_gate": torch.zeros(60)}
    assert not gate_keep(params, fixed)["fc"].any()  # what is frozen counts, not gamma
    assert not freeze_gates(params, fixed, rule="threshold")[1]["fc.frozen_gate"].any()


def test_posteriors_are_pairs_of_mean_and_rho():
    assert [stem for stem, _, _ in posteriors(network())] == ["fc.weight"]
    lonely = {"w_mean": torch.zeros(1), "v_rho": torch.zeros(1)}
    assert list(posteriors(lonely)) == []
