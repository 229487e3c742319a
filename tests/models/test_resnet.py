from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from choral.base.errors import InputError
from choral.fit import fit, load
from choral.layers.frn import FilterResponseNorm
from choral.models import rebuild, resnet18, resnet20_frn, resnet50, resnet_cifar, resnext50, spec_of
from choral.recipes import Training, make


def parameters(build, **arguments):
    with torch.device("meta"):
        return sum(p.numel() for p in build(**arguments).parameters())


@pytest.mark.parametrize(
    ("build", "arguments", "expected"),
    [
        (resnet_cifar, {"depth": 20}, 272_474),
        (resnet_cifar, {"depth": 32}, 466_906),
        (resnet_cifar, {"depth": 44}, 661_338),
        (resnet_cifar, {"depth": 56}, 855_770),
        (resnet_cifar, {"depth": 110}, 1_730_714),
        (resnet20_frn, {}, 274_042),
        (resnet18, {}, 11_689_512),
        (resnet50, {}, 25_557_032),
        (resnext50, {}, 25_028_904),
        (resnet18, {"classes": 10, "stem": "cifar"}, 11_173_962),
    ],
)
def test_the_network_has_the_published_size(build, arguments, expected):
    assert parameters(build, **arguments) == expected


def test_patching_resnet18_costs_what_the_emp_paper_says():
    with torch.device("meta"):
        network: Any = resnet18()
    norms = sum(p.numel() for m in network.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters())
    output = sum(p.numel() for p in network.fc.parameters())
    assert 11_689_512 + 4 * (norms + output) == 13_779_912
    assert 11_689_512 + 4 * norms == 11_727_912


def conv_norm(state, x, conv, norm, stride=1, groups=1):
    weight = state[f"{conv}.weight"]
    x = F.conv2d(x, weight, state.get(f"{conv}.bias"), stride, weight.shape[-1] // 2, groups=groups)
    if f"{norm}.tau" in state:
        x = x / (x.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
        y = x * state[f"{norm}.weight"][:, None, None] + state[f"{norm}.bias"][:, None, None]
        return y.maximum(state[f"{norm}.tau"][:, None, None])
    stats = (state[f"{norm}.running_mean"], state[f"{norm}.running_var"])
    return F.batch_norm(x, *stats, state[f"{norm}.weight"], state[f"{norm}.bias"])


def reference(state, x, *, lengths, convs, act=F.relu, large=False, groups=1):
    """A residual network straight from its state dict."""
    x = act(conv_norm(state, x, "conv1", "bn1", stride=2 if large else 1))
    if large:
        x = F.max_pool2d(x, 3, 2, 1)
    for s, length in enumerate(lengths, start=1):
        for b in range(length):
            at = f"layer{s}.{b}"
            stride = 2 if s > 1 and b == 0 else 1
            y = x
            for c in range(1, convs + 1):
                middle = convs == 3 and c == 2
                strided = stride if c == convs - 1 else 1  # the first of two, the second of three
                y = conv_norm(state, y, f"{at}.conv{c}", f"{at}.bn{c}", strided, groups if middle else 1)
                y = act(y) if c < convs else y
            if f"{at}.downsample.0.weight" in state:
                x = conv_norm(state, x, f"{at}.downsample.0", f"{at}.downsample.1", stride)
            x = act(y + x)
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize(
    ("network", "side", "how"),
    [
        (lambda: resnet_cifar(14, width=4, channels=1), 8, {"lengths": [2] * 3, "convs": 2}),
        (lambda: resnet_cifar(8, width=4, activation="silu"), 8, {"lengths": [1] * 3, "convs": 2, "act": F.silu}),
        (
            lambda: resnet18(width=4, classes=3, stem="cifar", activation="gelu"),
            16,
            {"lengths": [2] * 4, "convs": 2, "act": F.gelu},
        ),
        (
            lambda: resnext50(groups=4, group_width=2, classes=3, stem="cifar", activation="silu"),
            8,
            {"lengths": [3, 4, 6, 3], "convs": 3, "groups": 4, "act": F.silu},
        ),
        (lambda: resnet20_frn(width=4), 9, {"lengths": [3] * 3, "convs": 2, "act": F.silu}),
        (lambda: resnet18(width=4, classes=3), 64, {"lengths": [2] * 4, "convs": 2, "large": True}),
        (lambda: resnet18(width=4, classes=3, stem="cifar"), 16, {"lengths": [2] * 4, "convs": 2}),
        (lambda: resnet50(width=4, classes=3), 33, {"lengths": [3, 4, 6, 3], "convs": 3, "large": True}),
        (
            lambda: resnext50(groups=4, group_width=2, classes=3, stem="cifar"),
            8,
            {"lengths": [3, 4, 6, 3], "convs": 3, "groups": 4},
        ),
    ],
)
def test_the_network_equals_a_plain_reading_of_its_weights(network, side, how):
    torch.manual_seed(0)
    net = network().double().eval()
    with torch.no_grad():
        for name, value in (*net.named_parameters(), *net.named_buffers()):
            if name.endswith(("bias", "tau", "running_mean")):
                value.normal_(std=0.1)
            elif name.endswith("running_var"):
                value.uniform_(0.5, 2)
    x = torch.randn(2, net.conv1.in_channels, side, side, dtype=torch.double)
    torch.testing.assert_close(net(x), reference(dict(net.state_dict()), x, **how))


def test_the_large_networks_have_torchvisions_names():
    with torch.device("meta"):
        eighteen, fifty = resnet18().state_dict(), resnet50().state_dict()
    assert len(eighteen) == 122
    assert len(fifty) == 320
    assert fifty["conv1.weight"].shape == (64, 3, 7, 7)
    assert fifty["layer2.0.downsample.0.weight"].shape == (512, 256, 1, 1)
    assert fifty["layer2.0.downsample.1.running_var"].shape == (512,)
    assert fifty["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)
    assert "layer1.0.downsample.0.weight" not in eighteen
    assert eighteen["layer4.1.bn2.num_batches_tracked"].shape == ()
    assert eighteen["fc.weight"].shape == (1000, 512)


def test_the_frn_network_does_not_look_at_the_batch_in_training_either():
    torch.manual_seed(0)
    network = resnet20_frn(width=4).double().train()
    assert not list(network.buffers())
    assert sum(isinstance(m, FilterResponseNorm) for m in network.modules()) == 21
    x = torch.randn(3, 3, 8, 8, dtype=torch.double)
    torch.testing.assert_close(network(x)[1:2], network(x[1:2]))


@pytest.mark.parametrize("depth", [8, 20, 32])
def test_depth_counts_the_layers_with_weights(depth):
    with torch.device("meta"):
        modules = dict(resnet_cifar(depth).named_modules())
    layers = [n for n, m in modules.items() if isinstance(m, nn.Conv2d | nn.Linear) and "downsample" not in n]
    assert len(layers) == depth


@pytest.mark.parametrize("depth", [18, 21, 2, 0, "20"])
def test_impossible_depths_are_refused(depth):
    with pytest.raises(InputError, match=r"depth( is|=)"):
        resnet_cifar(depth)


@pytest.mark.parametrize("build", [resnet_cifar, resnet18, resnet50, resnext50])
def test_the_activation_survives_a_rebuild_and_a_spec_without_one_means_relu(build):
    with torch.device("meta"):
        spec = spec_of(build(activation="silu"))
        assert any(isinstance(m, nn.SiLU) for m in rebuild(spec).modules())
        assert not any(isinstance(m, nn.ReLU) for m in rebuild(spec).modules())
        del spec["arguments"]["activation"]
        assert any(isinstance(m, nn.ReLU) for m in rebuild(spec).modules())
    with pytest.raises(InputError, match="activation is 'swish'"):
        build(activation="swish")


def test_a_saved_ensemble_of_silu_networks_predicts_the_same(tmp_path):
    x = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    training = Training(lr=0.05, batch_size=20)
    recipe = make("sebays_freeze", budget=4, members=2, gamma=0.6, draws=1, training=training)
    ensemble = fit(lambda: resnet_cifar(8, width=4, activation="silu"), (x, (x.mean((1, 2, 3)) > 0).long()), recipe)
    ensemble.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert any(isinstance(m, nn.SiLU) for m in again._network(0).modules())
    assert torch.equal(again.predict(x).probs, ensemble.predict(x).probs)
