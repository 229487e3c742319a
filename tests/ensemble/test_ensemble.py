"""Ensemble as an object: what it says of itself, its members, its scores."""

import pytest
import torch
from torch import nn

import choral
from choral import metrics, models
from choral.base.errors import InputError
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=G)
Y = (X[:, 0] > 0).long()
QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=16)


def build():
    return models.mlp(3, 2, hidden=(4,))


@pytest.fixture(scope="module")
def ensemble():
    return choral.fit(build, (X, Y), make("batch_ensemble", budget=2, members=3, training=QUICK))


def test_it_says_what_was_understood(ensemble):
    said = repr(ensemble)
    assert said.startswith("Ensemble(batch_ensemble: 3 members, classification with 2 outputs, Categorical, ")
    assert said.endswith(f"{ensemble._parameters:,} parameters)")
    assert "\n" not in said


def test_draws_and_scaling_are_said():
    target = X[:, 0] * 50 + 1000
    build = lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2))  # noqa: E731  # a factory in one line
    fitted = choral.fit(build, (X, target), make("mc_dropout", budget=1, draws=5, training=QUICK))
    assert "1 member of 5 draws each, regression with 2 outputs" in repr(fitted)
    scale = f"(mean {float(target.mean()):,.0f}, standard deviation {float(target.std(correction=0)):.4g})"
    assert f"LearnedGaussian, targets standardized {scale}" in repr(fitted)
    assert fitted.evaluate(X, target)["rmse"] > 1  # in the units of the targets


def test_members_are_counted_and_walked_over(ensemble):
    assert len(ensemble) == 3
    members = list(ensemble)
    with torch.no_grad():
        alone = torch.stack([m(X) for m in members])
    torch.testing.assert_close(alone, ensemble.outputs(X), atol=1e-5, rtol=1e-5)


def test_evaluate_gives_the_scores_of_the_prediction(ensemble):
    found = ensemble.evaluate(X, Y, batch_size=7)
    prediction = ensemble.predict(X)
    assert found["nll"] == pytest.approx(metrics.nll(prediction.probs, Y), abs=1e-6)
    assert found["accuracy"] == pytest.approx(float((prediction.labels == Y).float().mean()))


def test_a_saved_ensemble_says_the_same(ensemble, tmp_path):
    ensemble.save(tmp_path / "e.choral")
    assert repr(choral.load(tmp_path / "e.choral")) == repr(ensemble)


def _trained(outputs, y, likelihood=None):
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    return x, choral.fit(lambda: nn.Linear(3, outputs), (x, y), make("single", budget=1), likelihood=likelihood)


@pytest.mark.parametrize(
    ("outputs", "likelihood", "wrong", "why"),
    [
        (2, None, lambda y: y + 0.7, "y holds real numbers"),
        (2, None, lambda y: y + 1, "2"),
        (2, None, lambda y: y - 1, "negative label"),
        (2, None, lambda y: y[:5], "y has 5 rows and x has 12"),
        (1, "poisson", lambda y: y + 0.5, "not all counts"),
        (1, "bernoulli", lambda y: y + 1, "0 and 1"),
    ],
)
def test_targets_are_checked_before_they_judge_or_calibrate(outputs, likelihood, wrong, why):
    y = torch.arange(12) % 2
    x, ensemble = _trained(outputs, y, likelihood)
    with pytest.raises(InputError, match=why):
        ensemble.evaluate(x, wrong(y))
    with pytest.raises(InputError, match=why):
        ensemble.calibrated(x, wrong(y), stacking=True)


def test_constant_targets_may_judge_and_no_rows_may_not():
    x, ensemble = _trained(1, torch.arange(12) / 5)
    assert ensemble.evaluate(x, torch.ones(12))["rmse"] > 0
    with pytest.raises(InputError, match="y has 0 rows and x has 0"):
        ensemble.evaluate(x[:0], torch.ones(0))
