import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from choral.compaction import compact
from choral.layers.frn import FilterResponseNorm


def by_loops(x, gamma, beta, tau, eps):
    """The definition, one channel of one example at a time."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            channel = x[b, c]
            nu2 = sum(value.item() ** 2 for value in channel.flatten()) / channel.numel()
            for i, value in enumerate(channel.flatten()):
                y = gamma[c] * value / (nu2 + eps) ** 0.5 + beta[c]
                out[b, c].view(-1)[i] = y if y > tau[c] else tau[c]
    return out


def test_equals_its_definition():
    torch.manual_seed(0)
    layer = FilterResponseNorm(3, eps=0.1).double()
    for parameter in (layer.weight, layer.bias, layer.tau):
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 4, 5, dtype=torch.double)
    torch.testing.assert_close(layer(x).detach(), by_loops(x, layer.weight, layer.bias, layer.tau, 0.1).detach())


def test_an_example_does_not_depend_on_its_batch_nor_on_its_scale():
    torch.manual_seed(0)
    layer = FilterResponseNorm(2, eps=1e-12).double()
    x = torch.randn(4, 2, 3, 3, dtype=torch.double)
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))
    torch.testing.assert_close(layer(100 * x), layer(x))


def test_gradients_and_the_reset():
    torch.manual_seed(0)
    layer = FilterResponseNorm(2).double()
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["weight", "bias", "tau"]
    x = torch.randn(2, 2, 3, 3, dtype=torch.double, requires_grad=True)
    values = [torch.randn(p.shape, dtype=torch.double, requires_grad=True) for p in layer.parameters()]
    assert torch.autograd.gradcheck(lambda x, *v: functional_call(layer, dict(zip(names, v)), (x,)), (x, *values))
    assert torch.autograd.gradgradcheck(lambda x, *v: functional_call(layer, dict(zip(names, v)), (x,)), (x, *values))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7.0)
    layer.reset_parameters()
    assert [p.unique().tolist() for p in layer.parameters()] == [[1.0], [0.0], [0.0]]


def test_stacked_layers_equal_single_ones():
    torch.manual_seed(0)
    layer = FilterResponseNorm(3)
    stacked = {name: torch.randn(4, *p.shape) for name, p in layer.named_parameters()}
    x = torch.randn(2, 3, 4, 4)
    joint = vmap(lambda p: functional_call(layer, p, (x,)))(stacked)
    for i in range(4):
        torch.testing.assert_close(joint[i], functional_call(layer, {n: p[i] for n, p in stacked.items()}, (x,)))

    def loss(p):
        return functional_call(layer, p, (x,)).square().sum()

    mapped = vmap(grad(loss))(stacked)
    for i in range(4):
        for name, found in grad(loss)({n: p[i] for n, p in stacked.items()}).items():
            torch.testing.assert_close(mapped[name][i], found)


def test_compaction_removes_masked_channels_in_front_of_it():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), FilterResponseNorm(4), nn.Conv2d(4, 2, 3)).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    keep = torch.tensor([True, False, True, False])
    x = torch.randn(2, 3, 8, 8)
    result = compact(network, {"0": keep}, x)
    assert result.kept == {}
    assert [p.shape[0] for p in result.network.parameters()] == [2] * 7
    for parameter in network[0].parameters():
        parameter.data[~keep] = 0
    torch.testing.assert_close(result.network(x), network(x))
