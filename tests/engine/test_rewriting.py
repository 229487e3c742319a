"""Rewritten graphs give what the network gives, from fewer operations, and keep their hands off what is not theirs."""

import inspect

import pytest
import torch
from torch import nn

from choral.engine.tracing import record

SEED = torch.Generator().manual_seed(0)


def draw(*shape):
    return torch.randn(*shape, generator=SEED)


def varied(network):
    """Return a network in evaluation mode whose statistics and scales are not those of the beginning."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.running_mean.copy_(3 * draw(module.num_features))
            module.running_var.copy_(draw(module.num_features).square() * 4 + 1e-4)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return network.eval()


def recorded(network, x):
    def run(x):
        with torch.no_grad():
            return torch.stack([network(x)])

    return record(run, [x])


def code_of(graph):
    return inspect.getsource(graph.__func__)


def check(network, x, rtol=1e-4):
    """Return the code of a record that gives what the network gives, for other values than it was recorded on."""
    graph = recorded(network, x)
    for other in (x, 2 * x.flip(0) - 0.5, x):
        with torch.no_grad():
            torch.testing.assert_close(graph(other), network(other)[None], rtol=rtol, atol=1e-4)
    return code_of(graph)


class Branching(nn.Module):
    """Uses what a convolution gives twice: before its norm and behind it."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        found = self.conv(x)
        return self.norm(found) + found


NORMED = {
    "plain": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
    "bias": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)),
    "groups": lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, dilation=2), nn.BatchNorm2d(6)),
    "a row": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)),
}


@pytest.mark.parametrize("build", NORMED.values(), ids=NORMED.keys())
def test_a_norm_behind_a_convolution_becomes_part_of_it(build):
    assert "batch_norm" not in check(varied(build()), draw(2, 3, 8, 8))


UNFOLDED = {
    "no scale": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)),
    "used twice": Branching,
    "before": lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)),
    "a layer between": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)),
}


@pytest.mark.parametrize("build", UNFOLDED.values(), ids=UNFOLDED.keys())
def test_other_norms_stay(build):
    assert "batch_norm" in check(varied(build()), draw(2, 3, 8, 8))


def test_a_norm_in_training_mode_is_left_to_write_its_statistics():
    network = varied(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).train()
    x = draw(2, 3, 8, 8)
    graph, before = recorded(network, x), network[1].running_mean.clone()
    graph(x)
    assert not torch.equal(network[1].running_mean, before)


def test_pooling_to_one_pixel_with_channels_last_is_rewritten_too():
    network = varied(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    x = draw(2, 3, 8, 8).to(memory_format=torch.channels_last)
    code = check(network.to(memory_format=torch.channels_last), x)
    assert "batch_norm" not in code
    assert "as_strided_" not in code


class Views(nn.Module):
    """Looks at the same numbers in several shapes, one of which is used before and behind an activation."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        seen = self.first(x).view(-1, 2, 4)
        kept = seen.relu().reshape(-1, 8)
        return self.second(kept.view(-1, 4, 2).reshape(-1, 8)) + seen.sum((1, 2), keepdim=True)[..., 0]


def test_views_of_views_vanish_and_what_is_used_twice_stays():
    code = check(Views().eval(), draw(3, 6))
    assert code.count("relu_(") == 0  # the value before it is used again
    plain = check(
        nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (2, 4)), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), draw(3, 6)
    )
    assert plain.count("reshape") == 0
    assert plain.count("relu_(") == 1


@pytest.mark.parametrize("network", [nn.Identity(), nn.Unflatten(1, (2, 3)), nn.Flatten(0).eval()])
def test_what_is_returned_is_never_the_input(network):
    x = draw(4, 6)
    before, found = x.clone(), recorded(network, x)(x)
    found.zero_()
    assert torch.equal(x, before)


class Constant(nn.Module):
    """Returns its parameter, whatever it reads."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(draw(1, 2))

    def forward(self, x):
        return self.level.expand(len(x), 2)


def test_what_is_returned_is_never_a_parameter():
    network, x = Constant(), draw(3, 6)
    before, graph = network.level.detach().clone(), recorded(network, x)
    graph(x).zero_()
    assert torch.equal(network.level, before)
    torch.testing.assert_close(graph(x), before.expand(1, 3, 2))


class Sums(nn.Module):
    """Adds rows, columns, numbers and other members' values to products."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(draw(5, 6, 4))
        self.row, self.column, self.flat = (nn.Parameter(draw(*s)) for s in ((5, 1, 6), (5, 3, 1), (4,)))

    def forward(self, x):
        apart = torch.bmm(x.expand(5, -1, -1), self.weight)
        one = torch.bmm(apart, self.weight.transpose(1, 2)) + self.row
        other = torch.bmm(x.expand(5, -1, -1).relu(), self.weight) + self.column
        return (one[..., :4] + other + self.flat + 1.5 + apart).transpose(0, 1)


@pytest.mark.parametrize("rows", [3, 40])
def test_only_rows_are_added_within_products(rows):
    network = Sums()
    network.column = nn.Parameter(draw(5, rows, 1))
    code = check(network, draw(rows, 6))
    assert code.count(".baddbmm(") == 1
    assert code.count(".bmm(") + code.count(".mm(") == 2


class Products(nn.Module):
    """Products with narrow, wide and summed-over-one results, of tensors that lie in any order."""

    def __init__(self, few):
        super().__init__()
        self.few = few

    def forward(self, x):
        a, b = x.view(-1, 20, 30), x.view(-1, 30, 20)
        narrow = torch.bmm(a, b[..., : self.few])  # (batch, 20, few)
        turned = torch.bmm(b[..., : self.few].transpose(1, 2), a.transpose(1, 2))  # (batch, few, 20)
        outer = torch.bmm(a[..., :1], b[:, :1, :5].double().float())
        return (narrow.sum(2) + turned.sum(1) + outer.sum(2)) * narrow[..., 0].relu()


@pytest.mark.parametrize("few", [1, 4, 16, 17])
def test_products_are_turned_so_that_results_are_wide(few):
    code = check(Products(few), draw(3, 600))
    assert code.count(".bmm(") == 2  # the outer product is none any more


def test_numbers_of_another_type_keep_it():
    class Mixed(nn.Module):
        def forward(self, x):
            return torch.mm(x, x.t()).view(-1).double() + torch.ones(1, dtype=torch.float64)

    assert recorded(Mixed(), draw(3, 6))(draw(3, 6)).dtype == torch.float64


FREED = {
    "flat": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 3)),
    "image": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "folded": lambda: nn.Sequential(nn.Flatten(0, 1), nn.Flatten(), nn.Linear(16, 2), nn.Unflatten(0, (-1, 3))),
}


@pytest.mark.parametrize("build", FREED.values(), ids=FREED.keys())
def test_a_graph_of_any_number_of_rows_gives_what_the_network_gives(build):
    network = varied(build())
    graph = record(network, [draw(7, 3, 4, 4)], rows=7)
    for rows in (1, 2, 7, 40):
        x = draw(rows, 3, 4, 4)
        torch.testing.assert_close(graph(x), network(x), rtol=1e-4, atol=1e-5)


def test_a_number_that_is_no_size_is_not_taken_for_the_rows():
    parts = record(lambda x: x.unbind(1)[7] + x.select(1, 7), [draw(7, 9)], rows=7)
    x = draw(3, 9)
    torch.testing.assert_close(parts(x), 2 * x[:, 7])
