import pytest
import torch
from torch import nn

from choral.base import draws
from choral.base.errors import ConversionError, InputError
from choral.base.values import from_dict
from choral.layers.bayesian.dropout import DropConnect
from choral.layers.bayesian.patched import FAMILY, Mixture, PatchedLayer, PatchedNetwork, family
from choral.layers.keyed import keyed

K = 4


def layer(name, **options):
    torch.manual_seed(0)
    return PatchedLayer(nn.Linear(6, 5).double(), family(components=K)[name], **options)


def weights(patched, key):
    """The weight and bias one pass uses, read off its outputs."""
    x = torch.cat([torch.zeros(1, 6), torch.eye(6)]).double()
    with keyed(key), torch.no_grad():
        y = patched(x)
    return (y[1:] - y[0]).T, y[0]


def test_emp_uses_one_component_for_the_whole_layer():
    patched, seen = layer("emp"), set()
    for key in range(40):
        weight, bias = weights(patched, key)
        fits = [
            k
            for k in range(K)
            if torch.allclose(weight, patched.patches["weight"][k]) and torch.allclose(bias, patched.patches["bias"][k])
        ]
        assert len(fits) == 1
        seen.update(fits)
    assert seen == set(range(K))


def test_ecmp_draws_every_scalar_by_itself_and_uniformly():
    patched, count = layer("ecmp"), torch.zeros(K)
    for key in range(60):
        weight, _ = weights(patched, key)
        close = (patched.patches["weight"] - weight).abs() < 1e-9
        assert (close.any(0)).all()
        count += close.flatten(1).sum(1)
    assert (count / count.sum() - 1 / K).abs().max() < 0.03


def test_dropout_drops_inputs_and_drop_connect_drops_weights():
    dropout, connect = layer("dropout"), layer("drop_connect")
    for key in range(10):
        weight, bias = weights(dropout, key)
        columns = weight.abs() < 1e-9
        assert (columns.all(0) | ~columns.any(0)).all()
        torch.testing.assert_close(bias, dropout.patches["bias"][0].data)
    shares = torch.stack([weights(connect, key)[0].abs() < 1e-9 for key in range(200)]).double().mean(0)
    assert (shares - 0.5).abs().max() < 0.15


def test_drop_connect_of_the_family_is_the_drop_connect_layer():
    torch.manual_seed(0)
    plain = nn.Linear(6, 5).double()
    patched = PatchedLayer(plain, FAMILY["drop_connect"])
    x = torch.randn(3, 6, dtype=torch.float64)
    with keyed(5):
        a = patched(x)
    with keyed(5):
        b = DropConnect(plain, rate=0.5)(x)
    torch.testing.assert_close(a, b)


def test_the_explicit_ensemble_draws_once_for_the_network():
    torch.manual_seed(0)
    mixture = family(components=K)["explicit_ensemble"]
    layers = [PatchedLayer(nn.Linear(4, 4), mixture, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    network = PatchedNetwork(nn.Sequential(*layers), components=K)
    x = torch.randn(2, 4)

    def component(k):
        y = x
        for part in layers:
            y = y @ part.patches["weight"][k].T + part.patches["bias"][k]
        return y

    wanted = torch.stack([component(k) for k in range(K)])
    seen = set()
    for key in range(30):
        with keyed(key):
            y = network(x)
        fits = [k for k in range(K) if torch.allclose(wanted[k], y, atol=1e-6)]
        assert len(fits) == 1
        seen.update(fits)
    assert seen == set(range(K))


def test_one_component_is_the_plain_layer():
    plain = nn.BatchNorm1d(4)
    patched = PatchedLayer(plain, Mixture(components=1))
    x = torch.randn(8, 4)
    assert torch.equal(patched(x), plain(x))


def test_batch_norm_shares_statistics_and_jitters_scales():
    plain = nn.BatchNorm2d(6)
    nn.init.constant_(plain.weight, 0.2)
    patched = PatchedLayer(plain, Mixture(components=K), jitter=0.1)
    scale = patched.patches["weight"]
    assert (scale[0] == 0.2).all()
    assert 0.005 < (scale[1:] - 0.2).std() < 0.05
    assert not patched.patches["bias"].any()
    x = torch.randn(5, 6, 3, 3) * 2 + 1
    patched(x)
    torch.testing.assert_close(patched.running_mean, 0.1 * x.mean((0, 2, 3)))
    assert int(patched.num_batches_tracked) == 1  # type: ignore[arg-type]  # a tensor or layer, as built above
    patched.eval()
    before = patched.running_mean.clone()  # type: ignore[operator, union-attr]  # a tensor or layer, as built above
    patched(x)
    assert torch.equal(patched.running_mean, before)  # type: ignore[arg-type]  # a tensor or layer, as built above


def test_components_start_apart_or_near_the_given_weights():
    plain = nn.Linear(50, 40)
    fresh = PatchedLayer(plain, Mixture(components=K)).patches["weight"]
    assert torch.equal(fresh[0], plain.weight)
    assert fresh[1].std().item() == pytest.approx(plain.weight.std().item(), rel=0.05)
    assert abs(torch.corrcoef(fresh[:2].flatten(1))[0, 1].item()) < 0.1
    near = PatchedLayer(plain, Mixture(components=K), keep_weights=True, jitter=0.1).patches["weight"]
    assert (near[1] - plain.weight).std().item() == pytest.approx(0.1 * plain.weight.std().item(), rel=0.1)


def test_plain_is_the_mean_over_passes():
    for name in ("emp", "ecmp", "dropout", "drop_connect"):
        patched = layer(name)
        passes = torch.stack([weights(patched, key)[0] for key in range(3000)])
        plain = patched.plain()
        spread = passes.std(0).max().item()
        torch.testing.assert_close(passes.mean(0), plain.weight.data, atol=4.5 * spread / 3000**0.5, rtol=0)


def test_gradients_of_components_are_unbiased():
    patched = layer("ecmp")
    x = torch.randn(4, 6, dtype=torch.float64)
    total = torch.zeros_like(patched.patches["weight"])
    for key in range(400):
        with keyed(key):
            total += torch.autograd.grad(patched(x).sum(), patched.patches["weight"])[0]
    wanted = x.sum(0).expand(K, 5, 6) / K  # the output is linear in the weights
    torch.testing.assert_close(total / 400, wanted, atol=6 * x.sum(0).abs().max().item() * 0.43 / 20, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ["layer", "scalar"])
def test_learned_mixing_draws_by_its_probabilities_and_finds_the_good_component(assignment):
    mixture = Mixture(components=3, assignment=assignment, learned=True)
    patched = PatchedLayer(nn.Linear(1, 1, bias=False).double(), mixture)
    with torch.no_grad():
        patched.patches["weight"].copy_(torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1))
        patched.mixing.copy_(torch.tensor([0.5, 0.3, 0.2]).log())  # type: ignore[union-attr]  # a tensor or layer, as built above
    x = torch.ones(1, 1, dtype=torch.float64)
    values = []
    for key in range(2000):
        with keyed(key):
            values.append(round(patched(x).item(), 6))
    shares = [values.count(v) / 2000 for v in (0.0, 1.0, 2.0)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
    optimizer = torch.optim.Adam([patched.mixing], lr=0.05)
    for key in range(400):
        with keyed(key):
            loss = (patched(x) - 2.0).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert patched.probabilities().argmax() == 2
    assert patched.probabilities()[2] > 0.7


def test_passes_can_be_batched_over_keys():
    patched = layer("emp").eval()
    x = torch.randn(3, 6, dtype=torch.float64)

    def run(words):
        with keyed(words):
            return patched(x)

    together = torch.func.vmap(run)(draws.words(*range(8)))
    for key in range(8):
        with keyed(key):
            torch.testing.assert_close(together[key], patched(x))


def test_mixtures_are_values_and_say_what_they_accept():
    for mixture in FAMILY.values():
        assert from_dict(mixture.to_dict()) == mixture
    with pytest.raises(InputError, match="assignment is 'layers'; give 'network' or 'layer'"):
        Mixture(assignment="layers")
    with pytest.raises(InputError, match="not with 'network'"):
        Mixture(components=2, assignment="network", zero=0.5)
    with pytest.raises(InputError, match="one component"):
        Mixture(components=2, assignment="unit", zero=0.5)
    with pytest.raises(InputError, match="and zero="):
        Mixture(components=1, assignment="unit")
    with pytest.raises(ConversionError, match="PatchedLayer was given LSTM"):
        PatchedLayer(nn.LSTM(2, 2), Mixture())
    with pytest.raises(ConversionError, match="dropped weights, which BatchNorm1d"):
        PatchedLayer(nn.BatchNorm1d(2), FAMILY["dropout"])
