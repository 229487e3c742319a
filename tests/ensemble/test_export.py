"""Programs of torch.export: what they give is what the ensemble predicts, without choral; or a sentence, and no file."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from tests.menagerie import MENAGERIE
from torch import nn

import choral
from choral.base.errors import InputError
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, 8, 8, generator=G)
Y = torch.arange(24) % 3
QUICK = Training(lr=0.1, optimizer="sgd", batch_size=16)
MEASURES = ("mean", "variance", "aleatoric", "epistemic")


def convnet():
    body = (nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 8), nn.ReLU())
    return nn.Sequential(*body, nn.Linear(8, 3))


def few(method, **options):
    return make(method, budget=6, members=2, training=QUICK, **options)


def agrees(ensemble, path, x, rows):
    program, expected = torch.export.load(path).module(), ensemble._predictive(x)
    found = program(rows)
    for name in MEASURES:
        torch.testing.assert_close(found[name], getattr(expected, name), rtol=1e-4, atol=1e-5)


def later(*names):
    """Return what is tried in `make test-all` alone."""
    return [pytest.param(name, marks=pytest.mark.full) for name in names]


@pytest.mark.parametrize(
    "method", ["deep_ensemble", "batch_ensemble", *later("prune_and_tune", "packed", "treenet", "swag")]
)
def test_a_program_predicts_what_the_ensemble_does_for_any_number_of_rows(method, tmp_path):
    ensemble = choral.fit(convnet, (X, Y), few(method)).calibrated(X, Y)
    ensemble.export(tmp_path / "program.pt2", X[:6])
    for rows in (X[:1], X[:7], X):
        agrees(ensemble, tmp_path / "program.pt2", rows, rows)


def test_it_runs_without_choral_and_says_what_it_is(tmp_path):
    ensemble = choral.fit(convnet, (X, Y), few("packed"))
    path = tmp_path / "program.pt2"
    ensemble.export(path, X)
    torch.save(X, tmp_path / "x.pt")
    code = (
        "import sys, torch; sys.modules['choral'] = None; x = torch.load('x.pt'); "
        "torch.save(torch.export.load('program.pt2').module()(x)['mean'], 'y.pt')"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), ensemble.predict(X).probs, rtol=1e-4, atol=1e-6)
    with zipfile.ZipFile(path) as held:
        (name,) = (n for n in held.namelist() if n.endswith("choral.json"))
        about = json.loads(held.read(name))
    assert about["task"] == "classification"
    assert about["members"] == 2


LIKELIHOODS = {"gaussian": 1, "student_t": 2, "quantiles": 5, "poisson": 1, "bernoulli": 3}


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "quantiles", *later("poisson", "bernoulli")])
def test_every_task_has_its_measures(likelihood, tmp_path):
    x = X[:, :, 0, 0]
    y = {"poisson": (Y + 1).float(), "bernoulli": (x > 0).long()}.get(likelihood, 200_000 * x[:, 0])
    build = lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, LIKELIHOODS[likelihood]))  # noqa: E731  # a factory
    ensemble = choral.fit(build, (x, y), few("deep_ensemble"), likelihood=likelihood)
    ensemble.export(tmp_path / "program.pt2", x)
    agrees(ensemble, tmp_path / "program.pt2", x[:5], x[:5])


@pytest.mark.parametrize(
    "kind", ["two inputs", "embedded columns", *later("dense pixels", "lstm", "tied weights", "bytes")]
)
def test_awkward_networks_too(kind, tmp_path):
    trial = MENAGERIE[kind]
    x, y = trial.data()
    ensemble = choral.fit(trial.build, (x, y), few("deep_ensemble"), **trial.options)
    ensemble.export(tmp_path / "program.pt2", x)
    agrees(ensemble, tmp_path / "program.pt2", x, x)


def test_networks_trained_elsewhere_and_tables(tmp_path):
    given = choral.ensemble_of([convnet(), convnet()], data=(X, Y))
    given.export(tmp_path / "given.pt2", X)
    agrees(given, tmp_path / "given.pt2", X, X)
    frame = pd.DataFrame(
        {"size": np.arange(40.0), "town": ["Ulm", "Bonn"] * 20, "sold": ["yes", "no", "no", "yes"] * 10}
    )
    fitted = choral.fit_table(frame, "sold", members=2, epochs=4)
    fitted.export(tmp_path / "table.pt2", frame)
    agrees(fitted, tmp_path / "table.pt2", frame, torch.as_tensor(fitted.table.inputs(frame, path="frame")))


class Forgetful(nn.Module):
    """Dropout that is never turned off, or a pass that is written for so many rows."""

    def __init__(self, forward):
        super().__init__()
        self.last, self.how = nn.Linear(8, 3), forward

    def forward(self, x):
        return self.last(self.how(x.mean(1)[:, 0]))


@pytest.mark.parametrize(
    ("build", "recipe", "said"),
    [
        (convnet, "mc_dropout", "mc_dropout draws weights or units whenever it predicts"),
        (convnet, "bnn", "bnn draws weights or units"),
        (convnet, "rank1_bnn", "rank1_bnn draws weights or units"),
        (lambda: Forgetful(lambda h: F.dropout(h, 0.5)), "single", "single draws weights or units"),
        (
            lambda: Forgetful(lambda h: h.reshape(len(h), 8)),
            "single",
            r"torch.export cannot follow this network.*len\(x\)",
        ),
    ],
)
def test_what_has_no_program_is_refused_and_nothing_is_written(build, recipe, said, tmp_path):
    ensemble = choral.fit(build, (X, Y), make(recipe, budget=3, training=QUICK))
    with pytest.raises(InputError, match=said):
        ensemble.export(tmp_path / "program.pt2", X)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_said(tmp_path):
    ensemble = choral.fit(convnet, (X, Y), make("single", budget=1, training=QUICK))
    with pytest.raises(InputError, match=r"does not end in \.pt2"):
        ensemble.export(tmp_path / "program.onnx", X)
    with pytest.raises(InputError, match=r"x has 1 row\(s\); give 2 or more"):
        ensemble.export(tmp_path / "program.pt2", X[:1])
    with pytest.raises(InputError, match="3, 9, 9"):
        ensemble.export(tmp_path / "program.pt2", torch.zeros(4, 3, 9, 9))
