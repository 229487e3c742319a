import math
from typing import Any

import pytest
import torch
from tests.networks import NETWORKS
from torch import nn

from choral import models
from choral.base.errors import ConversionError, InputError
from choral.layers.joint.network import channels_last
from choral.layers.packed.narrow import redrawn
from choral.layers.packed.networks import pack


def parameters(network):
    return sum(p.numel() for p in network.parameters())


def rows(network):
    return {w.name: w for w in network.widths}


def test_resnet50_has_the_papers_parameters():
    with torch.device("meta"):
        plain = models.resnet50()
    assert abs(parameters(pack(plain, members=4, width=3)) / 59.1e6 - 1) < 0.01


def test_flops_of_inner_layers_are_alpha_squared_over_members():
    plain = models.mlp(8, 4, hidden=(64, 64))
    joint = pack(plain, members=4, width=2)
    inner = joint.get_parameter("network.linear2.weight")
    assert inner.numel() == 64 * 64 * 2**2 // 4
    assert joint.get_parameter("network.linear1.weight").shape == (4, 32, 8)
    assert joint.get_parameter("network.output.weight").shape == (4, 4, 32)


def test_report_tells_rounding_and_every_gamma():
    plain = nn.Sequential(nn.Linear(5, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 1))
    joint = pack(plain, members=3, width=2)
    assert rows(joint)["0"].member == (5, 134)
    assert "133.33 rounded up to 134" in rows(joint)["0"].remark
    assert joint.report().splitlines()[1].split() == [
        "0",
        "Linear",
        "5",
        "->",
        "200",
        "5",
        "->",
        "134",
        "1",
        "133.33",
    ] + [
        "rounded",
        "up",
        "to",
        "134",
    ]


def test_gamma_splits_inner_layers_and_is_lowered_visibly_below_the_floor():
    plain = nn.Sequential(
        nn.Linear(5, 512), nn.Linear(512, 512), nn.Linear(512, 128), nn.Linear(128, 512), nn.Linear(512, 3)
    )
    joint = pack(plain, members=4, width=2, subgroups=4)
    found = {name: w.subgroups for name, w in rows(joint).items()}
    assert found == {"0": 1, "1": 4, "2": 4, "3": 1, "4": 1}
    assert "subgroups lowered from 4 to 1: 64 channels in 4 groups" in rows(joint)["3"].remark
    assert joint.get_parameter("network.1.weight").shape == (4, 256, 64)
    x = torch.randn(2, 5)
    torch.testing.assert_close(joint(x)[2], joint.member(2)(x))


def test_gamma_leaves_the_first_layer_of_blocks_alone():
    joint = pack(models.resnet18(classes=10, stem="cifar"), members=2, width=2, subgroups=2, minimum_channels=16)
    found = {name: w.subgroups for name, w in rows(joint).items()}
    assert found["conv1"] == found["fc"] == 1
    assert all(found[name] == 1 for name in found if name.endswith("conv1"))
    assert all(found[name] == 2 for name in found if name.endswith("conv2"))


def wide_resnet_size(width, members, gamma, classes, whole_block_starts):
    """Parameters of a packed WRN-28-10, layer by layer: every member has the channels, gamma splits each of its layers."""

    def channels(plain):
        return plain * width // members

    def convolution(inputs, outputs, places, lead=False):
        g = gamma
        while g > 1 and (inputs % g or inputs // g < 64):
            g -= 1
        return outputs * places * inputs // (1 if lead and whole_block_starts else g)

    each, inputs = 3 * 9 * channels(16), channels(16)
    for plain in (160, 320, 640):
        for block in range(4):
            outputs = channels(plain)
            each += convolution(inputs, outputs, 9, lead=True) + convolution(outputs, outputs, 9)
            each += 2 * (inputs + outputs)  # the two norms of a block
            each += convolution(inputs, outputs, 1) if block == 0 else 0
            inputs = outputs
    return members * (each + 2 * inputs + inputs * classes + classes)


@pytest.mark.parametrize(
    ("gamma", "whole", "parameters"), [(1, True, 36_504_008), (2, True, 27_185_608), (2, False, 19_352_008)]
)
def test_packed_wide_resnets_have_the_sizes_of_paper_and_code(gamma, whole, parameters):
    with torch.device("meta"):
        plain = models.wide_resnet(28, 10)
    joint = pack(plain, members=4, width=2, subgroups=gamma, whole_block_starts=whole)
    assert sum(p.numel() for p in joint.parameters()) == parameters == wide_resnet_size(2, 4, gamma, 10, whole)
    gammas = {w.name: w.subgroups for w in joint.widths if w.kind == "Conv2d"}
    assert gammas["layer2.1.conv1"] == (1 if whole else gamma)
    assert gammas["layer2.1.conv2"] == gamma
    assert gammas["layer1.1.conv1"] == gammas["conv1"] == 1  # 80 channels are too few, and the first layer


def test_gamma_without_any_effect_is_refused():
    with pytest.raises(ConversionError, match=r"subgroups=2 has no effect.*minimum_channels=64"):
        pack(models.mlp(4, 2, hidden=(32, 32)), members=2, subgroups=2)


def test_weights_keep_their_kind_and_their_spread_follows_the_fan_in():
    plain = nn.Sequential(nn.Linear(40, 400), nn.LayerNorm(400), nn.Linear(400, 300, bias=False), nn.Linear(300, 5))
    nn.init.normal_(plain[2].weight, std=400**-0.5)
    nn.init.zeros_(plain[0].bias)
    nn.init.constant_(plain[1].weight, 0.2)
    joint = pack(plain, members=4, width=2)
    weight = joint.get_parameter("network.2.weight")
    assert math.isclose(weight.std().item(), 200**-0.5, rel_tol=0.02)
    assert joint.get_parameter("network.0.weight").std().item() == pytest.approx(plain[0].weight.std().item(), rel=0.03)
    assert not joint.get_parameter("network.0.bias").any()
    assert (joint.get_parameter("network.1.weight") == 0.2).all()
    assert not torch.equal(weight[0], weight[1])


def test_redrawn_keeps_the_first_member_where_the_shape_allows():
    plain = torch.randn(3, 4)
    drawn = redrawn(plain, (3, 4), members=3, spread=1.0, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn[0], plain)
    assert set(drawn.flatten().tolist()) <= set(plain.flatten().tolist())
    assert not torch.equal(drawn[1], drawn[2])


def test_first_and_last_layers_can_be_named():
    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.spread = nn.Linear(8, 1), nn.Linear(8, 1)
            self.a, self.b = nn.Linear(3, 8), nn.Linear(3, 8)

        def forward(self, x):
            h = torch.relu(self.a(x) + self.b(x))
            return torch.cat([self.mean(h), self.spread(h)], -1)

    joint = pack(Twins(), members=2, width=1, first=("a", "b"), last=("mean", "spread"))
    assert joint(torch.ones(5, 3)).shape == (2, 5, 2)
    assert rows(joint)["b"].member == (3, 4)
    with pytest.raises(InputError, match=r"last: nothing matches 'meen'.*Did you mean 'mean'"):
        pack(Twins(), members=2, last=("meen",))


def test_norms_on_the_inputs_keep_their_width():
    joint = pack(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Linear(8, 2)), members=2)
    assert joint.get_parameter("network.0.weight").shape == (2, 6)
    assert joint(torch.randn(4, 6)).shape == (2, 4, 2)


def test_parameters_outside_layers_follow_the_widths():
    class Tokens(nn.Module):
        def __init__(self, tokens):
            super().__init__()
            self.positions = nn.Parameter(torch.randn(tokens, 8))
            self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.head((self.embed(x) + self.positions).mean(1))

    x = torch.randn(4, 5, 3)
    assert pack(Tokens(5), members=4)(x).shape == (4, 4, 2)
    joint = pack(Tokens(8), members=4)  # of two axes that may be widths, the last
    assert joint.get_parameter("network.positions").shape == (4, 8, 4)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 8)
            self.body = nn.Linear(8, 8)
            self.head = nn.Linear(8, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(torch.relu(self.body(self.embedding(x))))

    joint: Any = pack(Tied(), members=2)
    assert joint.network.head.weight is joint.network.embedding.weight
    tokens = torch.tensor([[1, 2], [3, 4]])
    member = joint.member(1)
    assert member.head.weight is member.embedding.weight
    for kernel in ("loop", "grouped", "matmul"):
        joint.kernel = kernel
        torch.testing.assert_close(joint(tokens)[1], member(tokens))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_narrowed(kind):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(3, 8)
            self.recurrent = kind(8, 12, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(24, 2)

        def forward(self, x):
            return self.head(self.recurrent(self.embed(x))[0][:, -1])

    joint = pack(Recurrent(), members=2, width=1)
    x = torch.randn(4, 5, 3)
    assert joint.kernel == "loop"
    assert rows(joint)["recurrent"].member == (4, 6)
    for i in range(2):
        torch.testing.assert_close(joint(x)[i], joint.member(i)(x))
    with pytest.raises(ConversionError, match=r"kernel='grouped' cannot run.*vmap has no rule for (LSTM|GRU|RNN)"):
        pack(Recurrent(), members=2, kernel="grouped")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_transformer_layers_run_their_swapped_children(training, norm_first):
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first),
        2,
        enable_nested_tensor=False,
    )
    joint = pack(nn.Sequential(nn.Linear(3, 16), encoder, nn.Linear(16, 2)), members=2, width=1).train(training)
    x = torch.randn(3, 5, 3)
    with torch.no_grad():
        for i in range(2):
            torch.testing.assert_close(joint(x)[i], joint.member(i)(x))
    assert "4 heads, 2 in a member" in rows(joint)["1.layers.0.self_attn"].remark


def test_what_cannot_be_packed_is_refused_by_name():
    with pytest.raises(ConversionError, match=r"parametrized weights.*remove_parametrizations"):
        pack(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 4)), nn.Linear(4, 2)), members=2)
    with pytest.raises(ConversionError, match=r"MultiheadAttention.*put"):
        pack(nn.MultiheadAttention(4, 2), members=2)
    with pytest.raises(ConversionError, match="has no linear map"):
        pack(nn.ReLU(), members=2)


def test_channels_last_is_kept_within_members():
    joint = channels_last(pack(models.lenet("S"), members=2))
    weight = joint.get_parameter("network.conv2.weight")
    assert weight.shape == (2, 32, 16, 5, 5)
    assert weight[1].is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(joint(x)[1], joint.member(1)(x))


@pytest.mark.parametrize("threads", [1, 2])
def test_auto_follows_the_kinds_of_layers_whatever_the_threads(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert pack(models.mlp(4, 2), members=2).kernel == "matmul"
    assert pack(models.lenet("S"), members=2).kernel == "grouped"
    assert pack(models.resnet_cifar(20), members=2).kernel == "grouped"
    assert pack(NETWORKS["concatenating"][0](), members=2).kernel == "loop"
    assert pack(models.vit(16, patch=4), members=2).kernel == "loop"
    with pytest.raises(ConversionError, match=r"MultiheadAttention .*cannot read members folded"):
        pack(models.vit(16, patch=4), members=2, kernel="matmul")


def test_cumulative_statistics_agree_between_kernels():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 2)
            self.norm = nn.BatchNorm2d(8, momentum=None)

        def forward(self, x):
            return self.head(self.norm(self.conv(x)).mean((2, 3)))

    batches = torch.randn(3, 4, 1, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    found = {}
    for kernel in ("loop", "grouped"):
        torch.manual_seed(0)
        joint = pack(Averaging().double(), members=2, kernel=kernel)
        for x in batches:
            joint(x)
        found[kernel] = dict(joint.named_buffers())
        features = torch.cat([joint.member(1).conv(x) for x in batches])
        torch.testing.assert_close(found[kernel]["network.norm.running_mean"][1], features.mean((0, 2, 3)))
    torch.testing.assert_close(found["loop"], found["grouped"])
