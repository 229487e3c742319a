import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from choral import Compute, models
from choral.base.errors import InputError
from choral.fit import fit
from choral.layers.bayesian.dropout import DropConnect, Dropped, DroppedOutput, StochasticDepth
from choral.layers.keyed import keyed
from choral.recipes import mc_dropout
from choral.testing.problems import CALM


def test_units_are_dropped_in_evaluation_and_the_mean_is_kept():
    layer = Dropped(nn.Dropout(0.3)).eval()
    with keyed(1):
        y = layer(torch.ones(1, 200_000))
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.005)
    assert y.mean().item() == pytest.approx(1, abs=0.01)


def test_channels_are_dropped_whole():
    layer = Dropped(nn.Dropout2d(0.5))
    with keyed(1):
        y = layer(torch.ones(50, 20, 3, 3))
    kept = y.flatten(2)
    assert ((kept == 0).all(2) | (kept == 2).all(2)).all()
    assert 0.4 < (kept[..., 0] == 0).float().mean() < 0.6


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_keeps_mean_and_variance(kind):
    with keyed(1):
        y = Dropped(kind(0.2))(torch.randn(2000, 100, 2, generator=torch.Generator().manual_seed(0)))
    assert y.mean().item() == pytest.approx(0, abs=0.02)
    assert y.var().item() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout])
def test_plain_gives_the_dropout_back(kind):
    plain = Dropped(kind(0.2)).plain()
    assert type(plain) is kind
    assert plain.p == 0.2


def test_dropped_outputs_are_the_layers_own_or_zero():
    plain = nn.Conv2d(2, 4, 3)
    layer = DroppedOutput(plain, rate=0.25).eval()
    x = torch.randn(3, 2, 6, 6)
    with keyed(2):
        y = layer(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], plain(x)[kept] / 0.75)
    assert set(layer.state_dict()) == set(plain.state_dict())


def test_drop_connect_drops_weights_once_for_the_batch():
    plain = nn.Linear(30, 20)
    layer = DropConnect(plain, rate=0.4).eval()
    x = torch.eye(30)
    with keyed(3):
        weight = (layer(x) - plain.bias).T
    dropped = weight.abs() < 1e-6
    assert 0.3 < dropped.float().mean() < 0.5
    torch.testing.assert_close(weight[~dropped], plain.weight[~dropped] / 0.6, atol=1e-5, rtol=1e-4)
    same = torch.ones(4, 30)
    with keyed(3):
        rows = layer(same)
    assert torch.equal(rows[0], rows[1])


def test_rates_out_of_range_are_refused():
    with pytest.raises(InputError, match="rate is 1"):
        DropConnect(nn.Linear(2, 2), rate=1)


def test_stochastic_depth_drops_whole_rows_in_training_and_whole_passes_at_prediction():
    torch.manual_seed(0)
    plain = StochasticDepth(0.25)
    x = torch.ones(4000, 2, 3, 3)
    rows = plain(x).flatten(1)
    assert (rows == rows[:, :1]).all()  # each row as a whole
    assert sorted(rows[:, 0].unique().tolist()) == pytest.approx([0, 4 / 3])
    assert binomtest(int((rows[:, 0] > 0).sum()), 4000, 0.75).pvalue > 0.001
    assert torch.equal(plain.eval()(x), x)
    kept = Dropped(plain).eval()
    passes = []
    for seed in range(400):
        with keyed(seed):
            passes.append(kept(x[:3]))
    assert all((y == y.flatten()[0]).all() for y in passes)  # one shallower network for all rows
    assert binomtest(sum(bool(y.any()) for y in passes), 400, 0.75).pvalue > 0.001
    assert isinstance(kept.plain(), StochasticDepth)


def test_residual_networks_predict_at_random_depths():
    torch.manual_seed(0)
    network = models.resnet_cifar(8, width=4, stochastic_depth=0.9)
    assert [m.p for m in network.modules() if isinstance(m, StochasticDepth)] == pytest.approx([0.3, 0.6, 0.9])
    x, y = torch.randn(12, 3, 8, 8), torch.arange(12) % 10
    found = {}
    for executor in ("sequential", "vectorized"):
        recipe = mc_dropout(budget=1, rate=None, draws=12, training=CALM)
        ensemble = fit(lambda: network, (x, y), recipe, compute=Compute(executor=executor))
        found[executor] = ensemble._predictive(x).member_probs
    torch.testing.assert_close(found["sequential"], found["vectorized"], atol=1e-4, rtol=1e-3)
    different = len(found["sequential"].round(decimals=5).unique(dim=0))
    assert 2 <= different <= 8  # two to the power of three blocks
