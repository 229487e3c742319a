import json

import pytest
import torch
from tests.networks import NETWORKS, generator, make
from torch import nn

from choral import models
from choral.base.errors import ConversionError, InputError
from choral.base.values import from_dict
from choral.layers.bayesian.dropout import DropConnect, Dropped, DroppedOutput
from choral.layers.keyed import keyed
from choral.structures import Stochastic


@pytest.mark.parametrize("connections", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_passes_differ_in_evaluation_and_their_mean_network_is_the_plain_one(name, connections):
    network, x = make(name)
    structure = Stochastic(rate=0.2, connections=connections)
    joint = structure.convert(network, generator()).eval()
    before = {n: b.clone() for n, b in joint.named_buffers()}
    outs = []
    for key in range(3):
        with keyed(key):
            outs.append(structure.unfold(joint(structure.feed(x, None)[0])))
    assert not torch.allclose(outs[0], outs[1])
    with keyed(0):
        assert torch.equal(structure.unfold(joint(x)), outs[0])
    assert all(torch.equal(b, before[n]) for n, b in joint.named_buffers())
    torch.testing.assert_close(structure.member(joint, 0).eval()(x), network.eval()(x))


def test_rate_zero_is_the_plain_network():
    network, x = make("resnet")
    joint = Stochastic(rate=0.0).convert(network, generator())
    for training in (True, False):
        torch.testing.assert_close(joint.train(training)(x), network.train(training)(x))


def test_own_dropout_layers_stay_on_and_others_are_added_behind_all_but_the_output():
    network = models.mlp(4, 2, hidden=(8, 8), dropout=0.5)
    own = Stochastic().convert(network, generator())
    assert [type(m) for m in own.children()].count(Dropped) == 2
    assert not any(isinstance(m, DroppedOutput) for m in own.modules())
    added = Stochastic(rate=0.1).convert(network, generator())
    assert [n for n, m in added.named_modules() if isinstance(m, DroppedOutput)] == ["linear1", "linear2"]
    assert set(added.state_dict()) == set(network.state_dict())


def test_drop_connect_reaches_attention_projections():
    network, _ = make("vit")
    joint = Stochastic(rate=0.1, connections=True).convert(network, generator())
    names = {n for n, m in joint.named_modules() if isinstance(m, DropConnect)}
    assert {"attention.query", "attention.out", "mlp.0"} <= names
    assert "head" not in names


def test_torchs_transformer_layers_do_not_bypass_dropout():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    network = nn.Sequential(nn.Linear(3, 8), layer, nn.Linear(8, 2))
    joint = Stochastic(rate=0.3, connections=True, include=("1.linear*",)).convert(network, generator()).eval()
    x = torch.randn(2, 4, 3)
    with torch.no_grad():
        with keyed(1):
            a = joint(x)
        with keyed(2):
            b = joint(x)
    assert not torch.allclose(a, b)


def test_dropout_inside_attention_stays_on():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    layer.self_attn.dropout = 0.5
    joint = Stochastic(draws=2).convert(layer, generator()).eval()
    x = torch.randn(3, 5, 4)
    with keyed(1):
        a = joint(x)
    with keyed(1):
        again = joint(x[1:2])
    with keyed(2):
        b = joint(x)
    assert not torch.allclose(a, b)
    torch.testing.assert_close(again, a[1:2])
    torch.testing.assert_close(Stochastic().member(joint, 0)(x), layer.eval()(x))


def test_wrong_settings_are_refused():
    with pytest.raises(ConversionError, match="has no dropout layers, and rate is None"):
        Stochastic().convert(models.mlp(4, 2), generator())
    with pytest.raises(InputError, match="needs a rate"):
        Stochastic(connections=True)
    with pytest.raises(InputError, match="rate is 1"):
        Stochastic(rate=1)
    structure = Stochastic(rate=0.1, draws=7)
    assert from_dict(json.loads(json.dumps(structure.to_dict()))) == structure
