"""Networks of many kinds for the tests of compaction, and what all of those tests do with them."""

import copy
import sys
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from choral.compaction import compact, neuron_param_mask, tied_groups
from choral.engine.inspect import executed
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
    return nn.Sequential(nn.Conv2d(3, 8, 3), FilterResponseNorm(8), nn.Conv2d(8, 4, 3), nn.Flatten())


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
    names = prunable(network, unit="neuron", calls=executed(network, x))
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


def compact_by_rules(network, keep, x):
    """Compact a network whose rules alone must be right: the first small network holds, none is tried layer by layer."""
    module = sys.modules["choral.compaction.compact"]
    with mock.patch.object(module, "_attempt", wraps=module._attempt) as attempt:
        result = compact(network, keep, x)
    assert attempt.call_count == 1
    return result


def removed_channels(result, keep):
    """How many of the wanted channels went; those that stayed must all be named, once."""
    wanted = {layer: set((~vector).nonzero().flatten().tolist()) for layer, vector in keep.items()}
    for layer, channels in result.kept.items():
        assert set(channels) <= wanted[layer]
        wanted[layer] -= set(channels)
    for layer, channels in wanted.items():
        assert result.removed.get(layer, 0) >= len(channels)
    return sum(map(len, wanted.values()))
