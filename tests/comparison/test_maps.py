import pytest
import torch

import choral
from choral import models
from choral.comparison.evaluation import chains, pca, tsne
from choral.plan import Adam, Collect, Reset, fork, repeat, seq
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=32)
G = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=G)
Y = (X[:, 0] > 0).long()


def ensemble(plan):
    return choral.fit(lambda: models.mlp(3, 2, hidden=(4,)), (X, Y), Recipe(name="r", plan=plan))


def test_the_plane_keeps_distances_of_points_that_lie_in_one():
    flat = torch.randn(9, 2, generator=G, dtype=torch.float64)
    lifted = flat @ torch.linalg.qr(torch.randn(30, 2, generator=G, dtype=torch.float64))[0].T + 5
    found = pca({"a": lifted[:4], "b": lifted[4:]})
    assert [len(p) for p in found["points"].values()] == [4, 5]
    places = torch.tensor(found["points"]["a"] + found["points"]["b"], dtype=torch.float64)
    assert torch.allclose(torch.cdist(places, places), torch.cdist(flat, flat), atol=1e-4)
    assert sum(found["explained"]) == pytest.approx(1)


def test_one_member_or_equal_members_sit_at_the_origin():
    assert pca({"a": torch.ones(1, 5)}) == {"points": {"a": [[0.0, 0.0]]}, "explained": [0.0, 0.0]}
    assert pca({"a": torch.ones(3, 5)})["explained"] == [0.0, 0.0]


def test_tsne_needs_some_members_and_follows_the_seed():
    values = {"a": torch.randn(12, 6, generator=G)}
    assert tsne({"a": values["a"][:5]}) is None
    first, again = tsne(values), tsne(values)
    assert first == again
    assert first is not None
    assert len(first["points"]["a"]) == 12


def test_chains_follow_branches_and_break_at_new_starts():
    train = QUICK.phase(1)
    snapshots = ensemble(seq(Reset(), repeat(3, train, Collect())))
    assert chains(snapshots) == [[0, 1, 2]]
    two = ensemble(fork(2, Reset(), repeat(2, train, Collect())))
    assert chains(two) == [[0, 1], [2, 3]]
    fresh = ensemble(repeat(3, Reset(), train, Collect()))
    assert chains(fresh) == []
    parent = ensemble(seq(Reset(), train, Collect(), fork(2, train, Collect())))
    assert chains(parent) == []
