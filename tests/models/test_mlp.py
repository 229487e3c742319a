from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from choral.models import mlp


def test_equals_the_formula():
    torch.manual_seed(0)
    network: Any = mlp(6, 2, hidden=(5, 4), activation="tanh")
    x = torch.randn(3, 2, 3)
    h = x.reshape(3, 6)
    h = torch.tanh(h @ network.linear1.weight.T + network.linear1.bias)
    h = torch.tanh(h @ network.linear2.weight.T + network.linear2.bias)
    torch.testing.assert_close(network(x), h @ network.output.weight.T + network.output.bias)


def test_inputs_are_flattened_whatever_their_shape():
    torch.manual_seed(0)
    network: Any = mlp(64, 10)
    x = torch.randn(5, 64)
    for shape in ((5, 1, 8, 8), (5, 8, 8), (5, 4, 16)):
        torch.testing.assert_close(network(x.view(shape)), network(x), rtol=0, atol=0)


def test_no_hidden_layer_is_a_linear_model():
    torch.manual_seed(0)
    network: Any = mlp(4, 3, hidden=())
    x = torch.randn(2, 4)
    torch.testing.assert_close(network(x), F.linear(x, network.output.weight, network.output.bias))
    assert sum(p.numel() for p in network.parameters()) == 15


@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm1d), ("layer", nn.LayerNorm)])
def test_each_hidden_layer_is_normalized_before_its_activation_and_dropped_after(norm, kind):
    network: Any = mlp(8, 1, hidden=(5, 5), norm=norm, activation="elu", dropout=0.1)
    kinds = [type(layer) for layer in network]
    hidden = [nn.Linear, kind, nn.ELU, nn.Dropout]
    assert kinds == [nn.Flatten, *hidden, *hidden, nn.Linear]


def test_the_uci_networks_have_their_sizes():
    assert sum(p.numel() for p in mlp(8, 1, hidden=(50,)).parameters()) == 8 * 50 + 50 + 51
    assert sum(p.numel() for p in mlp(8, 1, hidden=(50, 50)).parameters()) == 450 + 50 * 51 + 51
    assert sum(p.numel() for p in mlp(8, 1, norm="batch").parameters()) == 501 + 100
