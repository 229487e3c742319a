from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from choral.models import cnn_lstm
from choral.models.recurrent import Lstm

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
