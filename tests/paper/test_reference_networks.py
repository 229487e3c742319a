"""Networks of the reference-posterior literature equal plain formulas."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.protocols.reference_networks import Lstm, alexnet_cifar, cnn28, cnn_lstm
from torch import nn

GATES = ("input", "forget", "cell", "output")  # torch's order


def torch_twin(lstm, inputs, units):
    twin: Any = nn.LSTM(inputs, units, batch_first=True).double()
    with torch.no_grad():
        twin.weight_ih_l0.copy_(torch.cat([lstm.from_input[g].weight for g in GATES]))
        twin.bias_ih_l0.copy_(torch.cat([lstm.from_input[g].bias for g in GATES]))
        twin.weight_hh_l0.copy_(torch.cat([lstm.from_state[g].weight for g in GATES]))
        twin.bias_hh_l0.zero_()
    return twin


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_lstm_equals_torchs(length):
    torch.manual_seed(0)
    lstm = Lstm(4, 3).double()
    x = torch.randn(5, length, 4, dtype=torch.double)
    torch.testing.assert_close(lstm(x), torch_twin(lstm, 4, 3)(x)[0][:, -1])


def test_the_lstm_starts_where_torchs_does():
    torch.manual_seed(0)
    for parameter in Lstm(300, 100).parameters():
        assert parameter.abs().max() <= 0.1
        assert parameter.abs().max() > 0.095
        assert parameter.abs().mean().item() == pytest.approx(0.05, rel=0.2)


def test_the_network_equals_a_plain_reading_of_its_weights():
    torch.manual_seed(0)
    network: Any = cnn_lstm(30, classes=3, embedding=5, filters=6, units=4).double()
    tokens = torch.randint(0, 30, (2, 21))
    x = network.embedding.weight[tokens].transpose(1, 2)
    x = F.max_pool1d(F.relu(F.conv1d(x, network.conv.weight, network.conv.bias)), 4)
    assert x.shape == (2, 6, 4)  # 21 - 4 = 17 places in 4 groups of 4
    hidden = torch_twin(network.lstm, 6, 4)(x.transpose(1, 2))[0][:, -1]
    torch.testing.assert_close(network(tokens), F.linear(hidden, network.classifier.weight, network.classifier.bias))


@pytest.mark.parametrize(("units", "parameters"), [(70, 2_638_966), (128, 2_700_098)])
def test_the_network_has_its_size(units, parameters):
    with torch.device("meta"):
        network = cnn_lstm(units=units)
    lstm = 4 * units * (64 + units + 1)
    assert parameters == 20000 * 128 + 64 * (128 * 5 + 1) + lstm + 2 * (units + 1)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_it_is_by_default_the_network_of_the_published_reference():
    with torch.device("meta"):
        network = cnn_lstm()
    assert sum(p.numel() for p in network.parameters()) == 2_700_098


def test_alexnet_has_its_layers():
    with torch.device("meta"):
        network = alexnet_cifar()
    convs = 64 * (27 + 1) + 128 * (64 * 9 + 1) + 256 * (128 * 4 + 1) + 128 * (256 * 4 + 1) + 64 * (128 * 4 + 1)
    linears = 256 * (64 * 8 * 8 + 1) + 256 * (256 + 1) + 10 * (256 + 1)
    assert sum(p.numel() for p in network.parameters()) == convs + linears == 1_488_202


@pytest.mark.parametrize("side", [4, 7, 8, 32])
def test_alexnet_equals_the_formula(side):
    torch.manual_seed(0)
    network = alexnet_cifar(classes=3, channels=1, side=side)
    w = dict(network.named_parameters())
    x = torch.randn(2, 1, side, side)
    h = x
    for i in range(1, 6):
        padding = (1, 1, 1, 1) if i < 3 else (0, 1, 0, 1)
        h = F.silu(F.conv2d(F.pad(h, padding), w[f"conv{i}.weight"], w[f"conv{i}.bias"]))
        h = F.max_pool2d(h, 2) if i < 3 else h
    h = h.flatten(1)
    for i in (1, 2):
        h = F.silu(F.linear(h, w[f"fc{i}.weight"], w[f"fc{i}.bias"]))
    torch.testing.assert_close(network(x), F.linear(h, w["classifier.weight"], w["classifier.bias"]))


def test_the_small_cnn_has_its_size():
    network = cnn28()
    assert sum(p.numel() for p in network.parameters()) == 16_071
    assert network(torch.ones(2, 3, 28, 28)).shape == (2, 7)
