"""Mixup and CutMix: rows and losses are mixed in the same shares."""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import beta, kstest
from torch import nn

from choral import Compute
from choral.base.errors import InputError
from choral.data import CutMix, HorizontalFlip, Mixup, inputs
from choral.fit import fit
from choral.layers.keyed import keyed
from choral.plan import SGD
from choral.recipes import make
from choral.recipes.training import Training
from choral.testing.problems import CALM


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_have_the_beta_distribution(alpha):
    shares = []
    for seed in range(1000):
        with keyed(seed):
            shares.append(float(Mixup(alpha=alpha).mixed(torch.zeros(2, 1))[2]))
    assert kstest(shares, beta(alpha, alpha).cdf).pvalue > 0.001
    assert inputs._beta_quantiles(alpha).mean() == pytest.approx(0.5, abs=1e-3)


def test_rows_are_mixed_with_their_partners():
    x = torch.arange(8.0).view(8, 1).repeat(1, 3)
    with keyed(3):
        made, partners, share = Mixup().mixed(x)
    assert sorted(partners.tolist()) == list(range(8))
    torch.testing.assert_close(made, share * x + (1 - share) * x[partners])


def test_a_rectangle_comes_from_the_partner_and_the_share_is_its_area():
    x = torch.arange(16.0).view(16, 1, 1, 1).expand(16, 3, 12, 10)
    shares = []
    for seed in range(20):
        with keyed(seed):
            made, partners, share = CutMix().mixed(x)
        own = made == x
        assert (own | (made == x[partners])).all()
        moved = partners != torch.arange(16)
        assert float(own[moved][0].float().mean()) == pytest.approx(float(share))
        inside = ~own[moved][0, 0]
        assert (inside == inside.any(1)[:, None] & inside.any(0)).all()  # a rectangle
        shares.append(float(share))
    assert min(shares) < 0.5 < max(shares)


@dataclass(frozen=True, kw_only=True)
class Fixed(Mixup):
    def mixed(self, x):
        partners = torch.arange(len(x)).flip(0)
        share = torch.tensor(0.3)
        return share * x + (1 - share) * x[partners], partners, share


@pytest.mark.parametrize("weights", [None, [0.5, 1.5]])
def test_the_loss_is_mixed_in_the_share_of_the_rows(weights):
    torch.manual_seed(0)
    x, y, network = torch.randn(2, 4), torch.tensor([0, 2]), nn.Linear(4, 3)
    training = Training(lr=0.5, optimizer=SGD(), batch_size=2, schedule="constant")
    options = {"transforms": (Fixed(),), "sample_weight": weights, "validation": None}
    ensemble = fit(lambda: copy.deepcopy(network), (x, y), make("single", budget=1, training=training), **options)
    (trained,) = ensemble.states()
    outputs, own = network(0.3 * x + 0.7 * x.flip(0)), torch.tensor(weights or [1.0, 1.0])
    loss = 0.3 * (own * F.cross_entropy(outputs, y, reduction="none")).mean()
    loss = loss + 0.7 * (own.flip(0) * F.cross_entropy(outputs, y.flip(0), reduction="none")).mean()
    loss.backward()
    for name, p in network.named_parameters():
        torch.testing.assert_close(trained.params[name], p.detach() - 0.5 * p.grad)


@pytest.mark.parametrize("name", ["deep_ensemble", "packed", "mimo", "masksembles", "batch_ensemble"])
@pytest.mark.parametrize("mixing", [Mixup(alpha=0.4), CutMix()])
def test_both_executors_mix_the_same_rows(name, mixing):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 3, 8, 8, generator=generator), torch.arange(24) % 3

    def build():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))

    found = {}
    for executor in ("sequential", "vectorized"):
        recipe = make(name, budget=4, members=2, training=CALM)
        ensemble = fit(build, (x, y), recipe, transforms=(HorizontalFlip(), mixing), compute=Compute(executor=executor))
        found[executor] = ensemble._predictive(x).member_probs
    torch.testing.assert_close(found["sequential"], found["vectorized"], atol=2e-4, rtol=1e-2)
    plain = fit(build, (x, y), make(name, budget=4, members=2, training=CALM), transforms=(HorizontalFlip(),))
    assert (plain._predictive(x).member_probs - found["sequential"]).abs().max() > 1e-3


def test_what_cannot_be_mixed_is_refused():
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    build = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))  # noqa: E731
    with pytest.raises(InputError, match="several transforms that mix"):
        fit(build, (x, y), "single", transforms=(Mixup(), CutMix()))
    with pytest.raises(InputError, match="batches of their own"):
        fit(build, (x, y), make("packed", budget=2, own_batches=True, training=CALM), transforms=(Mixup(),))
    with pytest.raises(InputError, match="alpha is 0"):
        Mixup(alpha=0.0)
