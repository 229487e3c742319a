"""Corrections fitted after training: what they do to predictions, and that they are saved with the ensemble."""

import numpy as np
import pytest
import torch

import choral
from choral import models
from choral.base.errors import InputError
from choral.calibration import ConformalSets, StackingWeights, Temperature, evaluate_sets
from choral.metrics import logits_nll, mixture_nll, nll
from choral.plan import Adam
from choral.predictions import MultiLabel
from choral.recipes import make
from choral.recipes.training import Training

QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=32)


def blobs(rows, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (rows,), generator=g)
    return torch.randn(rows, 4, generator=g) + 1.2 * torch.nn.functional.one_hot(y, 4)[:, [0, 1, 2, 3]], y


def line(rows, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 1, generator=g) * 2 - 1
    return x, x + (0.05 + 0.3 * x.abs()) * torch.randn(rows, 1, generator=g)


@pytest.fixture(scope="module")
def classes():
    recipe = make("deep_ensemble", budget=40, members=4, training=QUICK)
    return choral.fit(lambda: models.mlp(4, 3, hidden=(16,)), blobs(120, 0), recipe)


@pytest.fixture(scope="module")
def targets():
    recipe = make("deep_ensemble", budget=60, members=3, training=QUICK)
    return choral.fit(lambda: models.mlp(1, 2, hidden=(16,)), line(200, 0), recipe)


def test_temperature_divides_the_logits_and_lowers_held_out_nll(classes):
    x, y = blobs(400, 1)
    corrected = classes.calibrated(x, y, temperature="ensemble")
    (value,) = corrected.posthoc
    before, after = classes._predictive(x), corrected._predictive(x)
    assert torch.allclose(after.logits, before.logits / value.temperatures[0])
    assert logits_nll(after.logits, y) <= logits_nll(before.logits, y)
    assert classes.posthoc == ()


def test_each_correction_is_fitted_on_what_the_ones_before_leave(classes):
    x, y = blobs(400, 1)
    corrected = classes.calibrated(x, y, temperature="member", stacking=True, level=0.8)
    warm, weights, _ = corrected.posthoc
    prediction = corrected._predictive(x)
    assert len(prediction.logits) == len(warm.temperatures) == len(weights.weights)
    raw = classes.outputs(x) / torch.tensor(warm.temperatures).view(-1, 1, 1)
    assert torch.allclose(prediction.logits, raw, atol=1e-6)
    assert torch.allclose(
        prediction.probs, (raw.softmax(-1) * torch.tensor(weights.weights).view(-1, 1, 1)).sum(0), atol=1e-6
    )
    fresh, labels = blobs(4000, 2)
    assert evaluate_sets(corrected.predict(fresh).sets(), labels)["coverage"] == pytest.approx(0.8, abs=0.05)
    assert nll(prediction.probs, y) <= nll(classes.predict(x).probs, y)


@pytest.mark.parametrize("rule", ["residual", "scaled", "quantile"])
def test_conformal_intervals_cover_as_promised(targets, rule):
    corrected = targets.calibrated(*line(400, 1), stacking=True, level=0.8, conformal=rule)
    x, y = line(4000, 2)
    prediction = corrected.predict(x)
    low, high = prediction.conformal_interval()
    assert float(((low <= y) & (y <= high)).double().mean()) == pytest.approx(0.8, abs=0.05)
    widths = (high - low).flatten()
    constant = float(widths.std() / widths.mean()) < 1e-6
    assert constant == (rule == "residual")  # the other two are wide where the ensemble is unsure
    x, y = line(400, 1)
    after, before = corrected._predictive(x), targets._predictive(x)
    weights = torch.tensor(after.weights, dtype=torch.float64)
    assert mixture_nll(after.member_means, after.member_variances, y, weights=weights) <= mixture_nll(
        before.member_means, before.member_variances, y
    )


def test_corrections_are_saved_with_the_ensemble(classes, targets, tmp_path):
    x, y = blobs(200, 1)
    corrected = classes.calibrated(x, y, temperature="ensemble", stacking=True, level=0.9, conformal="raps")
    corrected.save(tmp_path / "classes.choral")
    loaded = choral.load(tmp_path / "classes.choral")
    assert loaded.posthoc == corrected.posthoc
    assert torch.equal(loaded.predict(x).probs, corrected.predict(x).probs)
    assert torch.equal(loaded.predict(x).sets(seed=3), corrected.predict(x).sets(seed=3))
    x, y = line(200, 1)
    corrected = targets.calibrated(x, y.numpy(), level=0.9)
    corrected.save(tmp_path / "targets.choral")
    loaded = choral.load(tmp_path / "targets.choral")
    for a, b in zip(loaded.predict(x).conformal_interval(), corrected.predict(x).conformal_interval()):
        assert torch.equal(a, b)


def test_calibrating_again_starts_from_the_members_not_from_the_last_correction(classes):
    x, y = blobs(300, 1)
    once = classes.calibrated(x, y, temperature="ensemble")
    assert once.calibrated(x, y, temperature="ensemble").posthoc == once.posthoc


def test_averaged_logits_take_one_temperature(classes):
    import copy
    from dataclasses import replace

    twin = copy.copy(classes)
    twin.recipe = replace(classes.recipe, combine="logits")
    x, y = blobs(400, 1)
    corrected = twin.calibrated(x, y, temperature="ensemble")
    assert nll(corrected.predict(x).probs, y) <= nll(twin.predict(x).probs, y)
    with pytest.raises(InputError, match="no mixture of probabilities"):
        twin.calibrated(x, y, stacking=True)


def test_wrong_corrections_are_refused(classes, targets):
    x = np.zeros((2, 4), dtype=np.float32)
    with pytest.raises(InputError, match="no conformal rule"):
        classes.predict(x).sets()
    with pytest.raises(InputError, match="two corrections of one kind"):
        classes.with_posthoc(Temperature(), Temperature())
    with pytest.raises(InputError, match="does not apply to regression"):
        targets.with_posthoc(Temperature())
    with pytest.raises(InputError, match="Training does not apply to classification"):
        classes.with_posthoc(QUICK)
    with pytest.raises(RuntimeError, match="need to match"):
        repr(classes.with_posthoc(StackingWeights(weights=(0.5, 0.5))).predict(x))
    with pytest.raises(InputError, match="does not apply to regression"):
        targets.calibrated(*line(50, 1), temperature="ensemble")
    with pytest.raises(InputError, match="give one of scaled"):
        targets.calibrated(*line(50, 1), level=0.9, conformal="aps")


def test_corrections_apply_in_one_order_whatever_order_they_are_given_in(classes):
    x, _ = blobs(20, 1)
    values = [
        ConformalSets(threshold=0.9, level=0.9, randomized=False),
        StackingWeights(weights=(0.0, 0.75, 0.0, 0.25)),
        Temperature(temperatures=(1.0, 3.0, 1.0, 2.0)),
    ]
    one, other = classes.with_posthoc(*values), classes.with_posthoc(*reversed(values))
    assert one.posthoc == other.posthoc
    raw = classes.outputs(x)
    expected = 0.25 * (raw[3] / 2).softmax(-1) + 0.75 * (raw[1] / 3).softmax(-1)
    assert torch.allclose(one.predict(x).probs, expected, atol=1e-6)


def test_weights_of_a_method_stay_when_something_else_is_fitted(classes, targets, tmp_path):
    x, y = blobs(90, 1)
    weighed = classes.with_posthoc(StackingWeights(weights=(0.7, 0.3, 0.0, 0.0)))
    sets = weighed.calibrated(x, y, level=0.9)
    assert [type(v) for v in sets.posthoc] == [StackingWeights, ConformalSets]
    torch.testing.assert_close(sets.predict(x).probs, weighed.predict(x).probs)
    cooled = weighed.calibrated(x, y)
    assert cooled.evaluate(x, y)["nll"] <= weighed.evaluate(x, y)["nll"] + 1e-9
    assert cooled.posthoc[0] != classes.calibrated(x, y).posthoc[0]  # fitted to the mixture there is, not to another
    cooled.save(tmp_path / "c.choral")
    loaded = choral.load(tmp_path / "c.choral", build=lambda: models.mlp(4, 3, hidden=(16,)))
    torch.testing.assert_close(loaded.predict(x).probs, cooled.predict(x).probs)
    assert [type(v) for v in weighed.calibrated(x, y, stacking=True).posthoc] == [StackingWeights]
    assert weighed.calibrated(x, y, stacking=True).posthoc[0] == classes.calibrated(x, y, stacking=True).posthoc[0]
    x, y = line(80, 1)
    spread = targets.with_posthoc(StackingWeights(weights=(1.0, 0.0, 0.0))).calibrated(x, y, level=0.9)
    one = targets._of_networks([0])
    torch.testing.assert_close(spread.predict(x).mean, one.predict(x).mean)


def test_variances_of_probabilities_count_members_by_their_weights(classes):
    x, _ = blobs(20, 2)
    weighed = classes.with_posthoc(StackingWeights(weights=(1.0, 0.0, 0.0, 0.0)))._predictive(x)
    torch.testing.assert_close(weighed.variance, torch.zeros_like(weighed.variance), atol=1e-7, rtol=0)
    plain = classes._predictive(x)
    torch.testing.assert_close(plain.variance, plain.member_probs.var(0, correction=0))
    logits = torch.randn(2, 5, 3)
    both = MultiLabel(logits, weights=(0.25, 0.75))
    twice = MultiLabel(torch.cat([logits[:1], *[logits[1:]] * 3]))
    torch.testing.assert_close(both.variance, twice.variance)
