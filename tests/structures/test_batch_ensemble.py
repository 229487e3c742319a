import pytest
import torch
from tests.networks import Text, generator, make
from torch import nn

from choral.base.text import matches
from choral.layers.joint.layers import RankOneLayer
from choral.structures import BatchEnsemble


def test_weights_are_the_given_networks_and_vectors_take_no_decay():
    structure = BatchEnsemble(members=3)
    network, _ = make("lenet")
    joint = structure.convert(network, generator())
    params = dict(joint.named_parameters())
    for name, value in network.named_parameters():
        held = params[f"network.{name}"]
        assert torch.equal(held if name.endswith("weight") else held[2], value)
    vectors = {n for n in params if matches(n, structure.undecayed)}
    assert len(vectors) == 8
    assert all(n.rpartition(".")[2] in "rs" for n in vectors)


@pytest.mark.parametrize("own", [False, True])
def test_norms_can_be_owned(own):
    network, x = make("resnet")
    structure = BatchEnsemble(members=3, own_norms=own)
    joint = structure.convert(network, generator()).eval()
    scale = joint.get_parameter("network.layer1.0.bn1.weight")
    assert scale.shape == ((3, 8) if own else (8,))
    assert joint.get_buffer("network.layer1.0.bn1.running_mean").shape == (3, 8)
    found = []
    with torch.no_grad():
        for factor in (1.0, 3.0):
            (scale[0] if own else scale).mul_(factor)
            found.append(structure.unfold(joint(structure.feed(x, None)[0])).clone())
    changed = [not torch.allclose(before, after) for before, after in zip(*found)]
    assert changed == [True, not own, not own]


def test_attention_projections_get_vectors():
    network, _ = make("vit")
    joint = BatchEnsemble(members=2).convert(network, generator())
    names = {n for n, m in joint.named_modules() if isinstance(m, RankOneLayer)}
    assert {f"network.attention.{part}" for part in ("query", "key", "value", "out")} <= names


def test_excluded_layers_stay_shared():
    network, x = make("vit")
    structure = BatchEnsemble(members=2, exclude=("attention", "head"))
    joint = structure.convert(network, generator()).eval()
    assert isinstance(joint.get_submodule("network.attention"), nn.MultiheadAttention)
    for i in range(2):
        torch.testing.assert_close(joint(x)[i], structure.member(joint, i)(x))


def test_recurrent_layers_are_shared():
    joint = BatchEnsemble(members=2).convert(Text(), generator())
    assert isinstance(joint.get_submodule("network.lstm"), nn.LSTM)
    tokens = torch.randint(0, 11, (3, 5))
    torch.testing.assert_close(joint(tokens)[1], joint.member(1)(tokens))


def test_subclasses_that_compute_something_else_are_shared():
    class Louder(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    joint = BatchEnsemble(members=2).convert(nn.Sequential(Louder(2, 2), nn.Linear(2, 1)), generator())
    assert isinstance(joint.get_submodule("network.0"), Louder)
    x = torch.randn(3, 2)
    torch.testing.assert_close(joint(x)[1], joint.member(1)(x))
