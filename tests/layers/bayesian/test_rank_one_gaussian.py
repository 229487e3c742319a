from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from choral.base import draws
from choral.base.errors import ConversionError, InputError
from choral.layers.bayesian.rank_one_gaussian import RankOneGaussianLayer
from choral.layers.bayesian.sampling import at_means
from choral.layers.keyed import keyed
from choral.objectives.kl import GaussianKL, rho_of, std_of

PLAIN = [
    (nn.Linear(5, 4), (3, 5)),
    (nn.Linear(5, 4, bias=False), (3, 2, 5)),
    (nn.Conv1d(4, 6, 3, groups=2), (3, 4, 6)),
    (nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False), (3, 4, 5, 5)),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (3, 2, 5, 5)),
    (nn.Conv3d(1, 2, 2), (3, 1, 3, 3, 3)),
]


@pytest.mark.parametrize(("plain", "shape"), PLAIN, ids=lambda v: str(v))
def test_member_rows_equal_members_run_alone(plain, shape):
    twin: Any = RankOneGaussianLayer(plain, members=3, generator=torch.Generator().manual_seed(0))
    twin = twin.double()
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.1 * torch.randn_like(p))
    x = torch.randn(3, *shape, dtype=torch.float64)  # every member its own input
    with at_means():
        y = twin(x.flatten(0, 1)).unflatten(0, (3, -1))
    for i in range(3):
        member = twin.plain(i)
        assert type(member) is type(plain)
        torch.testing.assert_close(y[i], member(x[i]))


def test_a_members_loss_reaches_only_its_own_factors():
    layer: Any = RankOneGaussianLayer(nn.Linear(3, 2), members=3)
    layer(torch.randn(12, 3)).unflatten(0, (3, 4))[1].sum().backward()
    for name, p in layer.named_parameters():
        if name != "weight":
            assert (p.grad[[0, 2]] == 0).all()
            assert (p.grad[1] != 0).any()


def test_outputs_have_the_closed_form_moments():
    torch.manual_seed(1)
    layer: Any = RankOneGaussianLayer(nn.Linear(3, 2), members=2)
    x, count = torch.randn(2, 3), 40000
    state: Any = dict(layer.named_parameters())
    with torch.no_grad():
        layer.input_rho.fill_(-1)
        layer.output_rho.fill_(-0.5)
        layer.bias.normal_()

    def one(words):
        with keyed(words):
            return functional_call(layer, state, (x,))

    with torch.no_grad():
        drawn = vmap(one)(draws.words(*range(count)))
        inner = torch.einsum("mi,mi,oi->mo", x, layer.input_mean, layer.weight)
        inner_variance = torch.einsum("mi,mi,oi->mo", x**2, std_of(layer.input_rho) ** 2, layer.weight**2)
        s, s_variance = layer.output_mean, std_of(layer.output_rho) ** 2
        mean = s * inner + layer.bias
        variance = s**2 * inner_variance + s_variance * (inner**2 + inner_variance)  # of a product of independents
    assert ((drawn.mean(0) - mean).abs() < 4.5 * (variance / count).sqrt()).all()
    assert ((drawn.var(0) / variance - 1).abs() < 0.06).all()


def test_factors_start_at_random_signs_and_a_single_member_at_the_plain_layer():
    layer: Any = RankOneGaussianLayer(nn.Linear(400, 300), members=4, generator=torch.Generator().manual_seed(2))
    for name in ("input_mean", "output_mean"):
        signs = getattr(layer, name)
        assert (signs.abs() == 1).all()
        assert abs(signs.mean()) < 4 / signs.numel() ** 0.5
    plain, x = nn.Linear(5, 4), torch.randn(2, 5)
    twin: Any = RankOneGaussianLayer(plain, members=1)
    with at_means():
        torch.testing.assert_close(twin(x), plain(x))


def test_the_penalty_sees_the_factors_only_and_vanishes_at_their_prior():
    layer: Any = RankOneGaussianLayer(nn.Conv3d(1, 2, 2), members=2).double()
    with torch.no_grad():
        for p in (layer.input_mean, layer.output_mean):
            p.fill_(1.0)
        for p in (layer.input_rho, layer.output_rho):
            p.fill_(rho_of(0.1))
    penalty = GaussianKL(prior_mean=1.0, prior_std=0.1)
    value = penalty(dict(layer.named_parameters()), {}, 1.0)
    assert abs(value) < 1e-12
    value.backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is None


def test_members_of_a_vmap_with_own_keys_equal_runs_of_their_own():
    layer: Any = RankOneGaussianLayer(nn.Linear(3, 2), members=2, rho=-1.0).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    state: Any = dict(layer.named_parameters())

    def one(words):
        with keyed(words, 5):
            return functional_call(layer, state, (x,))

    together = vmap(one)(draws.words(8, 9))
    for i, key in enumerate((8, 9)):
        with keyed(key, 5):
            torch.testing.assert_close(together[i], layer(x))


def test_arguments_are_checked():
    with pytest.raises(InputError, match="members"):
        RankOneGaussianLayer(nn.Linear(2, 2), members=0)
    with pytest.raises(ConversionError, match="was given ReLU"):
        RankOneGaussianLayer(nn.ReLU(), members=2)
