"""Members chosen while they train: shares are kept, resumed and applied."""

import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base.errors import DivergedError, InputError
from choral.calibration.members import greedy_selection
from choral.plan import SGD, Collect, Constant, LogUniform, Reset, Select, Space, Train, Uniform, fork
from choral.recipes.recipe import Recipe
from choral.testing.checks import resumes_exactly
from choral.testing.problems import Trial

G = torch.Generator().manual_seed(0)
X = torch.randn(90, 4, generator=G)
Y = (X[:, 0] + 0.7 * X[:, 1] * X[:, 2] + 0.5 * torch.randn(90, generator=G) > 0).long()
VARIANTS = [{"rate": r} for r in (1.0, 0.2, 0.001, 3.0, 12.0)]
HELD = (X[60:], Y[60:])


def net():
    return nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))


def recipe(epochs=6, **options):
    train = Train(epochs=epochs, schedule=Constant(0.1), optimizer=SGD(), batch_size=20, select=Select(**options))
    return Recipe(name="r", plan=fork(Reset(), train, Collect(), variants=VARIANTS))


def fitted(value=None, **options):
    return choral.fit(net, (X[:60], Y[:60]), value or recipe(), validation=HELD, **options)


def nll(probs):
    return -float(probs[torch.arange(30), HELD[1]].log().mean())


def test_shares_weigh_the_members_and_no_member_alone_is_better():
    ensemble = fitted()
    (weights,) = ensemble.posthoc
    assert len(weights.weights) == ensemble.members < 6
    assert abs(sum(weights.weights) - 1) < 1e-9
    assert all(abs(w * 32 - round(w * 32)) < 1e-9 or w > 0 for w in weights.weights)
    p = ensemble._predictive(HELD[0])
    mixed = torch.einsum("m,mbc->bc", torch.tensor(weights.weights), p.member_probs)
    torch.testing.assert_close(p.probs, mixed, atol=1e-6, rtol=1e-5)
    assert nll(p.probs) <= min(nll(one) for one in p.member_probs) + 1e-6
    every = choral.fit(net, (X[:60], Y[:60]), recipe(), compute=choral.Compute(executor="sequential"))
    assert every.members == 5  # nothing held out: all count alike
    assert every.posthoc == ()


def test_it_is_greedy_selection_when_there_is_one_epoch():
    """After one epoch there is nothing but the latest states to choose from."""
    ensemble = fitted(recipe(epochs=1))
    plain = Train(epochs=1, schedule=Constant(0.1), optimizer=SGD(), batch_size=20)
    every = choral.fit(net, (X[:60], Y[:60]), Recipe(name="r", plan=fork(Reset(), plain, Collect(), variants=VARIANTS)))
    probs = every._predictive(HELD[0]).member_probs
    scores = probs[:, torch.arange(30), HELD[1]].log()
    counts = greedy_selection(scores, picks=32)
    expected = [c / sum(counts) for c in counts if c]
    assert ensemble.posthoc[0].weights == pytest.approx(expected)


def test_later_choices_never_predict_the_held_out_points_worse():
    found = [nll(fitted(recipe(epochs=n)).predict(HELD[0]).probs) for n in (1, 3, 6)]
    assert found[0] >= found[1] - 1e-6 >= found[2] - 2e-6


def test_executors_agree_and_files_keep_the_choice(tmp_path):
    one, many = (fitted(compute=choral.Compute(executor=e), run_dir=tmp_path / e) for e in ("sequential", "vectorized"))
    assert one.posthoc == many.posthoc
    many.save(tmp_path / "saved.choral")
    probs = many.predict(HELD[0]).probs
    torch.testing.assert_close(one.predict(HELD[0]).probs, probs, atol=1e-4, rtol=1e-3)
    for path in ("saved.choral", "vectorized"):
        again = choral.load(tmp_path / path, net)
        assert again.members == many.members
        assert torch.equal(again.predict(HELD[0]).probs, probs)
    assert torch.equal(
        fitted(compute=choral.Compute(executor="vectorized"), run_dir=tmp_path / "vectorized").predict(HELD[0]).probs,
        probs,
    )


def test_stopped_and_resumed_it_chooses_the_same_to_the_byte():
    trial = Trial(
        net, lambda: (X[:60], Y[:60]), options={"validation": HELD, "early_stopping": choral.EarlyStopping(patience=2)}
    )
    resumes_exactly(recipe(epochs=4), trial)


def test_all_stop_when_no_choice_is_better():
    heard = []
    rates = [{"rate": 1e-6}, {"rate": 2e-6}]
    train = Train(epochs=30, schedule=Constant(1e-9), batch_size=20, select=Select(patience=3))
    value = Recipe(name="r", plan=fork(Reset(), train, Collect(), variants=rates))
    ensemble = fitted(value, callbacks=heard.append)
    assert {s["reason"] for s in ensemble.info["stopped"]} == {"selection"}
    assert sum(e["kind"] == "epoch" for e in heard) <= 8


def test_regression_and_joint_networks_are_chosen_among_too():
    y = X[:, 0] * 2 + 0.1 * torch.randn(90, generator=G)
    from choral.structures import BatchEnsemble

    for structure in (None, BatchEnsemble(members=2)):
        value = (
            recipe(epochs=3) if structure is None else Recipe(name="r", plan=recipe(epochs=3).plan, structure=structure)
        )
        build = lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))  # noqa: E731
        ensemble = choral.fit(build, (X[:60], y[:60]), value, validation=(X[60:], y[60:]))
        assert abs(sum(ensemble.posthoc[0].weights) - 1) < 1e-9
        assert torch.isfinite(ensemble.predict(X[60:]).mean).all()


def test_wrong_numbers_are_refused():
    with pytest.raises(InputError, match=r"picks is 0; give .*1 or more"):
        Select(picks=0)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_members_that_diverge_are_left_out_and_the_others_go_on(executor):
    y = X[:, 0] * 2 + 0.1 * torch.randn(90, generator=G)
    train = Train(epochs=4, schedule=Constant(0.05), optimizer=SGD(), batch_size=20, select=Select())
    rates = [{"rate": r} for r in (1.0, 1e6, 0.3)]
    value = Recipe(name="r", plan=fork(Reset(), train, Collect(), variants=rates))
    ensemble = choral.fit(
        lambda: nn.Linear(4, 1),
        (X[:60], y[:60]),
        value,
        validation=(X[60:], y[60:]),
        compute=choral.Compute(executor=executor),
    )
    assert [s["reason"] for s in ensemble.info["stopped"]] == ["diverged"]
    assert 1 <= ensemble.members <= 2
    assert torch.isfinite(ensemble.predict(X[60:]).mean).all()


FIRST = X[:, :3]
NUMBERS = FIRST @ torch.tensor([1.0, 2.0, 3.0])


def chosen_among(space):
    value = choral.recipes.hyper_ensemble(budget=24, members=6, space=space, training="paper")
    held = (FIRST[60:], NUMBERS[60:])
    return choral.fit(lambda: models.mlp(3, 1, hidden=(16,)), (FIRST[:60], NUMBERS[:60]), value, validation=held)


def test_a_network_whose_outputs_mean_nothing_finite_costs_nothing():
    ensemble = chosen_among(Space(rate=LogUniform(0.3, 300.0)))
    assert "diverged" in {stop["reason"] for stop in ensemble.info["stopped"]}
    assert ensemble.evaluate(FIRST[60:], NUMBERS[60:])["rmse"] < 2


def test_a_choice_among_networks_that_all_diverged_is_none():
    with pytest.raises(DivergedError, match="all 6 networks that are chosen among diverged"):
        chosen_among(Space(rate=Uniform(1e9, 1e10)))
