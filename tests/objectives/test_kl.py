import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Bernoulli, Normal
from torch.func import grad, vmap

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.objectives import kl
from choral.objectives.kl import GaussianKL, SpikeSlabKL, bernoulli_kl, gaussian_kl, rho_of, std_of

DOUBLE = torch.float64


def posterior(*shape: int, seed: int, prefix: str = "fc.weight") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = 0.4 * torch.randn(*shape, generator=generator, dtype=DOUBLE)
    return {f"{prefix}_mean": mean, f"{prefix}_rho": torch.randn(*shape, generator=generator, dtype=DOUBLE) - 1.5}


def node_params(seed: int) -> dict[str, torch.Tensor]:
    """A gated layer with 3 nodes of 4 weights and a bias, and a layer without gates."""
    generator = torch.Generator().manual_seed(seed + 100)
    gates = {"fc.gate_logit": torch.randn(3, generator=generator, dtype=DOUBLE)}
    gated = posterior(3, 4, seed=seed) | posterior(3, seed=seed + 1, prefix="fc.bias")
    return gated | gates | posterior(2, 3, seed=seed + 2, prefix="head.weight")


@pytest.mark.parametrize(("prior_mean", "prior_std"), [(0.0, 0.2), (1.0, 0.1)])
def test_gaussian_kl_equals_sampling(prior_mean, prior_std):
    params = posterior(5, 3, seed=0)
    q, p = Normal(params["fc.weight_mean"], std_of(params["fc.weight_rho"])), Normal(prior_mean, prior_std)
    torch.manual_seed(1)
    w = q.sample((20000,))
    log_ratio = (q.log_prob(w) - p.log_prob(w)).sum((1, 2))
    error = log_ratio.std() / len(log_ratio) ** 0.5
    exact = GaussianKL(prior_mean=prior_mean, prior_std=prior_std)(params, {}, 1.0)
    assert abs(exact - log_ratio.mean()) < 4 * error
    assert error < 0.02 * exact


def test_spike_slab_kl_equals_sampling():
    params = node_params(3)
    penalty = SpikeSlabKL(prior_std=0.5, inclusion=0.2)
    torch.manual_seed(2)
    gates, prior = Bernoulli(logits=params["fc.gate_logit"]), Bernoulli(torch.tensor(0.2, dtype=DOUBLE))
    slab = Normal(torch.tensor(0.0, dtype=DOUBLE), 0.5)

    def ratio(prefix):
        q = Normal(params[f"{prefix}_mean"], std_of(params[f"{prefix}_rho"]))
        w = q.sample((40000,))
        return (q.log_prob(w) - slab.log_prob(w)).flatten(2).sum(2) if w.dim() > 2 else q.log_prob(w) - slab.log_prob(w)

    z = gates.sample((40000,))
    nodes = gates.log_prob(z) - prior.log_prob(z) + z * (ratio("fc.weight") + ratio("fc.bias"))
    total = nodes.sum(1) + ratio("head.weight").sum(1)
    error = total.std() / len(total) ** 0.5
    assert abs(penalty(params, {}, 1.0) - total.mean()) < 4 * error
    assert error < 0.02 * total.mean()


@given(st.floats(-2, 2), st.floats(0.01, 3))
def test_gaussian_kl_is_zero_at_the_prior_and_above_elsewhere(prior_mean, prior_std):
    mean = torch.full((3,), prior_mean, dtype=DOUBLE)
    rho = torch.full((3,), rho_of(prior_std), dtype=DOUBLE)
    kl = GaussianKL(prior_mean=prior_mean, prior_std=prior_std)
    assert abs(kl({"w_mean": mean, "w_rho": rho}, {}, 1.0)) < 1e-12
    assert kl({"w_mean": mean + 0.1 * prior_std, "w_rho": rho}, {}, 1.0) > 1e-3
    assert kl({"w_mean": mean, "w_rho": rho + 0.3}, {}, 1.0) > 1e-6


@given(st.floats(1e-4, 1 - 1e-4))
def test_spike_slab_kl_is_zero_at_the_prior(inclusion):
    logit = torch.full((2,), inclusion, dtype=DOUBLE).logit()
    params = {"w_mean": torch.zeros(2, 3, dtype=DOUBLE), "w_rho": torch.full((2, 3), rho_of(0.2), dtype=DOUBLE)}
    penalty = SpikeSlabKL(prior_std=0.2, inclusion=inclusion)
    assert abs(penalty(params | {"gate_logit": logit}, {}, 1.0)) < 1e-10
    assert penalty(params | {"gate_logit": logit + 1}, {}, 1.0) > 1e-5


@settings(deadline=None, max_examples=20)
@given(st.floats(-60, 60))
def test_bernoulli_kl_has_finite_values_and_gradients_at_extreme_logits(logit):
    value = torch.tensor([logit], requires_grad=True)
    kl = bernoulli_kl(value, inclusion=1e-4)
    kl.sum().backward()
    assert torch.isfinite(kl).all()
    assert kl.item() > -1e-5
    assert value.grad is not None
    assert torch.isfinite(value.grad).all()


def test_gradients_equal_finite_differences():
    params = node_params(7)
    names = list(params)
    leaves = tuple(params[n].requires_grad_() for n in names)
    for penalty in (SpikeSlabKL(prior_std=0.3, inclusion=0.1), GaussianKL(prior_mean=1.0, prior_std=0.1)):
        assert torch.autograd.gradcheck(lambda *values, p=penalty: p(dict(zip(names, values)), {}, 1.0), leaves)


def test_it_sums_over_layers_and_leaves_other_parameters_alone():
    one, two = posterior(2, 3, seed=1), posterior(4, seed=2, prefix="norm.bias")
    stray = {"norm.running_mean": torch.ones(3), "fc.weight": torch.ones(3)}
    kl = GaussianKL()
    both = kl(one | two | stray, {}, 1.0)
    torch.testing.assert_close(both, kl(one, {}, 1.0) + kl(two, {}, 1.0))
    assert kl(stray, {}, 1.0) == 0


def test_without_gates_spike_slab_is_gaussian_and_certain_gates_switch_nodes():
    params = posterior(3, 4, seed=4)
    gaussian = gaussian_kl(params["fc.weight_mean"], std_of(params["fc.weight_rho"]), prior_mean=0.0, prior_std=0.2)
    penalty = SpikeSlabKL(prior_std=0.2, inclusion=0.5)
    torch.testing.assert_close(penalty(params, {}, 1.0), gaussian.sum())
    certain = torch.tensor([40.0, -40.0, 40.0], dtype=DOUBLE, requires_grad=True)
    value = penalty(params | {"fc.gate_logit": certain}, {}, 1.0)
    torch.testing.assert_close(value, gaussian[0].sum() + gaussian[2].sum() + 3 * torch.tensor(2.0, dtype=DOUBLE).log())
    value.backward()
    assert certain.grad is not None
    assert certain.grad.abs().max() < 1e-14  # a frozen gate does not move


def test_annealing_rises_linearly_and_stays():
    params = posterior(2, 2, seed=5)
    full = GaussianKL()(params, {}, 0.0)
    annealed = GaussianKL(anneal=0.8)
    values = torch.stack([annealed(params, {}, p) for p in (0.0, 0.2, 0.4, 0.8, 1.0)])
    torch.testing.assert_close(values, full * torch.tensor([0, 0.25, 0.5, 1, 1], dtype=DOUBLE))


def test_one_call_under_vmap_equals_calls_one_by_one():
    members = [node_params(seed) for seed in (1, 2, 3)]
    stacked = {name: torch.stack([m[name] for m in members]) for name in members[0]}
    penalty = SpikeSlabKL()
    gradients = vmap(grad(lambda p: penalty(p, {}, 1.0)))(stacked)
    for i, member in enumerate(members):
        alone = grad(lambda p: penalty(p, {}, 1.0))(member)
        for name, value in alone.items():
            torch.testing.assert_close(gradients[name][i], value)


def test_arguments_are_checked_and_survive_a_dict():
    with pytest.raises(InputError, match="prior_std"):
        GaussianKL(prior_std=0.0)
    with pytest.raises(InputError, match="anneal"):
        GaussianKL(anneal=1.5)
    with pytest.raises(InputError, match="inclusion"):
        SpikeSlabKL(inclusion=1.0)
    for penalty in (GaussianKL(prior_mean=1.0), SpikeSlabKL(anneal=0.5)):
        assert from_dict(penalty.to_dict()) == penalty


@pytest.mark.parametrize(
    "penalty", [GaussianKL(prior_mean=1.0, prior_std=0.3), SpikeSlabKL(prior_std=0.3, inclusion=0.2)]
)
@pytest.mark.parametrize("limit", [0, 4, 8])
def test_posteriors_laid_end_to_end_have_the_divergence_of_each_on_its_own(penalty, limit, monkeypatch):
    params = node_params(5)
    joined = penalty(params, {}, 1.0), grad(lambda p: penalty(p, {}, 1.0))(params)
    monkeypatch.setattr(kl, "_SMALL", limit)
    single = penalty(params, {}, 1.0), grad(lambda p: penalty(p, {}, 1.0))(params)
    torch.testing.assert_close(joined, single)
    members = {name: torch.stack([value, value + 0.1]) for name, value in params.items()}
    monkeypatch.undo()
    torch.testing.assert_close(vmap(lambda p: penalty(p, {}, 1.0))(members)[0], joined[0])
