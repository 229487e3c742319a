import pytest
import torch
from tests.networks import generator, make
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.layers.keyed import keyed
from choral.structures import Mimo


def test_training_rows_hold_other_examples_for_every_member_with_their_own_targets():
    structure = Mimo(members=3, batch_repetition=4)
    x = torch.arange(10.0).view(10, 1).expand(10, 2)
    with keyed(0):
        inputs, targets = structure.feed(x, torch.arange(10))
    assert inputs.shape == (40, 6)
    assert targets is not None
    for m in range(3):
        assert torch.equal(inputs[:, 2 * m].long(), targets[m])
        assert torch.equal(targets[m].bincount(), torch.full((10,), 4))
    assert not torch.equal(targets[0], targets[1])


@pytest.mark.parametrize("probability", [0.0, 0.4, 1.0])
def test_rows_are_the_same_for_all_members_with_the_repetition_probability(probability):
    structure = Mimo(members=2, repetition=probability)
    with keyed(1):
        _, targets = structure.feed(torch.zeros(4000, 1), torch.arange(4000))
    assert targets is not None
    assert (targets[0] == targets[1]).float().mean().item() == pytest.approx(probability, abs=0.03)


def test_prediction_repeats_the_input_on_channels():
    x = torch.randn(2, 3, 4, 4)
    inputs, targets = Mimo(members=2).feed(x, None)
    assert targets is None
    assert torch.equal(inputs, torch.cat([x, x], 1))


def test_other_members_output_layers_get_no_gradient():
    structure = Mimo(members=3)
    network, x = make("resnet")
    joint = structure.convert(network, generator())
    out = structure.unfold(joint(structure.feed(x, None)[0]))
    (g,) = torch.autograd.grad(out[1].sum(), joint.fc.weight)  # type: ignore[union-attr]  # a tensor or layer, as built above
    rows = g.unflatten(0, (3, -1))
    assert rows[1].any()
    assert not rows[0].any()
    assert not rows[2].any()


def test_a_member_has_the_plain_networks_shapes():
    structure = Mimo(members=3)
    network, _ = make("lenet")
    member = structure.member(structure.convert(network, generator()), 1)
    assert {n: p.shape for n, p in member.named_parameters()} == {n: p.shape for n, p in network.named_parameters()}
    assert repr(member) == repr(network)


def test_inputs_start_with_the_spread_of_their_fan_in():
    plain = nn.Sequential(nn.Linear(50, 400), nn.Linear(400, 3))
    joint = Mimo(members=4).convert(plain, generator())
    assert joint[0].weight.shape == (400, 200)  # type: ignore[index]  # a tensor or layer, as built above
    assert joint[0].weight.std().item() == pytest.approx(plain[0].weight.std().item() / 2, rel=0.03)  # type: ignore[index]  # a tensor or layer, as built above


def test_what_cannot_be_widened_is_refused():
    with pytest.raises(ConversionError, match=r"'0' \(Embedding\).*linear maps and convolutions"):
        Mimo().convert(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), generator())
    normed = Mimo().convert(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4), nn.Linear(4, 2)), generator())
    with pytest.raises(RuntimeError, match="15 elements not 5"):  # torch's own word; `fit` names the layer
        normed(torch.ones(2, 15))
    with pytest.raises(InputError, match="repetition is 2"):
        Mimo(repetition=2)
