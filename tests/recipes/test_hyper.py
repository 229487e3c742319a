"""Hyper-ensembles and TabPack: what they draw, and that what is chosen is kept."""

import torch

import choral
from choral import models
from choral.plan import AdamW
from choral.recipes import hyper_ensemble, tabpack
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(120, 4, generator=G)
Y = (X[:, 0] * X[:, 1] > 0).long()
STOP = choral.EarlyStopping(patience=3)


def net():
    return models.tabular(4, 2, hidden=(16, 16, 16), embedding="none", dropout=0.1, skippable=True)


def test_the_plan_says_what_is_drawn_and_what_it_costs():
    shown = choral.show(tabpack(budget=640))
    assert shown.splitlines()[0] == "tabpack: 64 members x 10 epochs (64.0x one network)"
    for word in ("depth OneOf(options=(1, 2, 3))", "matrix_rate LogUniform", "Resize()", "Select()", "Muon()"):
        assert word in shown
    assert tabpack(budget=24).members == 6
    assert "matrix_rate" not in choral.show(tabpack(budget=24, training=Training(lr=0.01, optimizer=AdamW())))


def test_members_of_tabpack_have_different_depths_and_are_weighed():
    heard = []
    value = tabpack(budget=6 * 8, members=6, picks=8, training=Training(lr=1e-3, optimizer="adamw", batch_size=32))
    ensemble = choral.fit(
        net,
        (X, Y),
        value,
        validation=0.3,
        early_stopping=STOP,
        compute=choral.Compute(executor="vectorized"),
        callbacks=heard.append,
    )
    (weights,) = ensemble.posthoc
    assert 1 <= ensemble.members <= 6
    assert all(abs(w * 8 - round(w * 8)) < 1e-6 or 0 < w < 1 for w in weights.weights)
    assert ensemble.predict(X).probs.shape == (120, 2)
    assert sum(len(e["places"]) for e in heard if e["kind"] == "epoch") <= 48


def test_settings_are_drawn_again_by_another_seed():
    value = hyper_ensemble(budget=8, members=2, training=Training(optimizer="sgd", lr=0.05, batch_size=32))
    one, same, other = (
        choral.fit(net, (X, Y), value, seed=s, compute=choral.Compute(executor="sequential")) for s in (1, 1, 2)
    )
    assert torch.equal(one.outputs(X), same.outputs(X))
    assert not torch.allclose(one.outputs(X), other.outputs(X))
