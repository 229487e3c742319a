"""Compacted networks give the outputs of the masked ones, whatever the network is made of."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from tests.compaction.networks import (
    NETWORKS,
    Written,
    assert_same,
    compact_by_rules,
    drawn,
    example,
    prepared,
    removed_channels,
    silenced,
    zeroed,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from choral.base.errors import InputError
from choral.compaction import compact, neuron_param_mask, shrink, slice_params
from choral.models import lenet, resnet_cifar


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "free"])
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "loud"])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_those_of_the_masked_network(name, silent, tied):
    for seed in range(3):
        x = example(name)
        network = prepared(NETWORKS[name], seed)
        keep = drawn(network, x, seed, tied=tied)
        if silent:
            network = silenced(network, keep, x)
        before = copy.deepcopy(network.state_dict())
        # the rules alone must be right, before any check on the example
        result = (compact if name == "written" else compact_by_rules)(network, keep, x)
        assert_same(result.network, zeroed(network, keep), example(name, count=5, seed=9))
        assert all(torch.equal(network.state_dict()[key], value) for key, value in before.items())
        removed_channels(result, keep)
        # the form alone rebuilds the small network from a fresh one
        form = json.loads(json.dumps(result.form))
        assert form == compact(network, keep, x).form == result.form
        rebuilt = shrink(NETWORKS[name]().eval(), form)
        rebuilt.load_state_dict(result.network.state_dict(), strict=True)
        assert_same(rebuilt, result.network, x)
        assert str(rebuilt) == str(result.network)
        sliced = slice_params(network.state_dict(), form)
        assert {k: v.shape for k, v in sliced.items()} == {k: v.shape for k, v in result.network.state_dict().items()}


def flops(network, x):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(*(x if isinstance(x, tuple) else (x,)))
    return counter.get_total_flops()


ALL_GO = "nested residual dense depthwise sequence response_norm squeeze pre_activation shared choosy lenet resnet8"


@pytest.mark.parametrize("name", ALL_GO.split())
def test_silenced_neurons_with_equal_masks_on_tied_layers_all_go(name):
    x = example(name)
    network = prepared(NETWORKS[name])
    keep = drawn(network, x, 1, tied=True)
    network = silenced(network, keep, x)
    result = compact(network, keep, x)
    assert result.kept == {}
    before, after = (sum(p.numel() for p in net.parameters()) for net in (network, result.network))
    assert after < 0.75 * before
    assert flops(result.network, x) < 0.75 * flops(network, x)


@pytest.mark.parametrize("name", ["residual", "resnet8", "depthwise", "dense"])
def test_training_goes_on_as_it_would_have_masked(name):
    x = example(name, count=6)
    network = prepared(NETWORKS[name])
    keep = drawn(network, x, 2, tied=True)
    network = silenced(network, keep, x)
    result = compact(network, keep, x)
    masks = neuron_param_mask(network, keep, x)
    big, small = network.train(), result.network.train()
    for member in (big, small):
        optimizer = torch.optim.SGD(member.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(member(x), torch.arange(6) % 3).backward()
            for key, mask in masks.items() if member is big else ():
                parameter = member.get_parameter(key)
                assert parameter.grad is not None
                parameter.grad.mul_(mask)
            optimizer.step()
    expected = slice_params(big.state_dict(), result.form)
    for key, value in small.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        ({"conv": torch.ones(8).bool()}, AttributeError, "no attribute `conv`"),
        ({"conv1": torch.ones(7).bool()}, InputError, r"keep\['conv1'\] has shape \(7,\); its layer takes \(6,\)"),
    ],
)
def test_wrong_keep_vectors_are_refused(keep, error, message):
    with pytest.raises(error, match=message):
        compact(Written(), keep, example("written"))


def test_several_inputs_and_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(5, 8), nn.Linear(8, 2)

        def forward(self, x, y):
            h = torch.maximum(self.a(x), self.b(y))
            return {"out": self.c(h), "kept": (self.c.bias,)}

    network = prepared(Two)
    keep = dict.fromkeys("ab", torch.arange(8) < 5)
    inputs = (torch.randn(3, 4), torch.randn(3, 5))
    result = compact(network, keep, inputs)
    assert result.removed == {"a": 3, "b": 3}
    with torch.no_grad():
        torch.testing.assert_close(result.network(*inputs)["out"], zeroed(network, keep)(*inputs)["out"])


@pytest.mark.parametrize("build", [lambda: lenet("L"), lambda: resnet_cifar(20)], ids=["lenet_l", "resnet20"])
def test_half_the_neurons_take_a_quarter_of_the_file(build):
    network, x = build().eval(), torch.randn(2, 3, 32, 32)
    keep = drawn(network, x, 0, tied=True)
    network = silenced(network, keep, x)
    result = compact(network, keep, x)
    assert result.kept == {}
    form = json.dumps(result.form).encode()
    assert len(save(result.network.state_dict())) + len(form) < 0.35 * len(save(network.state_dict()))
    assert flops(result.network, x) < flops(network, x) / 3


def test_torch_pruning_finds_the_same_network_where_it_applies():
    tp = pytest.importorskip("torch_pruning")
    network, x = prepared(lambda: resnet_cifar(8)), torch.randn(2, 3, 16, 16)
    keep = drawn(network, x, 0, tied=True)
    network = silenced(network, keep, x)
    ours = compact(network, keep, x).network
    theirs = copy.deepcopy(network)
    graph = tp.DependencyGraph().build_dependency(theirs, example_inputs=x)
    cut = set()
    for layer, vector in keep.items():
        if layer not in cut:
            module = theirs.get_submodule(layer)
            group = graph.get_pruning_group(module, tp.prune_conv_out_channels, (~vector).nonzero().flatten().tolist())
            cut |= {graph._module2name[d.target.module] for d, _ in group if d.handler == tp.prune_conv_out_channels}
            group.prune()
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(value, ours.state_dict()[key])
    assert_same(ours, theirs, x)


@st.composite
def recipes(draw):
    steps = st.sampled_from(
        ["conv", "padded", "norm", "relu", "tanh", "residual", "concat", "depthwise", "pool", "groups", "scale", "mean"]
    )
    return draw(st.lists(steps, min_size=2, max_size=9))


class Assembled(nn.Module):
    """A network put together from named steps, width 6 throughout."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.layers = nn.ModuleDict()
        for i, step in enumerate(steps):
            if step in ("conv", "residual"):
                self.layers[f"{i}"] = nn.Conv2d(6, 6, 1)
            elif step == "padded":
                self.layers[f"{i}"] = nn.Conv2d(6, 6, 3, padding=1, bias=False)
            elif step == "concat":
                self.layers[f"{i}"] = nn.Conv2d(6, 3, 1)
                self.layers[f"{i}join"] = nn.Conv2d(9, 6, 3, padding=1)
            elif step == "depthwise":
                self.layers[f"{i}"] = nn.Conv2d(6, 6, 3, padding=1, groups=6)
            elif step == "norm":
                self.layers[f"{i}"] = nn.BatchNorm2d(6)
            elif step == "groups":
                self.layers[f"{i}"] = nn.GroupNorm(3, 6)
            elif step == "scale":
                self.register_parameter(f"scale{i}", nn.Parameter(torch.randn(6, 1, 1)))
        self.head = nn.Linear(6 * 9, 3)

    def forward(self, x):
        x = self.stem(x)
        for i, step in enumerate(self.steps):
            if step in ("conv", "padded", "depthwise", "norm", "groups"):
                x = self.layers[f"{i}"](x)
            elif step == "residual":
                x = x + self.layers[f"{i}"](x)
            elif step == "concat":
                x = self.layers[f"{i}join"](torch.cat([self.layers[f"{i}"](x), x], 1))
            elif step == "pool":
                x = F.avg_pool2d(x, 3, 1, 1)
            elif step == "scale":
                x = getattr(self, f"scale{i}") * x
            elif step == "mean":
                x = x - x.mean((2, 3), keepdim=True)
            else:
                x = getattr(torch, step)(x)
        return self.head(F.adaptive_max_pool2d(x, 3).flatten(1))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(steps=recipes(), seed=st.integers(0, 999), silent=st.booleans(), tied=st.booleans(), share=st.floats(0, 1))
def test_any_assembly_of_layers(steps, seed, silent, tied, share):
    network = prepared(lambda: Assembled(steps), seed)
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    keep = drawn(network, x, seed, tied=tied, density=share)
    if silent:
        network = silenced(network, keep, x)
    result = compact_by_rules(network, keep, x)
    fresh = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(seed + 1))
    assert_same(result.network, zeroed(network, keep), fresh)
    removed_channels(result, keep)
