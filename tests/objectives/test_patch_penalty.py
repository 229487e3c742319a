import torch
from torch import nn

from choral.layers.bayesian.patched import Mixture, PatchedLayer
from choral.objectives.penalties import L2


def params_of(network):
    return {n: p.detach().double() for n, p in network.named_parameters()}


def test_equation_six_written_out():
    torch.manual_seed(0)
    network = nn.ModuleDict(
        {"shared": nn.Linear(3, 4), "patched": PatchedLayer(nn.Linear(4, 2), Mixture(components=5))}
    )
    p = params_of(network)
    wanted = 0.0
    for k in range(5):
        wanted += 2.0 * (1 / 5) / 2 * p["patched.patches.weight"][k].pow(2).sum()
        wanted += 3.0 * (1 / 5) / 2 * p["patched.patches.bias"][k].pow(2).sum()
    wanted += 2.0 / 2 * p["shared.weight"].pow(2).sum() + 3.0 / 2 * p["shared.bias"].pow(2).sum()
    got = L2(precision=2.0, bias_precision=3.0)(p, {}, 0.0)
    torch.testing.assert_close(got, wanted)


def test_learned_probabilities_weigh_components_and_get_a_gradient():
    layer = PatchedLayer(nn.Linear(4, 2, bias=False).double(), Mixture(components=2, learned=True))
    p = dict(layer.named_parameters())
    with torch.no_grad():
        p["mixing"].copy_(torch.tensor([0.25, 0.75]).log())
        p["patches.weight"][1] *= 2
    squares = p["patches.weight"].square().flatten(1).sum(1)
    got = L2()(p, {}, 0.0)
    torch.testing.assert_close(got, 0.5 * (0.25 * squares[0] + 0.75 * squares[1]))
    got.backward()
    assert p["mixing"].grad is not None
    assert p["mixing"].grad.abs().max() > 0


def test_patterns_choose_parameters():
    p = {"a.patches.weight": torch.ones(2, 3), "b.weight": torch.ones(4)}
    assert L2(include=("b.*",))(p, {}, 0.0).item() == 2.0
    assert L2(exclude=("b.*",))(p, {}, 0.0).item() == 1.5
