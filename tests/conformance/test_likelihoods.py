"""Every likelihood through every kind of method: trained alike by both executors, judged, saved, and never broken off."""

import json
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import choral
from choral import Adam, Training
from choral.comparison.evaluation import evaluate
from choral.objectives import (
    Bernoulli,
    Categorical,
    Family,
    FixedGaussian,
    Laplace,
    LearnedGaussian,
    Loss,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantiles,
    StudentT,
)
from choral.recipes import make

G = torch.Generator().manual_seed(0)
X = torch.randn(36, 3, generator=G)
REAL = 50 + 10 * X[:, :1] + torch.randn(36, 1, generator=G)
COUNTS = torch.poisson((1 + 0.5 * X[:, 0]).exp(), generator=G).long()
CLASSES = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()


@dataclass(frozen=True, kw_only=True)
class OwnGamma(Family):
    """A likelihood of a user's own: positive targets."""

    @property
    def standardizes(self) -> bool:
        return False

    def distribution(self, outputs):
        shape, rate = F.softplus(outputs).chunk(2, 2)
        return torch.distributions.Gamma(shape + 1e-3, rate + 1e-3, validate_args=False)


def own_loss(outputs, targets):
    return F.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 2.0, 1.0]), reduction="none")


TASKS = {
    "categorical": (Categorical(smoothing=0.1), 3, CLASSES),
    "bernoulli": (Bernoulli(), 3, (X > 0).float()),
    "ordinal": (Ordinal(), 2, CLASSES),
    "fixed": (FixedGaussian(), 2, torch.cat([REAL, -3 * REAL], 1)),
    "learned": (LearnedGaussian(), 4, torch.cat([REAL, -3 * REAL], 1)),
    "student": (StudentT(), 2, REAL),
    "laplace": (Laplace(), 2, REAL),
    "poisson": (Poisson(), 1, COUNTS),
    "negative binomial": (NegativeBinomial(), 2, COUNTS),
    "quantiles": (Quantiles(levels=(0.1, 0.5, 0.9)), 3, REAL),
    "own loss": (Loss(own_loss, output=lambda o: o.softmax(-1)), 3, CLASSES),
    "own likelihood": (OwnGamma(), 2, REAL.clamp_min(1)),
}
METHODS = ("batch_ensemble", "packed", "prune_and_tune", "mc_dropout", "bnn", "sequential_anchored")
QUICK = Training(lr=0.003, optimizer=Adam(), batch_size=18)


def build(outputs):
    return lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, outputs))


def recipe(method, epochs=4):
    options = {"draws": 3} if method == "mc_dropout" else {"members": 2}
    return make(method, budget=epochs, training=QUICK, **options)


@pytest.mark.parametrize("name", TASKS)
def test_both_executors_agree_and_the_ensemble_is_judged_and_comes_back(name, tmp_path):
    likelihood, outputs, y = TASKS[name]
    one, many = (
        choral.fit(
            build(outputs), (X, y), recipe("deep_ensemble"), likelihood=likelihood, compute=choral.Compute(executor=e)
        )
        for e in ("sequential", "vectorized")
    )
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)
    found = evaluate(one, X.numpy(), y.numpy(), ood=3 * X.numpy())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    one.save(tmp_path / "e.choral")
    back = choral.load(tmp_path / "e.choral", build(outputs), likelihood=likelihood if name == "own loss" else None)
    assert torch.equal(back._predictive(X).mean, one._predictive(X).mean)
    assert back.evaluate(X, y) == one.evaluate(X, y)


def shared_out(names, methods, quick):
    """Return every pair, those beyond `quick` methods for each name only for `make test-all`; each method has its turns."""
    pairs = [
        (name, methods[(i * quick + j) % len(methods)], j) for i, name in enumerate(names) for j in range(len(methods))
    ]
    return [pytest.param(n, m, marks=[pytest.mark.full] if j >= quick else [], id=f"{n}-{m}") for n, m, j in pairs]


@pytest.mark.parametrize(("name", "method"), shared_out(list(TASKS), METHODS, 2))
def test_every_method_trains_it(name, method):
    likelihood, outputs, y = TASKS[name]
    ensemble = choral.fit(
        build(outputs), (X, y), recipe(method), likelihood=likelihood, compute=choral.Compute(executor="sequential")
    )
    scores = ensemble.evaluate(X, y)
    kind = ensemble.likelihood.prediction
    assert all(torch.isfinite(torch.tensor(scores[n])) for n in kind.shown)


IMAGES = torch.randn(12, 3, 6, 5, generator=G)
WORDS = torch.randint(7, (24, 5), generator=G)
DENSE = {
    "pixels": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(4, 2, 1)),
        IMAGES,
        (IMAGES.mean(1) > 0).long(),
        Categorical(ignore=5),
    ),
    "binary pixels": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(4, 1, 1)),
        IMAGES,
        (IMAGES.mean(1) > 0).float(),
        Bernoulli(),
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)),
        WORDS,
        (WORDS % 3).masked_fill(WORDS == 6, -1),
        Categorical(ignore=-1),
    ),
}


@pytest.mark.parametrize(("name", "method"), shared_out(list(DENSE), ("deep_ensemble", *METHODS), 3))
def test_every_method_trains_dense_outputs(name, method):
    network, x, y, likelihood = DENSE[name]
    ensemble = choral.fit(
        network, (x, y), recipe(method), likelihood=likelihood, compute=choral.Compute(executor="sequential")
    )
    p = ensemble.predict(x)
    assert p.labels.reshape(y.shape).shape == y.shape
    found = ensemble.evaluate(x, y)
    kept = torch.ones_like(y, dtype=torch.bool) if y.is_floating_point() else y >= 0
    assert found["accuracy"] == pytest.approx(float((p.labels.reshape(y.shape) == y)[kept].double().mean()))
    assert json.loads(json.dumps(evaluate(ensemble, x.numpy(), y.numpy()), allow_nan=False))
