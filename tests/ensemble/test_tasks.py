"""Tasks as users bring them, through fit and predict: never silently something else than they are."""

import numpy as np
import pytest
import torch
from torch import nn

import choral
from choral import Adam, Training, models
from choral.objectives import Bernoulli, Categorical, FixedGaussian, LearnedGaussian
from choral.recipes import make

QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=32)
G = torch.Generator().manual_seed(0)
X = torch.randn(128, 3, generator=G)


def fitted(build, y, *, x=X, method="deep_ensemble", epochs=8, **options):
    recipe = make(method, budget=epochs, training=QUICK, **({"members": 2} if method == "deep_ensemble" else {}))
    return choral.fit(build, (x, y), recipe, **{"compute": choral.Compute(executor="sequential")} | options)


class Squeezed(nn.Module):
    """Returns (batch,)."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.inner(x)[:, 0]


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_pixels_are_predicted_over_the_axis_they_are_trained_on(executor):
    x = torch.randn(40, 3, 8, 8, generator=G)
    y = (x.mean(1) > 0).long()
    ensemble = fitted(lambda: nn.Conv2d(3, 2, 1), y, x=x, epochs=30, compute=choral.Compute(executor=executor))
    p = ensemble.predict(x)
    assert torch.allclose(p.probs.sum(1), torch.ones(40, 8, 8), atol=1e-5)
    assert p.labels.shape == y.shape
    assert float((p.labels == y).float().mean()) > 0.8
    assert ensemble.evaluate(x, y)["accuracy"] == pytest.approx(float((p.labels == y).float().mean()))


def test_tokens_with_an_ignored_label():
    x = torch.randint(9, (48, 6), generator=G)
    y = (x % 3).masked_fill(torch.rand(48, 6, generator=G) < 0.3, -1)
    build = lambda: nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 3))  # noqa: E731  # a factory in one line
    ensemble = fitted(build, y, x=x, epochs=60, likelihood=Categorical(ignore=-1))
    p = ensemble.predict(x)
    assert p.labels.shape == (48, 6)
    found = ensemble.evaluate(x, y)
    assert found["accuracy"] == pytest.approx(float((p.labels == y)[y >= 0].float().mean()))
    assert found["accuracy"] > 0.9


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("columns", [False, True])
def test_targets_of_two_hundred_thousand_are_learned_and_their_noise_is_known(outputs, columns):
    signal = X[:, 0] + 0.5 * X[:, 1]
    y = 200_000 + 50_000 * (signal + 0.2 * torch.randn(128, generator=G))
    ensemble = fitted(lambda: models.mlp(3, outputs, hidden=(16,)), y.unsqueeze(1) if columns else y, epochs=100)
    p = ensemble.predict(X)
    assert float((p.mean.flatten() - y).square().mean().sqrt()) < 20_000
    found = ensemble.evaluate(X, y)
    assert 0.85 <= found["coverage_95"] <= 1
    assert 5_000 < float(p.std.mean()) < 30_000


def test_standardized_targets_change_nothing_but_rounding():
    y = X[:, 0] + 0.1 * X[:, 1]
    y = (y - y.mean()) / y.std(correction=0)
    plain, scaled = (
        fitted(lambda: models.mlp(3, 2, hidden=(8,)), y, likelihood=LearnedGaussian(standardize=s))
        for s in (False, True)
    )
    for a, b in zip(plain.states(), scaled.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-5) for n in a.params)
    assert torch.allclose(plain.predict(X).mean, scaled.predict(X).mean, atol=1e-5)


def test_a_given_precision_is_kept_and_targets_stay_in_their_units():
    given = FixedGaussian(precision=4.0)
    ensemble = fitted(lambda: models.mlp(3, 1, hidden=(8,)), 10 * X[:, 0], likelihood=given)
    assert ensemble.likelihood == given
    assert torch.allclose(ensemble.predict(X).aleatoric_std, torch.tensor(0.5))


def test_the_estimated_noise_has_the_best_log_score_and_comes_back_from_everywhere(tmp_path):
    y = torch.stack([X[:, 0], 100 * X[:, 1]], 1) + torch.randn(128, 2, generator=G) * torch.tensor([0.3, 10.0])
    build = lambda: models.mlp(3, 2, hidden=(16,))  # noqa: E731  # a factory in one line
    ensemble = fitted(build, y, epochs=40, run_dir=tmp_path / "run", likelihood=FixedGaussian())
    p = ensemble._predictive(X)
    best = ensemble.evaluate(X, y)["nll"]
    for factor in (0.8, 1.25):
        assert type(p)(p.member_means, p.member_variances * factor).scores(p.targets(y))["nll"] > best
    ensemble.save(tmp_path / "saved.choral")
    again = fitted(build, y, epochs=40, run_dir=tmp_path / "run", likelihood=FixedGaussian())
    for other in (choral.load(tmp_path / "saved.choral"), choral.load(tmp_path / "run"), again):
        assert torch.equal(other._predictive(X).variance, p.variance)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_outputs_without_a_last_axis_are_one_target(executor):
    y = X[:, 0]
    found = [
        fitted(build, targets, compute=choral.Compute(executor=executor), likelihood=FixedGaussian(standardize=False))
        .predict(X)
        .mean
        for build in (Squeezed, lambda: Squeezed().inner)
        for targets in (y, y.unsqueeze(1))
    ]
    assert [f.shape for f in found] == [(128,), (128, 1)] * 2  # as the targets
    assert torch.allclose(found[0], found[1][:, 0], atol=1e-6)
    assert torch.allclose(found[2], found[3][:, 0], atol=1e-6)
    assert float((found[0] - y).square().mean()) < float(y.var())


KINDS = [
    ("class numbers as reals", (X[:, 0] > 0).float() + (X[:, 1] > 1).float(), 3, Categorical),
    ("one-hot", torch.eye(3)[(X[:, 0] > 0).long() + (X[:, 1] > 1).long()], 3, Categorical),
    ("several labels", (X > 0).float(), 3, Bernoulli),
    ("yes or no", (X[:, 0] > 0).float(), 1, Bernoulli),
]


@pytest.mark.parametrize(("y", "outputs", "kind"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
def test_labels_in_any_form_are_no_regression(y, outputs, kind):
    ensemble = fitted(lambda: models.mlp(3, outputs, hidden=(16,)), y, epochs=40)
    assert type(ensemble.likelihood) is kind
    assert ensemble.evaluate(X, y)["accuracy"] > 0.85


def test_likelihoods_by_name():
    y = X[:, 0]
    assert type(fitted(lambda: models.mlp(3, 2), y, epochs=2, likelihood="gaussian").likelihood) is LearnedGaussian
    with pytest.raises(choral.ChoralError, match="likelihood is 'gausian'"):
        fitted(lambda: models.mlp(3, 2), y, likelihood="gausian")
    whole = np.round(5 * X[:, 0].numpy()).astype(int)
    assert type(fitted(lambda: models.mlp(3, 1), whole, epochs=2, likelihood="gaussian").likelihood) is FixedGaussian


@pytest.mark.parametrize(("name", "outputs"), [("quantiles", 5), ("student_t", 2)])
def test_validation_measures_what_the_task_is_scored_by(name, outputs):
    heard = []
    build = lambda: models.mlp(3, outputs, hidden=(8,))  # noqa: E731  # a factory in one line
    fitted(build, X[:, 0], epochs=6, likelihood=name, validation=0.25, callbacks=heard.append)
    measured = [e for e in heard if e["kind"] == "epoch"]
    assert measured[-1]["measure"] == ("pinball" if name == "quantiles" else "nll")
    assert all(np.isfinite(v) for e in measured for v in e["validation"])


def test_a_loop_of_ones_own_reads_targets_as_fit_does():
    y = 200_000 + 50_000 * X[:, 0]
    own = choral.converted(models.mlp(3, 1, hidden=(16,)), make("packed", members=2, budget=1), data=(X, y))
    optimizer = torch.optim.Adam(own.network.parameters(), lr=0.02)
    for step in range(150):
        optimizer.zero_grad()
        own.loss(X, y, step=step).backward()
        optimizer.step()
    found = own.ensemble().evaluate(X, y)
    assert found["rmse"] < 15_000
    assert found["coverage_95"] > 0.85


def test_classes_that_training_never_saw_are_said_when_they_are_asked_about(tmp_path):
    y = (X[:, 0] > 0).long()
    ensemble = fitted(lambda: models.mlp(3, 3), y, epochs=2)
    ensemble.save(tmp_path / "e.choral")
    for held in (ensemble, choral.load(tmp_path / "e.choral")):
        held.evaluate(X, y)
        with pytest.warns(UserWarning, match="class 2, which no training row had"):
            held.evaluate(X, torch.where(X[:, 1] > 1, 2, y))
