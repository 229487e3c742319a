import pytest
import torch
import torch.nn.functional as F

from choral.models import lenet


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
