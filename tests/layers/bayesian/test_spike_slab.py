from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from choral.base import draws
from choral.base.errors import InputError
from choral.layers.bayesian.sampling import SpikeSlabLayer, at_means
from choral.layers.keyed import keyed
from choral.objectives.kl import SpikeSlabKL, freeze_gates, gate_keep, std_of


def outputs(layer: nn.Module, x: torch.Tensor, count: int) -> torch.Tensor:
    state: Any = dict(layer.named_parameters()) | dict(layer.named_buffers())

    def one(words):
        with keyed(words):
            return functional_call(layer, state, (x,))

    with torch.no_grad():
        return vmap(one)(draws.words(*range(count)))


def test_outputs_have_the_closed_form_moments():
    torch.manual_seed(0)
    layer: Any = SpikeSlabLayer(nn.Linear(3, 2))
    x, count = torch.randn(4, 3), 40000
    with torch.no_grad():
        layer.gate_logit.copy_(torch.tensor([0.8, -0.5]))
        layer.weight_rho.fill_(-1)
        layer.bias_mean.normal_()
        mean = x @ layer.weight_mean.T + layer.bias_mean
        slab = x.square() @ std_of(layer.weight_rho).square().T + std_of(layer.bias_rho).square()
        gamma = layer.gate_logit.sigmoid()
    drawn = outputs(layer, x, count)
    variance = gamma * slab + gamma * (1 - gamma) * mean.square()
    assert ((drawn.mean(0) - gamma * mean).abs() < 4.5 * (variance / count).sqrt()).all()
    assert ((drawn.var(0) / variance - 1).abs() < 0.05).all()


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (SpikeSlabLayer(nn.Linear(3, 5), gamma=0.5), torch.randn(4, 3)),
        (SpikeSlabLayer(nn.Conv1d(2, 5, 3), gamma=0.5), torch.randn(4, 2, 5)),
        (SpikeSlabLayer(nn.Conv2d(2, 5, 3), gamma=0.5), torch.randn(4, 2, 4, 5)),
        (SpikeSlabLayer(nn.Conv3d(2, 5, 2), gamma=0.5), torch.randn(4, 2, 2, 3, 4)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_node_is_wholly_in_or_wholly_out(layer, x):
    axis = x.dim() - 1 if layer.weight.dim() == 2 else 1
    with torch.no_grad():
        layer.bias_mean.fill_(10.0)
        drawn = outputs(layer, x, 200).movedim(axis + 1, 1).flatten(2)  # (draw, node, rest)
    off = drawn == 0
    assert (off.all(2) | ~off.any(2)).all()  # the bias is switched with the weights
    share = off.all(2).float().mean().item()
    assert abs(share - 0.5) < 4 * (0.25 / 1000) ** 0.5


def test_the_gradient_of_a_gate_is_that_of_the_relaxed_gate():
    layer: Any = SpikeSlabLayer(nn.Linear(2, 3), rho=-40.0).double()  # the weights are their means
    with torch.no_grad():
        layer.gate_logit.copy_(torch.tensor([0.3, -1.0, 2.0]))
    x, upstream = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    with keyed(11):
        y = layer(x)
    (y * upstream).sum().backward()

    with keyed(11):
        for shape in ((3, 2), (3,)):
            draws.normal(shape, like=x)
        u = draws.uniform((3,), like=x)
    logit = layer.gate_logit.detach().requires_grad_()
    relaxed = ((logit + u.log() - (1 - u).log()) / 0.5).sigmoid()
    full = (x @ layer.weight_mean.T + layer.bias_mean).detach()
    (relaxed * full * upstream).sum().backward()
    torch.testing.assert_close(layer.gate_logit.grad, logit.grad)
    torch.testing.assert_close(y, (relaxed > 0.5) * full)
    assert (relaxed > 0.5).any()
    assert not (relaxed > 0.5).all()
    off = relaxed <= 0.5
    assert (layer.gate_logit.grad[off] != 0).all()  # a node that is out can still be called back
    assert (layer.weight_mean.grad[off] == 0).all()


def test_mean_mode_and_plain_form_use_nodes_above_one_half():
    plain = nn.Conv2d(2, 3, 3, padding=1)
    twin: Any = SpikeSlabLayer(plain, keep_weights=True)
    x = torch.randn(2, 2, 4, 4)
    with at_means():
        torch.testing.assert_close(twin(x), plain(x))  # gamma starts at 0.99
        with torch.no_grad():
            twin.gate_logit[1] = -0.1
        expected = plain(x) * torch.tensor([1.0, 0, 1]).view(3, 1, 1)
        torch.testing.assert_close(twin(x), expected)
    torch.testing.assert_close(twin.plain()(x), expected)
    assert type(twin.plain()) is nn.Conv2d


def test_frozen_gates_rule_draws_means_and_plain_forms():
    torch.manual_seed(1)
    layer: Any = SpikeSlabLayer(nn.Linear(3, 4), gamma=0.6)
    x = torch.randn(5, 3)
    params, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
    params, buffers = freeze_gates(params, buffers, generator=torch.Generator().manual_seed(6))
    layer.load_state_dict({**params, **buffers})
    kept = gate_keep(params, buffers)[""]
    assert kept.any()
    assert not kept.all()
    for y in outputs(layer, x, 50):
        assert torch.equal((y != 0).all(0), kept)
        assert torch.equal((y == 0).all(0), ~kept)
    with at_means():
        torch.testing.assert_close(layer(x), layer.plain()(x))
    assert torch.equal((layer.plain().weight != 0).any(1), kept)
    layer(x).sum().backward()
    assert (layer.gate_logit.grad == 0).all()


def test_members_of_a_vmap_with_own_keys_and_own_frozen_gates_equal_runs_of_their_own():
    torch.manual_seed(2)
    layers = [SpikeSlabLayer(nn.Conv2d(1, 4, 2), gamma=0.5).double() for _ in range(3)]
    layers[1].frozen_gate.copy_(torch.tensor([1.0, 0, -1, -1]))
    x, keys = torch.randn(2, 1, 3, 3, dtype=torch.float64), [1, 2, 3]
    params = {
        n: torch.stack([dict(la.named_parameters())[n] for la in layers]).detach()
        for n, _ in layers[0].named_parameters()
    }
    buffers = {"frozen_gate": torch.stack([la.frozen_gate for la in layers])}

    def loss(params, buffers, words):
        with keyed(words, 3):
            return functional_call(layers[0], params | buffers, (x,)).square().sum()

    gradients = vmap(torch.func.grad(loss))(params, buffers, draws.words(*keys))
    for i, (layer, key) in enumerate(zip(layers, keys)):
        with keyed(key, 3):
            layer(x).square().sum().backward()
        for name, p in layer.named_parameters():
            torch.testing.assert_close(gradients[name][i], p.grad)


def test_training_removes_a_node_nobody_needs_and_keeps_the_needed_one():
    torch.manual_seed(3)
    x = torch.linspace(-1, 1, 200).unsqueeze(1)
    y = 2 * x + 0.5 + 0.1 * torch.randn_like(x)
    layer: Any = SpikeSlabLayer(nn.Linear(1, 2))
    penalty = SpikeSlabKL(prior_std=1.0, inclusion=0.1)
    readout = torch.tensor([[1.0], [0.0]])  # nothing reads the second node
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for step in range(600):
        with keyed(17, step):
            fit = layer(x) @ readout
        loss = 0.5 * ((fit - y) / 0.1).square().mean() + penalty(dict(layer.named_parameters()), {}, 1.0) / 200
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    needed, useless = layer.gate_logit.sigmoid().tolist()
    assert needed > 0.95
    assert useless < 0.2  # falls towards the prior, 0.1
    torch.testing.assert_close(layer.weight_mean[0].item(), 2.0, atol=0.1, rtol=0)


def test_arguments_are_checked():
    with pytest.raises(InputError, match="gamma"):
        SpikeSlabLayer(nn.Linear(1, 1), gamma=1.0)


def test_gates_are_drawn_in_training_and_settled_in_evaluation():
    layer = SpikeSlabLayer(nn.Linear(3, 200), gamma=0.3)
    assert 0 < float(layer.gate().detach().mean()) < 1
    assert layer.eval().gate().sum() == 0
    drawn = SpikeSlabLayer(nn.Linear(3, 200), gamma=0.3, sampled_gates=True).eval()
    assert 0 < float(drawn.gate().detach().mean()) < 1


def test_a_node_that_is_rarely_in_is_not_blown_up_by_batch_norm():
    """Its running variance is about gamma times that of the open node; drawn in evaluation, it would be far off."""
    torch.manual_seed(0)

    def spread(sampled):
        network = nn.Sequential(
            SpikeSlabLayer(nn.Linear(4, 300), gamma=0.02, sampled_gates=sampled), nn.BatchNorm1d(300)
        )
        x = torch.randn(64, 4)
        for _ in range(100):
            network(x)
        return float(network.eval()(x).detach().abs().max())

    assert spread(False) < 1 < 3 < spread(True)
