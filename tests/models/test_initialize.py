from typing import Any

import pytest
import torch
from torch import nn

from choral.models import resnet20_frn, resnet_cifar, wide_resnet
from choral.models.spec import he


@pytest.mark.parametrize(("fan", "expected"), [("fan_in", 2 / (8 * 25)), ("fan_out", 2 / (64 * 25))])
def test_convolutions_have_hes_variance(fan, expected):
    torch.manual_seed(0)
    network: Any = nn.Sequential(nn.Conv2d(8, 64, 5), nn.Linear(40, 30))
    default = network[1].weight.detach().clone()
    he(network, fan=fan)
    weight = network[0].weight.detach()
    assert weight.mean().abs() < 4 * (expected / weight.numel()) ** 0.5
    assert weight.var().item() == pytest.approx(expected, rel=0.05)
    assert not network[0].bias.any()
    assert not network[1].bias.any()
    assert torch.equal(network[1].weight, default)
    he(network, fan="fan_in", linear=True)
    assert network[1].weight.var().item() == pytest.approx(2 / 40, rel=0.15)


@pytest.mark.parametrize(
    ("build", "fan"),
    [
        (lambda: resnet_cifar(8), "out"),
        (lambda: resnet20_frn(), "in"),
        (lambda: wide_resnet(10, 2), "out"),
    ],
)
def test_the_residual_families_start_from_he(build, fan):
    torch.manual_seed(0)
    checked = 0
    for module in build().modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 2000:
            units = module.in_channels if fan == "in" else module.out_channels
            variance = 2 / (units * module.kernel_size[0] ** 2)
            assert module.weight.var().item() == pytest.approx(variance, rel=6 * (2 / module.weight.numel()) ** 0.5)
            checked += 1
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            assert not module.bias.any()
    assert checked >= 5
