"""Networks for tables."""

import json

import pytest
import torch

import choral
from choral import models
from choral.base.errors import InputError
from choral.layers import quantile_edges
from choral.recipes import METHODS, make
from choral.structures import Mimo

G = torch.Generator().manual_seed(0)
X = torch.cat([torch.randn(60, 3, generator=G) * 50, torch.randint(0, 2, (60, 1), generator=G).float()], 1)
Y = (X[:, 0] > 10).long() + (X[:, 1] > 0).long()
EDGES = quantile_edges(X, bins=6)
KINDS = {
    "plain": {"embedding": "none"},
    "bins": {"edges": EDGES},
    "embedded": {"edges": EDGES, "embedding_width": 4},
    "some embedded": {"edges": EDGES, "embedding_width": 4, "embed_all": False, "dropout": 0.1},
    "waves": {"embedding": "periodic", "frequencies": 4},
    "periodic": {"embedding": "periodic", "frequencies": 4, "embedding_width": 4},
    "residual": {"edges": EDGES, "residual": True, "dropout": 0.1},
}


def network(kind):
    return models.tabular(4, 3, hidden=(12, 12), **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stand_alone_and_learn(kind):
    torch.manual_seed(0)
    net = network(kind).eval()
    with torch.no_grad():
        torch.testing.assert_close(net(X)[7], net(X[7:8])[0])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(net(X / 50 if kind in ("waves", "periodic", "plain") else X), Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_built_again_from_its_name_and_arguments(kind):
    net = network(kind)
    again = models.rebuild(json.loads(json.dumps(models.spec_of(net))))
    again.load_state_dict(net.state_dict())
    assert torch.equal(net.eval()(X), again.eval()(X))


RECIPES = [make(name, budget=120) for name in METHODS]
LAYOUTS = {repr(r.structure): r for r in RECIPES if not r.objective.slots and not isinstance(r.structure, Mimo)}


@pytest.mark.parametrize("kind", ["bins", "embedded", "some embedded", "periodic", "residual"])
@pytest.mark.parametrize("recipe", LAYOUTS.values(), ids=lambda r: r.name)
def test_every_structure_takes_it(recipe, kind):
    own = choral.converted(network(kind), recipe, data=(X, Y))
    loss = own.loss(X, Y, step=0)
    loss.backward()
    assert torch.isfinite(loss)
    if kind == "bins":
        assert own.ensemble().predict(X[:3]).probs.shape == (3, 3)


def test_columns_without_bins_stay_as_they_are():
    net = models.tabular(4, 3, hidden=(12,), **KINDS["some embedded"])
    torch.manual_seed(0)
    torch.nn.init.normal_(net.features.layer[1].maps.weight)
    whole = models.tabular(4, 3, hidden=(12,), edges=EDGES, embedding_width=4).features
    with torch.no_grad():
        whole[1].maps.weight[:12], whole[1].maps.bias[:12] = (
            net.features.layer[1].maps.weight,
            net.features.layer[1].maps.bias,
        )
        torch.testing.assert_close(net.features(X), torch.cat([whole(X)[:, :12], X[:, 3:]], 1))
    assert net.linear1.in_features == 13


def test_maps_of_columns_are_the_convolution_in_training_too():
    torch.manual_seed(0)
    net = network("embedded").features
    torch.nn.init.normal_(net[1].maps.weight)
    found = torch.autograd.grad(net(X).square().mean(), list(net.parameters()))
    seen = []
    with net[1].maps.register_forward_hook(lambda *_: seen.append(1)):
        expected = torch.autograd.grad(net(X).square().mean(), list(net.parameters()))
    assert seen
    torch.testing.assert_close(found, expected)


def test_wrong_arguments_are_said():
    for options, said in [
        ({"edges": EDGES[:2]}, "edges has 2 features and inputs is 4"),
        ({"embedding": "waves"}, "give 'none' or 'piecewise' or 'periodic'"),
    ]:
        with pytest.raises(InputError, match=said):
            models.tabular(4, 3, **options)
