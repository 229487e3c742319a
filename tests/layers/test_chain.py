import pytest
import torch
from tests.structures.networks import chain
from torch import nn

from choral import models
from choral.layers.chain import chain_of
from choral.layers.pack import pack


def test_chains_are_nests_of_sequential_layers_that_treat_channels_apart():
    assert chain_of(pack(chain(), members=2).network)
    assert chain_of(pack(models.lenet("S"), members=2).network)
    assert chain_of(pack(models.alexnet_cifar(), members=2).network)


@pytest.mark.parametrize(
    "middle",
    [
        nn.Softmax(1),
        nn.Dropout(0.1),
        nn.BatchNorm2d(8, momentum=None),
        nn.Sequential(nn.Conv2d(8, 8, 1), nn.Unflatten(1, (2, 4)), nn.Flatten(1, 2)),
        nn.PReLU(),
        nn.LocalResponseNorm(2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_other_layers_break_the_chain(middle):
    network = nn.Sequential(nn.Conv2d(2, 8, 3), middle, nn.Conv2d(8, 4, 3))
    assert chain_of(pack(network, members=2, axes={}).network) is None


def test_forward_code_of_their_own_breaks_the_chain():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x).flip(1)

    assert chain_of(pack(Own(nn.Conv2d(2, 8, 3), nn.Conv2d(8, 4, 3)), members=2).network) is None
    assert chain_of(pack(models.resnet_cifar(20), members=2).network) is None
    assert chain_of(pack(models.mlp(4, 2), members=2).network) is None


@pytest.mark.parametrize("pool", [nn.Identity(), nn.MaxPool2d(2), nn.Sequential(nn.Tanh(), nn.ReLU(), nn.MaxPool2d(2))])
def test_rectifying_after_pooling_and_in_place_changes_no_gradient(pool):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), pool, nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    joint = pack(network, members=2, kernel="grouped").double()
    x = torch.randn(3, 2, 10, 10, dtype=torch.float64)
    found = {}
    for kernel in ("grouped", "loop"):
        joint.kernel = kernel
        out = joint(x)
        found[kernel] = torch.autograd.grad(out.square().sum(), list(joint.parameters()))
    for a, b in zip(found["grouped"], found["loop"]):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("spatial_output", [True, False])
def test_a_chain_equals_its_members(spatial_output):
    layers = [nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 3)]
    network = nn.Sequential(*layers, *([] if spatial_output else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]))
    joint = pack(network, members=4, kernel="grouped")
    x = torch.randn(3, 2, 9, 9)
    for i in range(4):
        torch.testing.assert_close(joint(x)[i], joint.member(i)(x))
