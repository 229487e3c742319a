"""Equal budgets: counted in operations, with the members and the optimizer that a method needs."""

import warnings

import pytest
import torch

import choral
from choral import models
from choral.base.errors import InputError
from choral.comparison.compare import Spending, compare, recipes_for, within
from choral.data.problems import Problem
from choral.plan import SGD, Adam
from choral.plan.cost import short, warning
from choral.plan.walk import trainings
from choral.recipes import FEW, METHODS, deep_ensemble, make, sebays_freeze
from choral.recipes.training import Training
from choral.tables.problems import load_problem

SHARED = Training(lr=0.003, optimizer=Adam(), batch_size=32)
G = torch.Generator().manual_seed(0)
POINTS = 1344  # 42 steps
DATA = torch.randn(POINTS, 8, generator=G), torch.arange(POINTS) % 3


def build():
    return models.mlp(8, 3, hidden=(16, 16))


def spending():
    return Spending(build, DATA, {})


@pytest.mark.parametrize("name", METHODS)
def test_no_method_spends_more_than_the_budget_and_dense_ones_spend_it(name):
    counts = spending()
    recipe = within(name, budget=60, members=None, training=SHARED, spending=counts)
    spent = counts.epochs(recipe)
    assert spent <= 60 * 1.005
    assert recipe.epochs <= 60
    pruned = any("Prune" in line for line in str(recipe).splitlines())
    assert spent > (10 if pruned else 54)


def test_recipes_without_epochs_of_their_own_take_the_budget():
    counts = spending()
    asked = [deep_ensemble(members=3), choral.recipes.batch_ensemble(members=4), deep_ensemble(members=2, epochs=7)]
    open_, joint, own = recipes_for(asked, budget=60, members=None, training=SHARED, spending=counts)
    assert (open_.members, open_.epochs, own.epochs) == (3, 60, 14)
    assert 54 < counts.epochs(joint) <= 60 * 1.005


def test_members_on_every_batch_are_counted_at_what_they_cost():
    counts = spending()
    assert counts.epochs(make("single", budget=10, training=SHARED)) == pytest.approx(10)
    assert counts.epochs(make("deep_ensemble", budget=10, members=2, training=SHARED)) == pytest.approx(10)
    assert counts.epochs(make("batch_ensemble", budget=10, members=4, training=SHARED)) > 40
    recipe = within("batch_ensemble", budget=60, members=4, training=SHARED, spending=counts)
    assert recipe.epochs < 15


def test_members_left_open_are_as_many_as_have_their_steps():
    counts = spending()
    few = within("deep_ensemble", budget=24, members=None, training=SHARED, spending=counts)
    assert (few.members, few.epochs) == (2, 24)
    assert not short(few.plan, POINTS)
    many = within("deep_ensemble", budget=60, members=None, training=SHARED, spending=counts)
    assert many.members == 4
    said = within("deep_ensemble", budget=24, members=4, training=SHARED, spending=counts)
    assert said.members == 4
    assert warning(said.plan, POINTS)
    assert not warning(few.plan, POINTS)


def test_what_is_stored_of_a_small_budget_is_what_fit_warned_of():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compare(build, (*[t[:300] for t in DATA], *[t[300:400] for t in DATA]), ["single"], budget=5)
    said = [str(w.message) for w in caught if "below what the method needs" in str(w.message)]
    assert said == [f"single: {found.settings['below']['single']}."]  # of the rows that are not held out


def test_a_budget_too_small_for_the_usual_members_gives_fewer_and_pairs_stay_pairs():
    assert within("deep_ensemble", budget=3, members=None, training=SHARED, spending=spending()).members == 3
    children = within("prune_and_tune", budget=30, members=None, training=SHARED, spending=spending())
    assert children.members in (2, 4, 6)
    with pytest.raises(InputError, match="too few for 4 members"):
        within("deep_ensemble", budget=1, members=None, training=SHARED, spending=spending())


def test_what_never_suffices_comes_as_near_as_it_can_and_is_said():
    recipe = within("deep_ensemble", budget=4, members=None, training=SHARED, spending=spending())
    assert recipe == deep_ensemble(budget=4, members=2, training=SHARED)
    assert "(budget=24)" in warning(recipe.plan, POINTS)
    few = Spending(build, (DATA[0][:221], DATA[1][:221]), {})
    chain = within("sequential_anchored", budget=60, members=None, training=SHARED, spending=few)
    assert chain.members == 5  # 16 members of 14 steps would all be unsettled: yacht's RMSE was 4 times one network's


@pytest.mark.parametrize("name", ["bnn", "bnn_sequential", "ssbnn", "sebays_freeze", "sebays_no_freeze"])
def test_a_method_keeps_the_optimizer_it_depends_on(name):
    (recipe,) = recipes_for([name], budget=60, members=None, training=SHARED)
    phase = trainings(recipe.plan)[0]
    assert isinstance(phase.optimizer, SGD)
    assert (phase.schedule.at(0.0), phase.batch_size) == (0.1, 32)
    own = sebays_freeze(budget=60, training=SHARED)
    assert recipes_for([own], budget=60, members=None, training=SHARED) == [own]


def test_the_others_share_theirs():
    for recipe in recipes_for(["single", "anchored", "packed"], budget=60, members=None, training=SHARED):
        assert isinstance(trainings(recipe.plan)[0].optimizer, Adam)


def test_a_comparison_says_what_was_equal_and_who_lacks_steps():
    whole = load_problem("wine")
    problem = Problem("wine", whole.x_train, whole.y_train, whole.x_test, whole.y_test)

    def small():
        return models.mlp(13, 3, hidden=(4,))

    found = compare(small, problem, ["single", "batch_ensemble"], budget=8, training=SHARED)
    assert found.settings["equal"] == "operations"
    assert set(found.settings["below"]) == {"single", "batch_ensemble"}
    assert [(row["members"], row["epochs"]) for row in found.rows] == [(1, 8), (2, 2)]
    by_epochs = compare(small, problem, ["batch_ensemble"], budget=2, equal="epochs", training=SHARED)
    assert by_epochs.rows[0]["epochs"] == 2
    with pytest.raises(InputError, match="equal is 'flops'"):
        compare(small, problem, ["single"], equal="flops")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ssbnn", "sebays_freeze", "sebays_no_freeze"])
def test_gated_methods_get_a_start_of_their_own_where_points_are_few(name):
    few, many = (within(name, budget=60, members=None, training=SHARED, points=n) for n in (FEW - 1, FEW))
    assert METHODS[name].for_few
    assert (
        few.describe()
        == make(name, budget=60, training=METHODS[name].trained(SHARED), **METHODS[name].for_few).describe()
    )
    assert many.describe() == make(name, budget=60, training=METHODS[name].trained(SHARED)).describe()
    unknown = within(name, budget=60, members=None, training=SHARED)
    assert unknown.describe() == many.describe()


def test_gates_stay_open_where_points_are_few():
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] - x[:, 1] > 0).long()
    recipe = within("ssbnn", budget=60, members=None, training=SHARED, points=len(x))
    ensemble = choral.fit(lambda: models.mlp(4, 2, hidden=(16, 16)), (x, y), recipe)
    assert ensemble.evaluate(x, y)["accuracy"] > 0.9
