"""Settings that are left open: chosen for the data, said where they come to nothing, and never in the way of given ones."""

import warnings

import pytest
import torch
from torch import nn

import choral
from choral.base.errors import DivergedError
from choral.comparison.comparison import verdict
from choral.plan import SGD, Adam, AdamW
from choral.plan.schedules import Relative
from choral.plan.walk import trainings
from choral.recipes import METHODS, make
from choral.recipes.training import Training, default_rate

GIVEN = Training(lr=0.02, optimizer=SGD(), batch_size=16)


def findings_of(by_seed, baseline):
    return verdict(by_seed, baseline=baseline)[1]


def line(seed, rows=200):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 8, generator=generator)
    return x, x[:, 0] + 0.1 * torch.randn(rows, generator=generator)


def two_outputs():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


@pytest.mark.parametrize("name", METHODS)
def test_settings_that_are_given_stay_as_they_are(name):
    recipe = make(name, budget=24, training=GIVEN)
    assert not recipe.is_open
    assert recipe.settled(200, 1000) == recipe


@pytest.mark.parametrize("name", METHODS)
def test_everything_is_settled_before_training_and_the_paper_leaves_nothing_open(name):
    recipe = make(name, budget=24).settled(200, 1000)
    assert not recipe.is_open
    assert all(0 < phase.schedule.rate(0, 10) < 1 and phase.batch_size for phase in trainings(recipe.plan))
    paper = make(name, budget=24, training="paper")
    assert not paper.is_open
    assert {phase.batch_size for phase in trainings(paper.plan)} <= {128, 155, 256}


def test_the_papers_settings_are_those_of_its_experiments():
    def first(name, **options):
        return trainings(make(name, training="paper", **options).plan)[0]

    assert (first("emp").optimizer, first("emp").schedule.at(0.5), first("emp").batch_size) == (Adam(), 0.001, 256)
    packed = first("packed").schedule
    assert [round(packed.at(done), 5) for done in (0.2, 0.5, 0.7, 0.9)] == [0.1, 0.02, 0.004, 0.0008]
    long, short = trainings(make("sequential_anchored", epochs=200, training="paper").plan)[:2]
    assert (long.schedule.at(1.0), short.schedule.at(1.0)) == (pytest.approx(6.03e-5), pytest.approx(1e-4))
    assert long.optimizer.betas == short.optimizer.betas == (0.8547, 0.9997)


def test_a_loader_decides_the_batch_size_that_is_left_open():
    x, y = line(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    ensemble = choral.fit(two_outputs, loader, make("single", budget=1))
    assert trainings(ensemble.recipe.plan)[0].batch_size == 20


def test_the_learning_rate_falls_with_steps_and_parameters():
    rates = [default_rate(AdamW(), steps, 1000) for steps in (100, 2000, 100_000)]
    assert rates == sorted(rates, reverse=True)
    assert default_rate(AdamW(), 5000, 10_000_000) < default_rate(AdamW(), 5000, 10_000)
    assert default_rate(SGD(), 100, 1000) == default_rate(SGD(), 10_000, 1000)
    assert default_rate(AdamW(), 500, 1000, given=True) < default_rate(AdamW(), 500, 1000)


def test_a_relative_schedule_is_its_shape_times_the_peak():
    shape = choral.plan.OneCycle(1.0, start=0.01, end=1e-6)
    for step in (0, 3, 29):
        assert Relative(shape, 0.004).rate(step, 30) == pytest.approx(0.004 * shape.rate(step, 30))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("single", marks=pytest.mark.full),
        pytest.param("deep_ensemble", marks=pytest.mark.full),
        "packed",
        pytest.param("snapshot", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_learned_variance_trains_with_nothing_set(name, seed):
    ensemble = choral.fit(two_outputs, line(seed), make(name, budget=150), seed=seed)
    x, y = line(seed + 10, rows=500)
    assert ensemble.evaluate(x, y)["rmse"] < 0.4  # of 1 for the mean; CIFAR's settings gave 0.5 to 20,000


def test_noise_is_estimated_on_rows_that_were_not_trained_on():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 20, generator=generator)
    y = x[:, 0] + torch.randn(120, generator=generator)

    def build():
        return nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 1))  # enough to learn the noise by heart

    open_, all_rows = (
        choral.fit(build, (x, y), make("single", budget=300), validation=v).predict(x[:5]).std.mean()
        for v in ("auto", None)
    )
    assert open_ > 0.6
    assert all_rows < 0.5 * open_


def test_rows_are_held_out_only_where_settings_are_open():
    def points(**options):
        training = options.pop("training", None)
        ensemble = choral.fit(two_outputs, line(0), make("single", budget=1, training=training), **options)
        return ensemble.info["counted"]["points"]

    assert points() == 170
    assert points(validation=None) == points(training=GIVEN) == points(training="paper") == 200
    assert points(training=GIVEN, early_stopping=choral.EarlyStopping(patience=None)) == 170


def test_an_ensemble_that_learned_nothing_is_said_and_one_that_did_is_not():
    idle = Training(lr=1e-12, optimizer=SGD(), batch_size=32)
    (x, y), other = line(0), line(1)[1]
    for data, unrelated in (((x, y), other), ((x, (y > 0).long()), (other > 1).long())):
        with pytest.warns(UserWarning, match="single predicts its training rows no better than"):
            choral.fit(two_outputs, (x, unrelated), make("single", budget=1, training=idle))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            choral.fit(two_outputs, data, make("single", budget=120))


def test_fit_says_that_a_budget_is_too_small():
    with pytest.warns(UserWarning, match=r"deep_ensemble:.*2 epochs"):
        choral.fit(two_outputs, line(0), make("deep_ensemble", budget=8))


def test_a_method_that_diverges_is_a_row_and_the_others_get_theirs():
    x, y = line(0)
    wild = make("single", budget=2, training=Training(lr=1e30, optimizer=SGD(), batch_size=32))
    for seeds in (0, (0, 1)):
        found = choral.compare(two_outputs, (x, y, x, y), [wild, "snapshot", "packed"], budget=6, members=2, seed=seeds)
        assert "diverged" in found.rows[0]
        assert all("nll" in row for row in found.rows[1:])
        assert "single diverged: " in str(found)
        assert not any("single" in sentence for sentence in found.findings)
    with pytest.raises(DivergedError, match="single: "):
        choral.compare(two_outputs, (x, y, x, y), [wild])


def test_advice_counts_the_coverage_of_intervals():
    def row(method, nll, covered):
        return {"method": method, "nll": nll, "rmse": 1.0, "coverage_error": abs(covered - 0.95)}

    rows = [row("single", 1.0, 0.94), row("packed", 0.5, 0.76), row("snapshot", 0.7, 0.93)]
    assert findings_of([rows], baseline="single")[0].startswith("Use snapshot")
    assert findings_of([[*rows[:1], row("packed", 0.5, 0.94), rows[2]]], baseline="single")[0].startswith("Use packed")
