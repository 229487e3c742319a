"""Statistics for each pass are those of the very network that the pass draws."""

import copy

import pytest
import torch
from torch import nn

from choral.base import draws
from choral.base.errors import InputError
from choral.fit import fit
from choral.layers.bayesian.patched import DrawnNorm, DrawnStatistics, PatchedLayer
from choral.layers.keyed import keyed
from choral.plan import RecalibrateDraws
from choral.recipes import make
from choral.recipes.training import Training
from choral.structures import Patched

G = torch.Generator().manual_seed(0)
DATA = torch.randn(40, 5, generator=G), torch.randint(3, (40,), generator=G)
IMAGES = torch.randn(40, 3, 9, 9, generator=G), torch.randint(3, (40,), generator=G)
QUICK = Training(optimizer="sgd", lr=0.05, batch_size=8)


def perceptron():
    return nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    )


def convnet():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3),
        nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def drawn_network(network, number):
    """The plain network of one pass, made of the tensors its layers drew."""
    plain = copy.deepcopy(network)
    for name, module in network.named_modules():
        if isinstance(module, PatchedLayer):
            with keyed(99, number), draws.repeated(module._key):
                tensors = module._draw()
            layer = module.plain()
            with torch.no_grad():
                for n, t in tensors.items():
                    getattr(layer, n).copy_(t)
        elif isinstance(module, DrawnNorm):
            layer = module.plain()
        else:
            continue
        plain._modules[name] = layer
    return plain


def calibrated(plain, x):
    """Statistics of one whole batch, layer by layer."""
    for m in plain.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.reset_running_stats()
            m.momentum = None
    plain.train()(x)
    return plain.eval()


@pytest.mark.parametrize("name", ["emp", "ecmp"])
@pytest.mark.parametrize(("build", "data"), [(perceptron, DATA), (convnet, IMAGES)])
@pytest.mark.parametrize("layers", [(), ("0",)])
def test_every_pass_is_the_drawn_network_with_statistics_of_its_own(name, build, data, layers):
    ensemble = fit(build, data, make(name, budget=2, components=3, draws=7, layers=layers, training=QUICK))
    network, x = ensemble._network(), data[0]
    outputs = ensemble.outputs(x)
    with torch.no_grad():
        for number in range(7):
            plain = calibrated(drawn_network(network, number), x)
            torch.testing.assert_close(outputs[number], plain(x), atol=1e-5, rtol=1e-4)
            norms = [m for m in plain.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
            kept = [m for m in network.modules() if isinstance(m, DrawnStatistics)]
            for a, b in zip(norms, kept, strict=True):
                torch.testing.assert_close(b.mean[number], a.running_mean, atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(b.var[number], a.running_var, atol=1e-5, rtol=1e-4)
    spread = kept[-1].var.std(0) / kept[-1].var.mean(0)
    assert float(spread.max()) > 0.02  # behind what is drawn, the passes do differ
    if not layers:
        assert float(kept[0].var.std(0).max()) < 1e-6  # nothing is drawn before the first norm


def test_shared_statistics_are_the_running_ones_for_every_pass():
    recipe = make("emp", budget=2, components=3, draws=4, statistics="shared", training=QUICK)
    assert "RecalibrateDraws" not in str(recipe)
    network = fit(perceptron, DATA, recipe)._network()
    assert not any(isinstance(m, DrawnStatistics) for m in network.modules())


def test_one_component_is_the_plain_network():
    outputs = fit(perceptron, DATA, make("emp", budget=2, components=1, draws=2, training=QUICK)).outputs(DATA[0])
    plain = fit(perceptron, DATA, make("single", budget=2, training=QUICK)).outputs(DATA[0])
    torch.testing.assert_close(outputs, plain.expand_as(outputs), atol=1e-5, rtol=1e-4)


def test_before_they_are_known_and_outside_of_numbered_passes_running_statistics_are_used():
    torch.manual_seed(0)
    structure = Patched(draws=3, statistics="draw")
    network = structure.convert(perceptron(), torch.Generator().manual_seed(0)).eval()
    for m in network.modules():
        if isinstance(m, PatchedLayer) and m.drawn is not None:
            m.running_mean.fill_(0.5)
    x = DATA[0]
    with keyed(0, 1), torch.no_grad():
        before = network(x)
    plain = drawn_network(network, 1).eval()
    torch.testing.assert_close(before, plain(x).detach())


def test_some_points_drawn_at_random_are_enough_and_none_are_refused():
    recipe = make("emp", budget=1, components=3, draws=4, training=QUICK)
    few = recipe.plan.phases[:-2] + (RecalibrateDraws(points=10), recipe.plan.phases[-1])
    some = fit(perceptron, DATA, type(recipe)(**{**vars(recipe), "plan": type(recipe.plan)(phases=few)}))
    whole = fit(perceptron, DATA, recipe)
    a, b = (next(m for m in e._network().modules() if isinstance(m, DrawnStatistics)) for e in (some, whole))
    assert not torch.allclose(a.mean, b.mean)
    assert (a.mean - b.mean).abs().max() < 1.5 * b.var.sqrt().max()
    with pytest.raises(InputError, match="points is 1"):
        RecalibrateDraws(points=1)
