"""Strided 1x1 convolutions of few channels: the way around oneDNN's fault is the same map."""

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral import models
from choral.engine.blueprint import Blueprint
from choral.layers.functional import operate
from choral.layers.kernels import pointwise
from choral.structures import Independent

LAYERS = [
    nn.Conv2d(4, 6, 1, stride=2),
    nn.Conv2d(3, 5, 1, stride=(1, 3), bias=False),
    nn.Conv2d(4, 6, 1, stride=2, padding=(2, 1)),
    nn.Conv2d(4, 6, 1, stride=3, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 6, 1, stride=2, padding="valid"),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_other_way_is_the_same_map_with_the_same_gradients(layer: nn.Conv2d) -> None:
    x = torch.randn(3, layer.in_channels, 9, 8, dtype=torch.float64, requires_grad=True)
    layer = layer.double()
    assert pointwise.faulty(layer.kernel_size, layer.stride, layer.groups, layer.in_channels)
    wanted = layer(x)
    sides = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, (x, layer.weight), sides)
    tensors = {"weight": layer.weight, "bias": layer.bias}
    found = operate(layer, x, tensors, training=True)
    torch.testing.assert_close(found, wanted)
    for gradient, other in zip(torch.autograd.grad(found, (x, layer.weight), sides), expected):
        torch.testing.assert_close(gradient, other)


def test_networks_of_images_take_the_other_way_and_stay_plain() -> None:
    def build() -> nn.Module:
        return models.resnet_cifar(8, width=4)

    network = Blueprint(build, Independent(), device=torch.device("cpu"), images=True).network()
    strides: list[tuple[int, ...]] = []
    calls = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert calls
    assert all(type(m) is nn.Conv2d for m in calls)
    real = F.conv2d

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...] = (1, 1), *rest: Any) -> Tensor:
        if weight.shape[2:] == (1, 1):
            strides.append(stride)
        return real(x, weight, bias, stride, *rest)

    x = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    alone = build()
    alone.load_state_dict(network.state_dict())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "conv2d", watched)
        found = network.eval()(x)
    assert strides
    assert all(set(s) == {1} for s in strides)
    torch.testing.assert_close(found, alone.eval()(x))
    assert any("forward" in vars(m) for m in network.modules())
    assert not any("forward" in vars(m) for m in pointwise.unguard(copy.deepcopy(network)).modules())


def test_training_on_large_images_does_not_write_beyond_its_memory() -> None:
    script = """
import torch
from torch import nn
import choral
from choral.recipes import make
from choral.recipes.training import Training
torch.set_num_threads(1)
def build():
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 1, stride=2), nn.ReLU(), head)
x, y = torch.randn(144, 3, 64, 64), torch.randint(0, 2, (144,))
choral.fit(build, (x, y), make("single", epochs=2, training=Training(lr=0.1, optimizer="sgd", batch_size=12)))
print("trained")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("trained"), done.stderr[-500:]
