from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from choral.base import draws
from choral.layers.bayesian.sampling import GaussianLayer, GaussianNorm, at_means, gaussian_twin
from choral.layers.keyed import keyed
from choral.objectives.kl import std_of

PLAIN = [
    (nn.Linear(5, 4), (6, 5)),
    (nn.Linear(5, 4, bias=False), (2, 3, 5)),
    (nn.Conv1d(4, 6, 3, padding=1, groups=2), (2, 4, 7)),
    (nn.Conv2d(2, 4, 3, stride=2, padding=(1, 2), bias=False), (2, 2, 7, 8)),
    (nn.Conv2d(2, 4, (3, 4), padding="same", padding_mode="circular", dilation=2), (2, 2, 9, 9)),
    (nn.Conv1d(2, 4, 4, padding="same", padding_mode="replicate"), (2, 2, 9)),
    (nn.Conv2d(2, 4, 3, padding=(1, 2), padding_mode="reflect"), (2, 2, 6, 7)),
    (nn.Conv2d(2, 4, 3, padding="valid", padding_mode="replicate"), (2, 2, 6, 7)),
    (nn.Conv3d(1, 2, 2), (2, 1, 3, 4, 3)),
    (nn.BatchNorm1d(5), (6, 5)),
    (nn.BatchNorm1d(5), (6, 5, 3)),
    (nn.BatchNorm2d(3, eps=0.1), (4, 3, 5, 5)),
    (nn.GroupNorm(2, 4), (3, 4, 5, 5)),
    (nn.LayerNorm((3, 5)), (2, 4, 3, 5)),
    (nn.LayerNorm(5, bias=False), (2, 5)),
    (nn.RMSNorm(5), (2, 5)),
]


def shaken(plain: nn.Module) -> nn.Module:
    """The layer with weights that are not at their usual start."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in plain.parameters():
            p.normal_(0.5)
    return plain


@pytest.mark.parametrize(("plain", "shape"), PLAIN, ids=lambda v: str(v))
@pytest.mark.parametrize("training", [True, False])
def test_mean_mode_and_plain_form_equal_the_plain_layer(plain, shape, training):
    plain = shaken(plain)
    twin: Any = gaussian_twin(plain, keep_weights=True)
    twin = twin.double().train(training)
    x = torch.randn(shape, dtype=torch.float64)
    plain = plain.double().train(training)
    with at_means():
        torch.testing.assert_close(twin(x), plain(x))
    back = twin.plain().train(training)
    assert type(back) is type(plain)
    torch.testing.assert_close(back(x), plain(x))
    assert repr(back) == repr(plain)
    assert not torch.equal(twin(x), twin(x))  # it samples in training and in evaluation mode
    plain.float()


def test_batch_norm_keeps_its_own_statistics():
    plain, x = nn.BatchNorm2d(3), 2 + torch.randn(8, 3, 4, 4)
    twin: Any = gaussian_twin(plain)
    for _ in range(3):
        twin(x)
        plain(x)
    torch.testing.assert_close(twin.norm.running_var, plain.running_var)
    assert twin.norm.num_batches_tracked == 3
    twin.eval()
    plain.eval()
    with at_means():
        torch.testing.assert_close(twin(x), plain(x))


def moments(layer: nn.Module, x: torch.Tensor, count: int = 20000) -> tuple[torch.Tensor, torch.Tensor]:
    params, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())

    def one(words):
        with keyed(words):
            return functional_call(layer, params | buffers, (x,))

    with torch.no_grad():
        outputs = vmap(one)(draws.words(*range(count)))
    return outputs.mean(0), outputs.var(0)


def assert_moments(got, mean, variance, count: int = 20000):
    assert ((got[0] - mean).abs() <= 4.5 * (variance / count).sqrt() + 1e-6).all()
    assert ((got[1] / variance - 1).abs() <= 4.5 * (2 / count) ** 0.5 * 1.5).all()


def test_linear_outputs_have_the_closed_form_moments():
    torch.manual_seed(3)
    layer: Any = GaussianLayer(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    with torch.no_grad():
        layer.weight_rho.normal_(-1)
        layer.bias_rho.normal_(-1)
        layer.bias_mean.normal_()
        mean = x @ layer.weight_mean.T + layer.bias_mean
        variance = x.square() @ std_of(layer.weight_rho).square().T + std_of(layer.bias_rho).square()
    assert_moments(moments(layer, x), mean, variance)


def test_convolution_outputs_have_the_closed_form_moments():
    torch.manual_seed(4)
    layer: Any = GaussianLayer(nn.Conv2d(2, 3, 2, groups=1))
    x = torch.randn(1, 2, 3, 3)
    with torch.no_grad():
        layer.weight_rho.normal_(-1)
        mean = nn.functional.conv2d(x, layer.weight_mean, layer.bias_mean)
        variance = nn.functional.conv2d(x.square(), std_of(layer.weight_rho).square(), std_of(layer.bias_rho).square())
    assert_moments(moments(layer, x), mean, variance)


def test_norm_outputs_have_the_closed_form_moments():
    torch.manual_seed(5)
    layer: Any = GaussianNorm(nn.GroupNorm(1, 2), rho=-1.0)
    x = torch.randn(2, 2, 3)
    with torch.no_grad():
        normed = layer.norm(x)
        variance = std_of(torch.tensor(-1.0)).square() * (normed.square() + 1)
    assert_moments(moments(layer, x), normed, variance)


def test_the_same_draw_serves_the_whole_batch_and_the_key_decides_it():
    layer: Any = GaussianLayer(nn.Linear(3, 2), rho=0.0)
    x = torch.randn(1, 3).repeat(5, 1)
    with keyed(7, 1):
        one = layer(x)
    with keyed(7, 1):
        again = layer(x)
    with keyed(7, 2):
        other = layer(x)
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    torch.testing.assert_close(one, one[:1].expand_as(one))


def test_members_of_a_vmap_with_own_keys_equal_runs_of_their_own():
    def build():
        return nn.Sequential(
            GaussianLayer(nn.Conv2d(1, 3, 3)),
            GaussianNorm(nn.BatchNorm2d(3)),
            nn.Flatten(),
            GaussianLayer(nn.Linear(12, 2)),
        )

    torch.manual_seed(0)
    networks, x, keys = (
        [build().double() for _ in range(3)],
        torch.randn(5, 1, 4, 4, dtype=torch.float64),
        [3, 2**40, 9],
    )
    params = [dict(n.named_parameters()) for n in networks]
    stacked = {name: torch.stack([p[name] for p in params]).detach() for name in params[0]}
    buffers = {name: torch.stack([b] * 3) for name, b in networks[0].named_buffers()}

    def loss(params, buffers, words):
        with keyed(words, 4):
            return functional_call(networks[0], params | buffers, (x,)).square().sum()

    values = vmap(loss)(stacked, {n: b.clone() for n, b in buffers.items()}, draws.words(*keys))
    gradients = vmap(torch.func.grad(loss))(stacked, buffers, draws.words(*keys))
    for i, (network, key) in enumerate(zip(networks, keys)):
        with keyed(key, 4):
            value = network(x).square().sum()
        torch.testing.assert_close(values[i], value)
        for name, gradient in zip(params[i], torch.autograd.grad(value, list(params[i].values()))):
            torch.testing.assert_close(gradients[name][i], gradient)


def test_gradients_of_a_keyed_pass_equal_finite_differences():
    layer: Any = GaussianLayer(nn.Linear(3, 2), rho=-1.0).double()
    names, x = list(dict(layer.named_parameters())), torch.randn(4, 3, dtype=torch.float64)

    def run(*values):
        with keyed(5):
            return functional_call(layer, dict(zip(names, values)), (x,))

    assert torch.autograd.gradcheck(run, tuple(p for p in layer.parameters()))


def test_fresh_means_are_kaiming_and_rhos_start_at_minus_six():
    layer: Any = GaussianLayer(nn.Conv1d(40, 50, 5), generator=torch.Generator().manual_seed(1))
    assert abs(layer.weight_mean.std().item() / (2 / 200) ** 0.5 - 1) < 0.03
    assert (layer.weight_rho == -6).all()
    assert (layer.bias_mean == 0).all()
    again: Any = GaussianLayer(nn.Conv1d(40, 50, 5), generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer.weight_mean, again.weight_mean)
    plain, state = nn.Conv3d(1, 1, 2), torch.get_rng_state()
    GaussianLayer(plain, generator=torch.Generator())
    assert torch.equal(state, torch.get_rng_state())  # no draw from the global generator


def test_only_layers_that_compute_as_a_known_kind_have_a_twin():
    class Own(nn.Linear):
        pass

    class Louder(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    assert isinstance(gaussian_twin(Own(2, 2)), GaussianLayer)
    assert gaussian_twin(Louder(2, 2)) is None
    assert gaussian_twin(nn.ReLU()) is None
    assert gaussian_twin(nn.BatchNorm1d(2, affine=False)) is None
