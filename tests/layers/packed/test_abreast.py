import copy

import pytest
import torch
import torch.nn.functional as F
from benchmarks.protocols.reference_networks import alexnet_cifar
from tests.networks import chain
from torch import nn

from choral import models
from choral.layers.packed.networks import PackedNetwork, course_of, pack


class Own(nn.Module):
    """A network with forward code of its own between two convolutions and a linear map."""

    def __init__(self, middle, inplace=False):
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.gate = nn.Conv2d(8, 1, 1)
        self.last = nn.Linear(8, 3)
        self.factor = 0.5
        self.middle = (middle.__name__,)  # comparable
        self.__class__ = type("Own", (Own,), {"between": middle})

    def forward(self, x):
        y = self.between(self.norm(self.first(x)))
        return self.last(F.adaptive_avg_pool2d(y, 1).flatten(1))


def residual(self, y):
    return F.relu(self.second(self.relu(y)) + y)


def residual_turned(self, y):
    return F.relu(y + self.second(self.relu(y)))


def added_in_place(self, y):
    z = self.second(y)
    z += y
    return self.relu(z)


def overwritten_and_read_again(self, y):
    z = self.second(y)
    w = z
    w += y
    return w * z


def gated(self, y):
    return y * torch.sigmoid(self.gate(y)) + 1.0


def pooled(self, y):
    return F.max_pool2d(torch.relu(self.second(y)), 2) + F.avg_pool2d(y.relu(), 2)


def scaled(self, y):
    return self.relu(y) * self.factor


def mode_dependent(self, y):
    return self.second(y) if self.training else y


KNOWN = [residual, residual_turned, added_in_place, overwritten_and_read_again, gated, pooled, scaled, mode_dependent]


def both_ways(joint: PackedNetwork, x):
    """Return outputs, gradients and buffers of the grouped kernel and of one member after the other."""
    found = []
    for kernel in ("grouped", "loop"):
        network = copy.deepcopy(joint)
        network.kernel = kernel
        out = network(x)
        gradients = torch.autograd.grad(out.square().sum(), list(network.parameters()), allow_unused=True)
        found.append((out, [g for g in gradients if g is not None], list(network.buffers())))
    return found


def assert_same(joint: PackedNetwork, x):
    assert joint.course() is not None
    for one, other in zip(*both_ways(joint, x)):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("build", [chain, alexnet_cifar, models.resnet20_frn, lambda: models.resnet_cifar(20)])
def test_our_networks_of_convolutions_have_a_course(build):
    assert course_of(pack(build(), members=2).network)


@pytest.mark.parametrize("middle", KNOWN)
@pytest.mark.parametrize("inplace", [False, True])
def test_outputs_gradients_and_statistics_are_those_of_one_member_after_the_other(middle, inplace):
    torch.manual_seed(0)
    joint = pack(Own(middle, inplace), members=3, kernel="grouped").double()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    assert_same(joint, x)
    assert_same(joint.eval(), x)


@pytest.mark.parametrize("depth", [8, 20])
def test_residual_networks_train_the_same_abreast(depth):
    torch.manual_seed(0)
    joint = pack(models.resnet_cifar(depth), members=4, kernel="grouped").double()
    assert_same(joint, torch.randn(3, 3, 16, 16, dtype=torch.float64))


def test_attributes_that_change_are_read_again():
    torch.manual_seed(0)
    joint = pack(Own(scaled), members=2, kernel="grouped").double()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    before = joint(x)
    joint.network.factor = 2.0
    assert not torch.allclose(before, joint(x))
    assert_same(joint, x)


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
def test_layers_that_may_mix_members_have_no_course(middle):
    network = nn.Sequential(nn.Conv2d(2, 8, 3), middle, nn.Conv2d(8, 4, 3))
    assert course_of(pack(network, members=2).network) is None


def flipped(self, y):
    return y.flip(1)


def summed_over_channels(self, y):
    return y + y.mean(1, keepdim=True)


def concatenated(self, y):
    return torch.cat([y, y], 1)[:, :8]


def value_dependent(self, y):
    return y if y.sum() > 0 else -y


def all_flattened(self, y):
    return torch.flatten(y).view(y.shape)


@pytest.mark.parametrize("middle", [flipped, summed_over_channels, concatenated, value_dependent, all_flattened])
def test_forward_code_that_may_mix_members_has_no_course(middle):
    assert course_of(pack(Own(middle), members=2).network) is None


def test_networks_without_a_first_convolution_or_with_hooks_have_no_course():
    assert course_of(pack(models.mlp(4, 2), members=2).network) is None
    network = pack(models.lenet("S"), members=2).network
    assert course_of(network)
    network.register_forward_hook(lambda *_: None)
    assert course_of(network) is None


@pytest.mark.parametrize("pool", [nn.Identity(), nn.MaxPool2d(2), nn.Sequential(nn.Tanh(), nn.ReLU(), nn.MaxPool2d(2))])
def test_rectifying_after_pooling_and_in_place_changes_no_gradient(pool):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), pool, nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    joint = pack(network, members=2, kernel="grouped").double()
    assert_same(joint, torch.randn(3, 2, 10, 10, dtype=torch.float64))


@pytest.mark.parametrize("spatial_output", [True, False])
def test_row_i_is_member_i(spatial_output):
    layers = [nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 3)]
    network = nn.Sequential(*layers, *([] if spatial_output else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]))
    joint = pack(network, members=4, kernel="grouped")
    x = torch.randn(3, 2, 9, 9)
    for i in range(4):
        torch.testing.assert_close(joint(x)[i], joint.member(i)(x))
