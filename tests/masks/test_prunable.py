"""Which weights are masked by default, and how the defaults are changed."""

import pytest
import torch
from torch import nn

from choral.base.errors import InputError
from choral.engine.inspect import executed
from choral.masks import expand_neurons, prunable


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)  # declared first, executed last
        self.embed = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden = nn.Linear(8, 16)
        self.back = nn.Linear(16, 8)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        h = self.norm(x)
        x = x + self.attention(h, h, h)[0]
        return self.head((x + self.back(self.hidden(x).relu())).mean(1))


ATTENTION = ["attention.in_proj_weight", "attention.out_proj.weight"]


def test_attention_weights_count_for_connections_only():
    network = Attention()
    calls = executed(network, torch.zeros(1, 3, 8, 8))
    assert prunable(network, calls=calls) == ["embed.weight", *ATTENTION, "hidden.weight", "back.weight"]
    assert prunable(network, unit="neuron", calls=calls) == ["embed.weight", "hidden.weight", "back.weight"]
    assert network.training
    assert prunable(network) == ["head.weight", "embed.weight", *ATTENTION, "hidden.weight"]


def test_so_do_those_of_recurrent_layers():
    network = nn.ModuleDict(
        {"body": nn.LSTM(3, 8, num_layers=2, bias=False), "cell": nn.GRUCell(8, 4), "last": nn.Linear(4, 2)}
    )
    body = [f"body.weight_{kind}_l{layer}" for layer in (0, 1) for kind in ("ih", "hh")]
    assert prunable(network) == [*body, "cell.weight_ih", "cell.weight_hh"]
    assert prunable(network, unit="neuron", keep_classifier=False) == ["last.weight"]


def test_options():
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2))
    assert prunable(network) == ["0.weight", "3.weight"]
    assert prunable(network, keep_classifier=False) == ["0.weight", "3.weight", "4.weight"]
    assert prunable(network, keep_first=True) == ["3.weight"]
    assert prunable(network, include=["4.weight", "1.*"]) == ["0.weight", "1.weight", "1.bias", "3.weight", "4.weight"]
    assert prunable(network, exclude=["0.*"]) == ["3.weight"]


def test_layers_without_their_own_weight_and_shared_ones():
    shared = nn.Linear(4, 4)
    network = nn.Sequential(shared, nn.ReLU(), shared, nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    assert prunable(network, keep_classifier=False) == ["0.weight"]


def test_patterns_that_fit_nothing_are_refused():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"nothing matches '0\.wieght'.*Did you mean '0\.weight'"):
        prunable(network, exclude=["0.wieght"])
    with pytest.raises(InputError, match="has no neurons"):
        prunable(network, unit="neuron", include=["0.bias"])


def test_neurons_expand_to_rows_and_biases():
    shapes = {"fc.weight": (3, 2), "fc.bias": (3,), "bn.weight": (3,), "bn.bias": (3,), "conv.weight": (2, 3, 1, 1)}
    keep = {"fc": torch.tensor([True, False, True]), "conv": torch.tensor([False, True])}
    masks = expand_neurons(shapes, keep | {"bn": keep["fc"]})
    assert {name: mask.shape for name, mask in masks.items()} == {n: torch.Size(s) for n, s in shapes.items()}
    assert masks["fc.weight"].tolist() == [[True, True], [False, False], [True, True]]
    assert masks["fc.bias"].tolist() == masks["bn.weight"].tolist() == masks["bn.bias"].tolist() == [True, False, True]
    assert masks["conv.weight"].flatten(1).tolist() == [[False] * 3, [True] * 3]
    with pytest.raises(InputError, match=r"no weight or bias.*Did you mean 'fc\.weight'"):
        expand_neurons(shapes, {"fcc": torch.ones(2)})
