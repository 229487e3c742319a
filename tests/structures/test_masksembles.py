import pytest
import torch
from tests.structures.networks import generator, make
from torch import nn

from choral.errors import ConversionError, InputError
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
    with pytest.raises(InputError, match=r"scale=0\.5"):
        Masksembles(scale=0.5)
    with pytest.raises(ConversionError, match="found no linear map or convolution to mask"):
        Masksembles().convert(nn.Linear(2, 2), generator())
