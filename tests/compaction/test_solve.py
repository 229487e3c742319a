"""What cannot be removed stays and is named; what can be goes, with the constants it emits."""

import pytest
import torch
from tests.compaction.networks import (
    Vit,
    Written,
    assert_same,
    drawn,
    example,
    nested,
    prepared,
    residual,
    silenced,
    zeroed,
)
from torch import nn

from choral.compaction import compact, neuron_param_mask, shrink, tied_groups


class Total(nn.Module):
    def forward(self, x):
        return x.sum((2, 3))


def test_a_constant_behind_batch_norm_is_folded_into_the_next_bias():
    network = prepared(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 4, 3)))
    keep = {"0": torch.arange(8) >= 3}
    x = example("", 2)
    result = compact(network, keep, x)
    assert result.removed == {"0": 3}
    norm = network[1]
    emitted = torch.tanh(norm.bias - norm.weight * norm.running_mean / (norm.running_var + norm.eps).sqrt())[:3]
    expected = network[3].bias + network[3].weight[:, :3].sum((2, 3)) @ emitted
    torch.testing.assert_close(result.network.get_parameter("3.bias"), expected)
    assert_same(result.network, zeroed(network, keep), x)


@pytest.mark.parametrize(
    "after",
    [
        nn.Sequential(nn.LayerNorm(10), nn.Conv2d(8, 4, 3)),  # statistics over all channels
        nn.Sequential(nn.Softmax(1), nn.Conv2d(8, 4, 3)),  # no rule
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 4, 3)),  # tied to live channels
        nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(8, 4, 3)),  # not constant any more
        nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(8, 4, 3)),
        nn.Sequential(Total(), nn.Linear(8, 4)),
        nn.Identity(),  # an output of the network
    ],
    ids=["norm", "softmax", "depthwise", "average", "padding", "sum", "output"],
)
def test_what_cannot_go_stays_and_is_named(after):
    network = prepared(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), after))
    keep = {"0": torch.arange(8) >= 3}
    x = example("", 2)
    result = compact(network, keep, x)
    assert result.kept == {"0": (0, 1, 2)}
    assert result.form == {"axes": {}, "attributes": {}}
    assert_same(result.network, zeroed(network, keep), x)


def test_a_layer_used_twice_cannot_take_over_two_constants():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(12, 8), nn.Linear(12, 8), nn.Linear(8, 3)
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x):
            x = x.mean((1, 2))
            return self.c(self.norm(self.a(x))) + self.c(self.b(x))

    network, x = prepared(Twice), example("")
    keep = dict.fromkeys("ab", torch.arange(8) < 5)
    result = compact(network, keep, x)
    assert result.kept == {"a": (5, 6, 7), "b": (5, 6, 7)}
    result = compact(silenced(network, keep, x), keep, x)
    assert result.removed == {"a": 3, "b": 3}
    assert_same(result.network, silenced(network, keep, x), x)


def test_a_weight_that_is_also_an_embedding_stays():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.inner, self.back = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10, bias=False)
            self.back.weight = self.words.weight

        def forward(self, x):
            return self.back(self.inner(self.words(x)).tanh())

    network, x = prepared(Tied), torch.arange(6).view(2, 3)
    keep = {"inner": torch.arange(8) < 5}
    result = compact(network, keep, x)
    assert result.kept == {"inner": (5, 6, 7)}
    assert_same(result.network, zeroed(network, keep), x)


def test_residual_sums_keep_what_is_alive_in_any_layer():
    network = prepared(residual)
    x = example("residual")
    keep = {"0.0": torch.arange(8) >= 4, "2.0.body.2.0": torch.arange(8) >= 2}
    result = compact(silenced(network, keep, x), keep, x)
    assert result.removed == {"0.0": 2, "2.0.body.2.0": 2}
    assert result.kept == {"0.0": (2, 3)}  # they can only go together with live channels


def test_attention_and_its_norms_are_left_alone_and_hidden_neurons_go():
    network = prepared(Vit)
    x = example("vit")
    g = torch.Generator().manual_seed(1)
    layers = ("patches", "hidden", "back", "attention.out_proj")
    keep = {n: torch.rand(network.get_parameter(f"{n}.weight").shape[0], generator=g) < 0.5 for n in layers}
    result = compact(network, keep, x)
    assert result.removed == {"hidden": int((~keep["hidden"]).sum())}
    assert set(result.kept) == {"patches", "back", "attention.out_proj"}
    assert_same(result.network, zeroed(network, keep), x)


def test_whole_groups_go_under_group_norm_and_grouped_convolutions():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 2, 3)
    )
    network = prepared(lambda: network)
    x = example("")
    keep = {"0": torch.tensor([1, 1, 0, 0, 0, 1, 1, 1]).bool(), "3": torch.arange(12) // 3 != 1}
    result = compact(network, keep, x)
    assert result.removed == {"0": 2, "3": 3}
    norm, conv = result.network.get_submodule("1"), result.network.get_submodule("3")
    assert (norm.num_groups, conv.groups, conv.in_channels) == (3, 3, 6)
    assert result.kept == {"0": (4,)}
    assert_same(result.network, zeroed(network, keep), x)


def test_a_size_written_into_forward_only_costs_the_layer_it_concerns():
    network = prepared(Written)
    x = example("written")
    keep = drawn(network, x, 0, tied=False)
    result = compact(network, keep, x)
    assert result.removed == {"conv1": 3, "fc1": 5}
    assert set(result.kept) == {"conv2"}


def test_a_layer_never_loses_its_last_channel():
    network = prepared(nested)
    x = example("nested")
    keep = {"1": torch.zeros(20).bool(), "3.0.0": torch.zeros(16).bool()}
    result = compact(silenced(network, keep, x), keep, x)
    assert result.removed == {"1": 19, "3.0.0": 15}
    assert {layer: len(channels) for layer, channels in result.kept.items()} == {"1": 1, "3.0.0": 1}


def test_networks_that_cannot_be_traced_stay_whole():
    class Shy(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(12, 8), nn.Linear(8, 2)

        def forward(self, x):
            if torch.overrides._is_torch_function_mode_enabled():
                raise RuntimeError("no way through")
            return self.two(self.one(x.mean((1, 2))))

    network, x = prepared(Shy), example("")
    keep = {"one": torch.arange(8) < 6}
    result = compact(network, keep, x)
    assert result.kept == {"one": (6, 7)}
    assert_same(result.network, zeroed(network, keep), x)
    assert tied_groups(network, x) == []
    assert set(neuron_param_mask(network, keep, x)) == {"one.weight", "one.bias"}


def test_steps_hidden_from_the_tracer_are_caught_by_the_check():
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(x.numpy().cumsum(1))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(12, 8), nn.Linear(8, 2)
            self.three, self.four = nn.Linear(2, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.four(self.three(self.two(Hidden.apply(self.one(x.mean((1, 2)))))))

    network = prepared(Network)
    x = example("")
    keep = drawn(network, x, 0, tied=False)
    result = compact(network, keep, x)
    assert_same(result.network, zeroed(network, keep), x)
    assert result.removed.get("three") == 3
    assert "one" in result.kept


class Strided(nn.Module):
    """Three input channels, a stride, zero-padding, no bias, BatchNorm and a residual sum."""

    def __init__(self, activation):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 8, 3, 2, padding=1, bias=False), nn.BatchNorm2d(8), activation)
        self.two = nn.Sequential(nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6))
        self.side = nn.Conv2d(8, 6, 1, bias=False)
        self.act, self.last = activation, nn.Linear(6, 2)

    def forward(self, x):
        h = self.one(x)
        return self.last(self.act(self.two(h) + self.side(h)).mean((2, 3)))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU(), nn.Identity()])
def test_one_closed_node_carries_the_constants_of_all_through_padding_and_missing_biases(activation):
    network = prepared(lambda: Strided(activation))
    keep = {"one.0": torch.arange(8) >= 5}
    x = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    solution = compact(network, keep, x)
    form, folds = solution.form, solution.folds
    assert len(form["axes"]["one.0.weight"]["0"]) == 4
    whole = zeroed(network, keep)
    with torch.no_grad():
        for fold in folds:
            assert fold.bias is None
            assert fold.constants.abs().max() <= 1  # the largest constant carries
            weight = whole.get_parameter(fold.weight)
            weight[:, fold.carrier] += (weight[:, fold.channels].movedim(1, -1) * fold.constants).sum(-1)
    assert {fold.weight for fold in folds} == {"two.0.weight", "side.weight"}
    assert_same(shrink(whole, form), zeroed(network, keep), x)
    result = compact(network, keep, x)
    assert result.form == form
    assert {layer: len(channels) for layer, channels in result.kept.items()} == {"one.0": 1}
    assert_same(result.network, zeroed(network, keep), x)
