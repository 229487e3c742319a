"""ensemble_of: networks trained anywhere."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import choral
from choral import ensemble_of, models
from choral.base.errors import ChoralError

X = torch.randn(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 4


def convolving(width=6, activation=nn.ReLU):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2),
        nn.BatchNorm2d(width),
        activation(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 4),
    )


def trained(network, seed=0):
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(X), Y).backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(1)
    return [trained(convolving(), i) for i in range(3)]


def by_hand(networks, x=X):
    with torch.no_grad():
        return torch.stack([n.eval()(x) for n in networks])


def test_members_are_the_networks_and_these_stay_as_they_are(networks):
    before = [p.clone() for n in networks for p in (*n.parameters(), *n.buffers())]
    for network in networks:
        network.train()
    ensemble = ensemble_of(networks, data=(X, Y))
    torch.testing.assert_close(ensemble.outputs(X), by_hand(networks), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ensemble.predict(X).probs, by_hand(networks).softmax(-1).mean(0), rtol=1e-5, atol=1e-6)
    assert all(
        torch.equal(p, q) for p, q in zip(before, (p for n in networks for p in (*n.parameters(), *n.buffers())))
    )
    assert ensemble.members == 3


@pytest.mark.parametrize(
    "others",
    [
        lambda: [convolving(), convolving(9), convolving()],
        lambda: [convolving(), convolving(activation=nn.Tanh), convolving(activation=nn.Sigmoid)],  # equal shapes
        lambda: [models.lenet("S", classes=4), models.resnet_cifar(8, classes=4)],
    ],
)
def test_networks_may_differ_in_their_layers(others, tmp_path):
    torch.manual_seed(2)
    made = others()
    x = torch.randn(5, 3, 32, 32)
    ensemble = ensemble_of(made, data=(x, Y[:5]))
    torch.testing.assert_close(ensemble.outputs(x), by_hand(made, x), rtol=1e-4, atol=1e-5)
    for i, network in enumerate(made):
        torch.testing.assert_close(ensemble.member(i)(x), network(x), rtol=1e-4, atol=1e-5)
    ensemble.save(tmp_path / "e.choral")
    kinds = list({type(n).__name__ + str(n): n for n in made}.values())
    again = choral.load(tmp_path / "e.choral", build=kinds)
    assert torch.equal(again.outputs(x), ensemble.outputs(x))
    with pytest.raises(ChoralError, match=r"give as many|does not fit"):
        choral.load(tmp_path / "e.choral", build=kinds[0])


def test_settings_that_are_no_weights_stay_with_each_network():
    class Scaled(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale, self.body = scale, nn.Linear(2, 3)

        def forward(self, x):
            return self.scale * self.body(x)

    made, x = [Scaled(1.0), Scaled(5.0)], torch.randn(4, 2)
    assert torch.allclose(ensemble_of(made, data=(x, Y[:4] % 3)).outputs(x), by_hand(made, x), atol=1e-6)


def test_weights_alone_come_with_a_factory(networks, tmp_path):
    paths = []
    for i, network in enumerate(networks):
        paths.append(tmp_path / f"{i}.safetensors")
        save_file(network.state_dict(), paths[-1])
    wanted = ensemble_of(networks, data=(X, Y)).outputs(X)
    for given in ([n.state_dict() for n in networks], paths, [str(p) for p in paths]):
        assert torch.equal(ensemble_of(given, data=(X, Y), build=convolving).outputs(X), wanted)


def test_it_is_calibrated_saved_and_judged_like_any_other(networks, tmp_path):
    ensemble = ensemble_of(networks, data=(X, Y)).calibrated(X, Y, temperature="ensemble", level=0.9)
    ensemble.save(tmp_path / "e.choral")
    ours, theirs = ensemble.predict(X), choral.load(tmp_path / "e.choral", build=convolving).predict(X)
    assert torch.equal(theirs.probs, ours.probs)
    assert torch.equal(theirs.sets(), ours.sets())


def test_frozen_networks_and_a_module_list_are_fine(networks):
    frozen = nn.ModuleList([convolving().requires_grad_(False) for _ in range(2)])
    assert ensemble_of(frozen, data=(X, Y)).members == 2
    assert not any(p.requires_grad for p in frozen.parameters())


def test_one_network_and_real_targets():
    network = nn.Linear(2, 2)
    x, y = torch.randn(8, 2), torch.randn(8, 2) * 1000
    p = ensemble_of([network], data=(x, y)).predict(x)
    assert torch.allclose(p.mean, network(x).detach(), atol=1e-5)  # in the network's own units: nothing is scaled


@pytest.mark.parametrize(
    ("networks", "options", "said"),
    [
        (list, {}, "at least one network"),
        (lambda: convolving(), {}, "networks is Sequential; give a list"),
        (lambda: [convolving().state_dict()], {}, r"networks\[0\] contains only weights; give build="),
        (lambda: [convolving(), 3], {}, r"networks\[1\] is int"),
        (lambda: [convolving(), nn.Linear(7, 4)], {}, "cannot read x"),
        (lambda: [nn.Sequential(nn.Flatten(), nn.Linear(192, 2))], {}, "class label 3 but the network gives 2"),
    ],
)
def test_what_is_no_ensemble_is_refused_in_one_sentence(networks, options, said):
    with pytest.raises(ChoralError, match=said):
        ensemble_of(networks(), data=(X, Y), **options)


def test_weights_are_never_unpickled_and_must_fit(tmp_path):
    torch.save(convolving().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(Exception, match="header"):
        ensemble_of([tmp_path / "weights.pt"], data=(X, Y), build=convolving)
    with pytest.raises(RuntimeError, match="size mismatch"):
        ensemble_of([convolving(5).state_dict()], data=(X, Y), build=convolving)
