"""Budgets: all of them is used, and every phase says what it needs."""

import pytest

from choral.base.errors import InputError
from choral.plan.cost import raised, short, steps_of, warning
from choral.plan.phases import Train
from choral.plan.walk import trainings
from choral.recipes import METHODS, deep_ensemble, make, prune_and_tune, single, snapshot
from choral.recipes.training import LEAST_STEPS, shares


@pytest.mark.parametrize("epochs", [23, 24, 31, 200, 457])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_uses_its_whole_budget(name, epochs):
    recipe = make(name, budget=epochs)
    chosen = any(
        phase.select for phase in trainings(recipe.plan)
    )  # networks that are chosen among train side by side, equally long
    assert 0 <= epochs - recipe.epochs < (recipe.plan.branches if chosen else 1)


@pytest.mark.parametrize("name", METHODS)
def test_epochs_are_those_of_one_training_and_a_budget_is_the_total(name):
    recipe = make(name, epochs=60)
    trained_apart = getattr(recipe.plan, "branches", 1)
    assert recipe.epochs == 60 * trained_apart
    assert f"x {60} epochs ({trained_apart}.0x one network)" in str(recipe) or trained_apart == 1
    members = {"members": recipe.members} if "members" in METHODS[name].options else {}
    assert make(name, budget=60 * trained_apart, **members) == recipe  # equal recipes train equal members


@pytest.mark.parametrize("members", [2, 3, 5, 7])
@pytest.mark.parametrize("name", ["deep_ensemble", "bagged", "anchored", "snapshot", "dst", "bnn", "ssbnn", "edst"])
def test_the_whole_budget_is_used_whatever_the_members(name, members):
    recipe = make(name, budget=44, members=members)
    assert (recipe.epochs, recipe.members) == (44, members)
    assert trainings(recipe.plan)[0].epochs == max(phase.epochs for phase in trainings(recipe.plan))


def test_even_shares_are_one_fork_and_one_repeat_as_before():
    assert shares(200, 4) == ((4, 50),)
    assert deep_ensemble(budget=8, members=4).plan.branches == 4
    assert snapshot(budget=8, members=4).plan.phases[1].times == 4
    with pytest.raises(InputError, match="3 epochs in all are too few for 4 members"):
        shares(3, 4)


@pytest.mark.parametrize("name", METHODS)
def test_every_phase_of_every_method_says_what_it_needs(name):
    phases = trainings(make(name).plan)
    assert all(phase.least_steps > 0 for phase in phases)
    assert max(phase.least_steps for phase in phases[:1]) >= 200


@pytest.mark.parametrize("name", METHODS)
def test_a_raised_plan_lacks_nothing_and_a_long_one_stays(name):
    recipe = make(name, budget=24).settled(277)
    high = raised(recipe.plan, points=277)
    assert short(recipe.plan, points=277)
    assert not short(high, points=277)
    assert all(steps_of(p, 277) >= p.least_steps for p in trainings(high))
    assert len(trainings(high)) == len(trainings(recipe.plan))
    assert raised(high, points=277) == high


def test_the_warning_names_the_worst_phase_and_a_budget_that_is_enough():
    recipe = prune_and_tune(budget=16, members=6, training="paper")
    said = warning(recipe.plan, points=277)  # 3 steps in an epoch of batches of 128
    assert "a training of 10 epochs is 30 steps and should be 500" in said or "1 epochs is 3 steps" in said
    assert f"give epochs={167 + 6 * 34} or more" in said
    assert not warning(raised(recipe.plan, 277), 277)
    assert not warning(single(budget=200).settled(1347).plan, points=1347)


def test_what_a_user_writes_needs_nothing():
    assert Train(epochs=1).least_steps == 0
    assert warning(Train(epochs=1), points=10) == ""
    assert single().plan.phases[1].least_steps == LEAST_STEPS
