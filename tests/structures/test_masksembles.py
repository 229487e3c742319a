import pytest
import torch
from tests.networks import generator, make
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.structures import Masksembles


@pytest.mark.parametrize("rows", [12, 10, 2])
def test_training_splits_the_batch_and_prediction_repeats_it(rows):
    structure = Masksembles(members=4)
    x, y = torch.arange(rows).view(rows, 1), torch.arange(rows)
    inputs, targets = structure.feed(x, y)
    each = max(2, -(-rows // 4))  # BatchNorm cannot train on one point
    assert inputs.shape == (4, each, 1)
    assert targets is not None
    assert torch.equal(inputs[..., 0], targets)
    counts = targets.flatten().bincount(minlength=rows)
    assert counts.min() >= 1
    assert counts.max() - counts.min() <= 1
    inputs, targets = structure.feed(x, None)
    assert targets is None
    assert torch.equal(inputs, x.expand(4, rows, 1))


def test_with_repetition_every_member_reads_the_whole_batch():
    x, y = torch.randn(7, 3), torch.arange(7)
    inputs, targets = Masksembles(members=4, repetition=True).feed(x, y)
    assert torch.equal(inputs, x.expand(4, 7, 3))
    assert torch.equal(targets, y.expand(4, 7))


@pytest.mark.parametrize("kernel", ["loop", "grouped"])
def test_full_masks_with_repetition_are_the_plain_network_in_training(kernel):
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 2), nn.Flatten(), nn.Linear(16, 3)
    )
    structure = Masksembles(members=4, scale=1, repetition=True, kernel=kernel)
    joint = structure.convert(plain, generator())
    x, y = torch.randn(8, 3, 7, 7), torch.arange(8) % 3
    inputs, targets = structure.feed(x, y)
    outputs = structure.unfold(joint(inputs))
    expected = plain(x)
    for row in outputs:  # BatchNorm saw the whole batch too
        torch.testing.assert_close(row, expected)
    nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten()).backward()
    nn.functional.cross_entropy(expected, y).backward()
    own = dict(joint.named_parameters())
    for name, p in plain.named_parameters():
        torch.testing.assert_close(own[f"network.{name}"].grad, p.grad, atol=1e-6, rtol=1e-5)
    split, _ = Masksembles(members=4, scale=1).feed(x, y)
    assert not torch.allclose(joint(split)[0], expected[:2], atol=1e-3)  # by parts, BatchNorm sees two images


def test_weights_are_kept_and_the_output_layer_is_not_masked():
    network, _ = make("lenet")
    joint = Masksembles(members=3).convert(network, generator())
    state = joint.state_dict()
    for name, value in network.state_dict().items():
        assert torch.equal(state[f"network.{name}"], value)
    masked = {name.removeprefix("network.") for name in state if name.endswith("mask")}
    assert masked == {"conv1.mask", "conv2.mask", "fc1.mask"}


def test_names_choose_the_masked_layers():
    network, _ = make("lenet")
    joint = Masksembles(members=3, include=("conv*", "fc2")).convert(network, generator())
    masked = {n for n in joint.state_dict() if n.endswith("mask")}
    assert masked == {"network.conv1.mask", "network.conv2.mask", "network.fc2.mask"}


def test_wrong_settings_are_refused():
    with pytest.raises(InputError, match="scale is"):
        Masksembles(scale=0.5)
    with pytest.raises(ConversionError, match="Masksembles found no layer to convert"):
        Masksembles().convert(nn.Linear(2, 2), generator())
