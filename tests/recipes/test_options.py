"""Options that go beyond a method's defaults: on both tasks, by both executors, saved and loaded."""

import json

import pytest
import torch

import choral
from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.fit import fit
from choral.plan import Adam, Steps
from choral.plan.walk import trainings
from choral.recipes import make
from choral.recipes.training import Training
from choral.testing.problems import CALM, PROBLEMS

LONG = Training(lr=0.01, optimizer=Adam(), batch_size=16)
SHORT = Training(lr=0.02, optimizer=Adam(), batch_size=16, end=0.004)
OPTIONS = [
    ("masksembles", {"members": 3, "repetition": True}),
    ("emp", {"draws": 3, "statistics": "shared"}),
    ("ecmp", {"draws": 3, "statistics": "draw", "learned": True}),
    ("packed", {"members": 2, "whole_block_starts": False}),
    ("edst", {"members": 2, "explore_epochs": 4, "interval": 3, "moving": 0.75}),
    ("dst", {"members": 2, "interval": 3, "moving": 0.75}),
    ("fge", {"cycle": 2, "starts": 2, "members": 2}),
    ("sequential_anchored", {"chains": 1, "members": 3, "training": LONG, "step_training": SHORT}),
]


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["classification", "regression"])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=[n for n, _ in OPTIONS])
def test_options_train_alike_everywhere_and_are_saved(name, options, problem, tmp_path):
    build, data = PROBLEMS[problem]
    recipe = make(name, **{"epochs": 12, "training": CALM} | options)
    assert from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    one, many = (fit(build, data(), recipe, compute=choral.Compute(executor=e)) for e in ("sequential", "vectorized"))
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=2e-4, rtol=2e-3) for n in a.params)
    one.save(tmp_path / "saved.choral")
    x = data()[0][:20]
    loaded = choral.load(tmp_path / "saved.choral", build=build)
    assert loaded.recipe == recipe
    assert torch.equal(loaded.outputs(x), one.outputs(x))


def trained(recipe):
    return trainings(recipe.plan)


def test_long_and_short_anchored_trainings_have_settings_of_their_own():
    adam = Adam(betas=(0.8547, 0.9997), weight_decay=1e-3)
    long = Training(lr=0.002145, optimizer=adam, batch_size=155, end=6.03e-5)
    short = Training(lr=0.002145, optimizer=adam, batch_size=155, end=1e-4)
    first, *later = trained(make("sequential_anchored", training=long, step_training=short))
    assert (first.epochs, len(later), later[0].epochs) == (100, 50, 2)
    assert [first.schedule.at(p) for p in (0, 0.5, 1)] == pytest.approx([0.002145, (0.002145 + 6.03e-5) / 2, 6.03e-5])
    for phase in later:
        assert [phase.schedule.at(p) for p in (0, 1)] == pytest.approx([0.002145, 1e-4])
        assert phase.memory == "fresh"
    assert {p.optimizer.weight_decay for p in (first, *later)} == {0.0}  # the anchor is the prior
    text = str(make("sequential_anchored", training=long, step_training=short))
    assert "Cosine(start=0.002145, end=6.03e-05)" in text
    assert "Cosine(start=0.002145, end=0.0001)" in text
    alike = trained(make("sequential_anchored", training=long))
    assert {p.schedule for p in alike} == {first.schedule}


def test_a_cosine_ends_where_it_is_told_and_other_shapes_refuse():
    assert Training(optimizer="sgd", batch_size=128, lr=0.1).full().at(1.0) == 0.0
    assert Training(optimizer="sgd", batch_size=128, lr=0.1, end=0.02).full().at(1.0) == pytest.approx(0.02)
    for options in ({"end": 0.2}, {"end": -0.1}, {"end": 0.01, "schedule": "steps"}):
        with pytest.raises(InputError, match="end is"):
            Training(lr=0.1, **options)
    tuned = trained(
        make("prune_and_tune", tuning="constant", training=Training(optimizer="sgd", batch_size=128, lr=0.1, end=0.02))
    )
    assert tuned[-1].schedule.at(0.0) == pytest.approx(0.02)


@pytest.mark.parametrize("name", ["emp", "ecmp"])
def test_an_option_is_checked_by_its_own_annotation_not_by_an_argument_of_that_name_elsewhere(name):
    make(name, budget=4, precision=2.0)  # a number here, a word in predict
    with pytest.raises(InputError, match="precision is 'fp32'; give a number"):
        make(name, budget=4, precision="fp32")


def test_milestones_and_factor_are_a_schedule_of_training():
    """The Packed-Ensembles paper, table 4: 0.1 times 0.2 at epochs 60, 120 and 160 of 200."""
    falls = Steps(0.1, milestones=(0.3, 0.6, 0.8), factor=0.2)
    (phase,) = trainings(
        make("packed", epochs=200, training=Training(schedule=falls, optimizer="sgd", batch_size=128)).plan
    )
    rates = [phase.schedule.at(epoch / 200) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008])
    assert Training(schedule=falls).lr == 0.1
    with pytest.raises(InputError, match="leave lr out"):
        Training(lr=0.2, schedule=falls)
