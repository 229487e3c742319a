"""Compacted networks give the outputs of the masked ones, whatever the network is made of."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from choral.compaction import compact, neuron_param_mask, plan_compaction, shrink, slice_params, tied_groups
from choral.errors import InputError
from choral.layers.frn import FilterResponseNorm
from choral.masks import keep_vectors, prunable, random_masks
from choral.models import lenet, resnet_cifar

IMAGES = (3, 12, 12)


class Residual(nn.Module):
    def __init__(self, body, shortcut=None):
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class Dense(nn.Module):
    """Every convolution reads all that came before it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6 + 4 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(6 + 4 * i, 4, 3, padding=1, bias=False) for i in range(3))
        self.transition = nn.Conv2d(18, 8, 1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        features = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs):
            features.append(conv(F.relu(norm(torch.cat(features, 1)))))
        x = F.avg_pool2d(self.transition(torch.cat(features, dim=1)), 2)
        return self.fc(x.mean((2, 3)))


class Squeeze(nn.Module):
    """Channels multiplied by a gate computed from their means."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Linear(8, 6)
        self.up = nn.Linear(6, 8)
        self.out = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        x = self.conv(x).relu()
        gate = torch.sigmoid(self.up(self.down(x.mean(dim=(2, 3))).relu()))
        return self.out(x * gate[:, :, None, None]).flatten(2).sum(-1)


class Vit(nn.Module):
    """Patches, a class token, positions, attention and an MLP, all with LayerNorm in front."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 10, 16) * 0.1)
        self.norm1 = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(16)
        self.hidden = nn.Linear(16, 32)
        self.back = nn.Linear(32, 16)
        self.norm3 = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.back(F.gelu(self.hidden(self.norm2(x))))
        return self.head(self.norm3(x)[:, 0])


class PaddedShortcut(nn.Module):
    """The shortcut of He et al., option A: every second pixel, zeros for the new channels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.body = nn.Conv2d(6, 10, 3, 2, padding=1)
        self.norm = nn.BatchNorm2d(10)
        self.fc = nn.Linear(10, 3)

    def forward(self, x):
        x = self.stem(x)
        x = self.norm(self.body(x.relu())) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return self.fc(F.adaptive_avg_pool2d(x.relu(), 1).flatten(1))


class Written(nn.Module):
    """A size written into forward, as in many tutorials."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc1 = nn.Linear(8 * 3 * 3, 10)
        self.fc2 = nn.Linear(10, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(x.view(-1, 8 * 3 * 3))))


class Total(nn.Module):
    def forward(self, x):
        return x.sum((2, 3))


class Shared(nn.Module):
    """One layer used twice, and one weight under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 9)
        self.again = nn.Linear(9, 9)
        self.left = nn.Linear(9, 7)
        self.right = nn.Linear(9, 7)
        self.right.weight = self.left.weight
        self.out = nn.Linear(7, 2)

    def forward(self, x):
        x = self.again(self.again(self.first(x.mean((1, 2))).relu()).relu()).relu()
        return self.out(self.left(x).tanh() + self.right(x).tanh())


class Choosy(nn.Module):
    """The path depends on the data: symbolic tracing is impossible."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(12, 10)
        self.two = nn.Linear(10, 3)

    def forward(self, x):
        h = self.one(x.mean((1, 2)))
        return self.two(h.relu() if x.mean() > 1e6 else h.tanh() * 2)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 1)
        self.b = nn.Conv2d(8, 8, 1)
        self.c = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.a(x), inplace=True)
        y = self.b(x)
        y += x
        view = y.view(y.shape)
        view.add_(0.25)  # shows in y
        return self.c(y).amax((2, 3))


class Transposed(nn.Module):
    """A layer with no rule between two with one."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3)
        self.up = nn.ConvTranspose2d(8, 6, 3)
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.out(self.up(self.down(x).relu()).relu()).softmax(1)


def conv_bn(inputs, outputs, *, stride=1, kernel=3, groups=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def nested():
    inner = nn.Sequential(nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16)), nn.Sequential(nn.Dropout(), nn.GELU()))
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 20), nn.PReLU(20), inner, nn.Linear(16, 3))


def residual():
    narrow = nn.Sequential(conv_bn(8, 8), nn.ReLU(inplace=True), conv_bn(8, 8))
    wider = nn.Sequential(conv_bn(8, 12, stride=2), nn.ReLU(), conv_bn(12, 12))
    blocks = nn.Sequential(Residual(narrow), Residual(wider, conv_bn(8, 12, stride=2, kernel=1)))
    return nn.Sequential(conv_bn(3, 8), nn.ReLU(), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))


def depthwise():
    block = nn.Sequential(
        conv_bn(8, 12, kernel=1), nn.ReLU6(), conv_bn(12, 12, groups=12), nn.Hardswish(), conv_bn(12, 8)
    )
    return nn.Sequential(conv_bn(3, 8), nn.SiLU(), Residual(block), nn.Flatten(), nn.Linear(8 * 144, 4))


def grouped():
    conv = nn.Conv2d(8, 12, 3, padding=1, groups=4)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), conv, nn.ReLU(), nn.Conv2d(12, 4, 3), nn.Flatten())


def group_norms():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding=1),
        nn.GroupNorm(6, 6),
        nn.ELU(),
        nn.Conv2d(6, 5, 3, padding=1),
        nn.InstanceNorm2d(5),
        nn.Conv2d(5, 4, 3),
        nn.GroupNorm(1, 4),
        nn.Flatten(),
    )


def layer_norm():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(432, 16), nn.LayerNorm(16), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
    )


def sequence():
    return nn.Sequential(
        nn.Flatten(2),
        nn.Conv1d(3, 8, 5, padding=2, padding_mode="circular"),
        nn.BatchNorm1d(8),
        nn.Softplus(),
        nn.MaxPool1d(2),
        nn.Conv1d(8, 6, 3),
        nn.Sigmoid(),
        nn.AdaptiveMaxPool1d(4),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def response_norm():
    return nn.Sequential(nn.Conv2d(3, 8, 3), FilterResponseNorm(8, learned_eps=True), nn.Conv2d(8, 4, 3), nn.Flatten())


def encoder_layer():
    layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
    return nn.Sequential(nn.Flatten(2), nn.Linear(144, 12), layer, nn.Flatten(), nn.Linear(36, 3))


def pre_activation():
    body = nn.Sequential(
        nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    )
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Residual(body.append(nn.Conv2d(8, 8, 3, padding=1))),
        nn.Flatten(),
        nn.Linear(1152, 3),
    )


NETWORKS = {
    "nested": nested,
    "residual": residual,
    "dense": Dense,
    "depthwise": depthwise,
    "grouped": grouped,
    "group_norms": group_norms,
    "layer_norm": layer_norm,
    "sequence": sequence,
    "response_norm": response_norm,
    "squeeze": Squeeze,
    "vit": Vit,
    "encoder_layer": encoder_layer,
    "pre_activation": pre_activation,
    "padded_shortcut": PaddedShortcut,
    "written": Written,
    "shared": Shared,
    "choosy": Choosy,
    "in_place": InPlace,
    "transposed": Transposed,
    "lenet": lambda: lenet("5", side=16),
    "resnet8": lambda: resnet_cifar(8, width=8),
}


def example(name, count=3, seed=0):
    shape = (3, 16, 16) if name == "lenet" else IMAGES
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def prepared(build, seed=0):
    """A network in evaluation mode with random BatchNorm statistics, scales, shifts and biases."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.normal_(module.get_buffer("running_mean"), 0, 0.5)
                nn.init.uniform_(module.get_buffer("running_var"), 0.5, 2)
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | FilterResponseNorm):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.5)
    return network.eval()


def drawn(network, x, seed, *, tied, density=0.5):
    names = prunable(network, unit="neuron", example_input=x)
    shapes = {name: network.get_parameter(name).shape for name in names}
    groups = tied_groups(network, x) if tied else ()
    return keep_vectors(
        random_masks(shapes, torch.Generator().manual_seed(seed), density=density, unit="neuron", groups=groups)
    )


def silenced(network, keep, x):
    """The network with all parameters of removed neurons, and of norms behind them, set to zero."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for name, mask in neuron_param_mask(network, keep, x).items():
            network.get_parameter(name).mul_(mask)
    return network


def zeroed(network, keep):
    """The definition, written out: removed neurons have zero weights and zero bias."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for name, vector in keep.items():
            for parameter in network.get_submodule(name).parameters(recurse=False):
                parameter[~vector] = 0
    return network


def assert_same(one, other, x):
    with torch.no_grad():
        torch.testing.assert_close(one(x), other(x), rtol=1e-5, atol=1e-5)


def removed_channels(result, keep):
    """How many of the wanted channels went; those that stayed must all be named, once."""
    wanted = {layer: set((~vector).nonzero().flatten().tolist()) for layer, vector in keep.items()}
    for kept in result.report.kept:
        assert kept.reason
        assert set(kept.channels) <= wanted[kept.layer]
        wanted[kept.layer] -= set(kept.channels)
    for layer, channels in wanted.items():
        assert result.report.removed.get(layer, 0) >= len(channels)
    return sum(map(len, wanted.values()))


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
        result = compact(network, keep, x, repeats=0)
        assert_same(result.network, zeroed(network, keep), example(name, count=5, seed=9))
        assert all(torch.equal(network.state_dict()[key], value) for key, value in before.items())
        removed_channels(result, keep)
        if name != "written":  # everywhere else the rules alone must be right, before any check on the example
            assert not any("the smaller network failed" in kept.reason for kept in result.report.kept)
        # the form alone rebuilds the small network from a fresh one
        form = json.loads(json.dumps(result.form))
        assert form == plan_compaction(network, keep, x) == result.form
        rebuilt = shrink(NETWORKS[name]().eval(), form)
        rebuilt.load_state_dict(result.network.state_dict(), strict=True)
        assert_same(rebuilt, result.network, x)
        assert str(rebuilt) == str(result.network)
        sliced = slice_params(network.state_dict(), form)
        assert {k: v.shape for k, v in sliced.items()} == {k: v.shape for k, v in result.network.state_dict().items()}


ALL_GO = "nested residual dense depthwise sequence response_norm squeeze pre_activation shared choosy lenet resnet8"


@pytest.mark.parametrize("name", ALL_GO.split())
def test_silenced_neurons_with_equal_masks_on_tied_layers_all_go(name):
    x = example(name)
    network = prepared(NETWORKS[name])
    keep = drawn(network, x, 1, tied=True)
    network = silenced(network, keep, x)
    result = compact(network, keep, x)
    assert result.report.kept == ()
    before, after = result.report.parameters
    assert after == sum(p.numel() for p in result.network.parameters()) < 0.75 * before
    assert result.report.flops[1] < 0.75 * result.report.flops[0]
    assert result.report.seconds is not None
    assert min(result.report.seconds) > 0
    assert "parameters" in str(result.report)


@pytest.mark.parametrize("name", ["residual", "resnet8", "depthwise", "dense"])
def test_training_goes_on_as_it_would_have_masked(name):
    x = example(name, count=6)
    network = prepared(NETWORKS[name])
    keep = drawn(network, x, 2, tied=True)
    network = silenced(network, keep, x)
    result = compact(network, keep, x, repeats=0)
    masks = neuron_param_mask(network, keep, x)
    big, small = network.train(), result.network.train()
    for member in (big, small):
        optimiser = torch.optim.SGD(member.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            F.cross_entropy(member(x), torch.arange(6) % 3).backward()
            for key, mask in masks.items() if member is big else ():
                parameter = member.get_parameter(key)
                assert parameter.grad is not None
                parameter.grad.mul_(mask)
            optimiser.step()
    expected = slice_params(big.state_dict(), result.form)
    for key, value in small.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5)


def test_a_constant_behind_batch_norm_is_folded_into_the_next_bias():
    network = prepared(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 4, 3)))
    keep = {"0": torch.arange(8) >= 3}
    x = example("", 2)
    result = compact(network, keep, x, repeats=0)
    assert result.report.removed == {"0": 3}
    norm = network[1]
    emitted = torch.tanh(norm.bias - norm.weight * norm.running_mean / (norm.running_var + norm.eps).sqrt())[:3]
    expected = network[3].bias + network[3].weight[:, :3].sum((2, 3)) @ emitted
    torch.testing.assert_close(result.network.get_parameter("3.bias"), expected)
    assert_same(result.network, zeroed(network, keep), x)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (nn.Conv2d(8, 4, 3, padding=1), "zero-padding around the input of 2.weight"),
        (nn.Conv2d(8, 4, 3, bias=False), "no bias to take it over"),
        (nn.Sequential(nn.LayerNorm(10), nn.Conv2d(8, 4, 3)), "layer_norm in LayerNorm '2.0'"),
        (nn.Sequential(nn.Softmax(1), nn.Conv2d(8, 4, 3)), "softmax in Softmax '2.0'"),
        (
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 4, 3)),
            "go together with live channels of 2.0",
        ),
        (nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(8, 4, 3)), "not constant where 2.1.weight reads it"),
        (nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(8, 4, 3)), "not constant where 2.1.weight reads it"),
        (nn.Sequential(Total(), nn.Linear(8, 4)), "not constant where 2.1.weight reads it"),
        (nn.Identity(), "output of the network"),
    ],
)
def test_what_cannot_go_stays_and_is_named(after, reason):
    network = prepared(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), after))
    keep = {"0": torch.arange(8) >= 3}
    x = example("", 2)
    result = compact(network, keep, x, repeats=0)
    (kept,) = result.report.kept
    assert (kept.layer, kept.channels) == ("0", (0, 1, 2))
    assert reason in kept.reason
    assert result.form == {"axes": {}, "attributes": {}}
    assert kept.reason in str(result.report)
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
    result = compact(network, keep, x, repeats=0)
    assert {kept.reason for kept in result.report.kept} == {"it emits a constant, and c.weight is used more than once"}
    result = compact(silenced(network, keep, x), keep, x, repeats=0)
    assert result.report.removed == {"a": 3, "b": 3}
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
    result = compact(network, keep, x, repeats=0)
    (kept,) = result.report.kept
    assert kept.reason == "embedding in Embedding 'words' uses words.weight"
    assert_same(result.network, zeroed(network, keep), x)


def test_residual_sums_keep_what_is_alive_in_any_layer():
    network = prepared(residual)
    x = example("residual")
    keep = {"0.0": torch.arange(8) >= 4, "2.0.body.2.0": torch.arange(8) >= 2}
    result = compact(silenced(network, keep, x), keep, x, repeats=0)
    assert result.report.removed == {"0.0": 2, "2.0.body.2.0": 2}
    (kept,) = result.report.kept
    assert kept.channels == (2, 3)
    assert kept.reason == "it can only go together with live channels of 2.0.body.2.0"


def test_attention_and_its_norms_are_left_alone_and_hidden_neurons_go():
    network = prepared(Vit)
    x = example("vit")
    g = torch.Generator().manual_seed(1)
    layers = ("patches", "hidden", "back", "attention.out_proj")
    keep = {n: torch.rand(network.get_parameter(f"{n}.weight").shape[0], generator=g) < 0.5 for n in layers}
    result = compact(network, keep, x, repeats=0)
    assert result.report.removed == {"hidden": int((~keep["hidden"]).sum())}
    reasons = {kept.layer: kept.reason for kept in result.report.kept}
    assert set(reasons) == {"patches", "back", "attention.out_proj"}
    assert "multi_head_attention_forward" in reasons["attention.out_proj"]
    assert_same(result.network, zeroed(network, keep), x)


def test_whole_groups_go_under_group_norm_and_grouped_convolutions():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 2, 3)
    )
    network = prepared(lambda: network)
    x = example("")
    keep = {"0": torch.tensor([1, 1, 0, 0, 0, 1, 1, 1]).bool(), "3": torch.arange(12) // 3 != 1}
    result = compact(network, keep, x, repeats=0)
    assert result.report.removed == {"0": 2, "3": 3}
    norm, conv = result.network.get_submodule("1"), result.network.get_submodule("3")
    assert (norm.num_groups, conv.groups, conv.in_channels) == (3, 3, 6)
    assert [(k.layer, k.channels) for k in result.report.kept] == [("0", (4,))]
    assert_same(result.network, zeroed(network, keep), x)


def test_a_size_written_into_forward_only_costs_the_layer_it_concerns():
    network = prepared(Written)
    x = example("written")
    keep = drawn(network, x, 0, tied=False)
    result = compact(network, keep, x, repeats=0)
    assert result.report.removed == {"conv1": 3, "fc1": 5}
    (kept,) = result.report.kept
    assert kept.layer == "conv2"
    assert "the smaller network failed" in kept.reason


def test_a_layer_never_loses_its_last_channel():
    network = prepared(nested)
    x = example("nested")
    keep = {"1": torch.zeros(20).bool(), "3.0.0": torch.zeros(16).bool()}
    result = compact(silenced(network, keep, x), keep, x, repeats=0)
    assert result.report.removed == {"1": 19, "3.0.0": 15}
    assert all("at least one channel" in kept.reason for kept in result.report.kept)


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
    result = compact(network, keep, x, repeats=0)
    (kept,) = result.report.kept
    assert (kept.layer, kept.channels) == ("one", (6, 7))
    assert "no way through" in kept.reason
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
    result = compact(network, keep, x, repeats=0)
    assert_same(result.network, zeroed(network, keep), x)
    assert result.report.removed.get("three") == 3
    assert "one" in {kept.layer for kept in result.report.kept}


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"conv": torch.ones(8).bool()}, "'conv', which is not a layer.*Did you mean 'conv.'"),
        ({"conv1": torch.ones(7).bool()}, r"keep\['conv1'\] has shape \(7,\), but the layer has 6 output channels"),
    ],
)
def test_wrong_keep_vectors_are_refused(keep, message):
    with pytest.raises(InputError, match=message):
        compact(Written(), keep, example("written"))


def test_an_example_the_network_cannot_read_is_refused():
    with pytest.raises(InputError, match="example_input: the network does not run on it"):
        compact(Written(), {"conv1": torch.ones(6).bool()}, torch.zeros(2, 2))


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
    result = compact(network, keep, inputs, repeats=0)
    assert result.report.removed == {"a": 3, "b": 3}
    with torch.no_grad():
        torch.testing.assert_close(result.network(*inputs)["out"], zeroed(network, keep)(*inputs)["out"])


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


@pytest.mark.parametrize("build", [lambda: lenet("L"), lambda: resnet_cifar(20)], ids=["lenet_l", "resnet20"])
def test_half_the_neurons_take_a_quarter_of_the_file(build):
    network, x = build().eval(), torch.randn(2, 3, 32, 32)
    keep = drawn(network, x, 0, tied=True)
    network = silenced(network, keep, x)
    result = compact(network, keep, x, repeats=0)
    assert result.report.kept == ()
    form = json.dumps(result.form).encode()
    assert len(save(result.network.state_dict())) + len(form) < 0.35 * len(save(network.state_dict()))
    assert result.report.flops[1] < result.report.flops[0] / 3


def test_torch_pruning_finds_the_same_network_where_it_applies():
    tp = pytest.importorskip("torch_pruning")
    network, x = prepared(lambda: resnet_cifar(8)), torch.randn(2, 3, 16, 16)
    keep = drawn(network, x, 0, tied=True)
    network = silenced(network, keep, x)
    ours = compact(network, keep, x, repeats=0).network
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
    result = compact(network, keep, x, repeats=0)
    fresh = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(seed + 1))
    assert_same(result.network, zeroed(network, keep), fresh)
    removed_channels(result, keep)
    assert not any("the smaller network failed" in kept.reason for kept in result.report.kept)
