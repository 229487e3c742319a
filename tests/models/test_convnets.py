import pytest
import torch
import torch.nn.functional as F

from choral.models import alexnet_cifar, lenet


@pytest.mark.parametrize(("size", "parameters"), [("5", 62_006), ("S", 253_290), ("M", 1_007_306), ("L", 4_017_546)])
def test_lenet_has_the_published_size(size, parameters):
    with torch.device("meta"):
        network = lenet(size)
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 28), (2, 16), (1, 17)])
def test_lenet_equals_the_formula(channels, side):
    torch.manual_seed(0)
    network = lenet("5", classes=7, channels=channels, side=side)
    w = dict(network.named_parameters())
    assert list(w) == [f"{n}.{p}" for n in ("conv1", "conv2", "fc1", "fc2", "classifier") for p in ("weight", "bias")]
    x = torch.randn(2, channels, side, side)
    h = x
    for conv in ("conv1", "conv2"):
        h = F.max_pool2d(F.relu(F.conv2d(h, w[f"{conv}.weight"], w[f"{conv}.bias"])), 2)
    h = h.flatten(1)
    for fc in ("fc1", "fc2"):
        h = F.relu(F.linear(h, w[f"{fc}.weight"], w[f"{fc}.bias"]))
    torch.testing.assert_close(network(x), F.linear(h, w["classifier.weight"], w["classifier.bias"]))


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
