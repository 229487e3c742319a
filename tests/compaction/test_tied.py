"""Layers that lose neurons together, and the parameters that go with a neuron."""

import torch
from tests.compaction.networks import Dense, Squeeze, depthwise, example, prepared

from choral.compaction import neuron_param_mask, tied_groups
from choral.models import lenet, resnet_cifar


def test_tied_layers_of_a_residual_network():
    groups = tied_groups(resnet_cifar(8), torch.zeros(1, 3, 8, 8))
    assert groups == [
        ["conv1", "layer1.0.conv2"],
        ["layer2.0.conv2", "layer2.0.downsample.0"],
        ["layer3.0.conv2", "layer3.0.downsample.0"],
    ]
    assert tied_groups(lenet("5"), torch.zeros(1, 3, 32, 32)) == []
    assert tied_groups(Squeeze(), torch.zeros(1, 3, 8, 8)) == [["conv", "up"]]


def test_neuron_param_mask_reaches_through_norms_and_depthwise_convolutions():
    network = prepared(depthwise)
    x = example("depthwise")
    keep = {"2.body.0.0": torch.arange(12) >= 5}
    masks = neuron_param_mask(network, keep, x)
    rows = {"2.body.0.0.weight", "2.body.0.1.weight", "2.body.0.1.bias"}
    rows |= {"2.body.2.0.weight", "2.body.2.1.weight", "2.body.2.1.bias"}
    assert set(masks) == rows
    for name, mask in masks.items():
        assert mask.shape == network.get_parameter(name).shape
        assert torch.equal(mask.flatten(1).all(1) if mask.dim() > 1 else mask, torch.arange(12) >= 5)


def test_neuron_param_mask_reaches_every_norm_that_reads_a_concatenation():
    masks = neuron_param_mask(prepared(Dense), {"convs.0": torch.tensor([True, False, False, True])}, example(""))
    assert masks["norms.1.weight"].tolist() == [True] * 7 + [False, False, True]
    assert masks["norms.2.bias"].tolist() == [True] * 7 + [False, False, True] + [True] * 4
    assert "norms.0.weight" not in masks
