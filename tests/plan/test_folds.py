"""Plans whose branches hold out a part of the points each."""

import pytest

from choral.base.errors import PlanError
from choral.base.values import from_dict
from choral.plan import Bag, Collect, Fork, Phase, Reset, Train, folds_of, fork, in_folds, problems, repeat, seq
from choral.plan.cost import begun
from choral.recipes import METHODS, make


def test_members_of_a_fork_hold_out_the_parts_in_turn() -> None:
    plan = in_folds(fork(6, Reset(), Train(epochs=2), Collect()), 3)
    assert folds_of(plan) == [0, 1, 2, 0, 1, 2]
    assert not problems(plan)
    assert from_dict(plan.to_dict()) == plan


def test_several_forks_one_after_the_other_go_on_counting() -> None:
    long, brief = (fork(n, Reset(), Train(epochs=n), Collect()) for n in (3, 5))
    assert folds_of(in_folds(seq(long, brief), 4)) == [0, 1, 2, 3, 0, 1, 2, 3]
    with pytest.raises(PlanError, match="8 members for 3 folds"):
        in_folds(seq(long, brief), 3)
    assert folds_of(make("deep_ensemble", budget=13, members=4).in_folds(2).plan) == [0, 1, 0, 1]


def test_any_other_plan_is_run_once_for_each_part_and_its_children_share_it() -> None:
    child = fork(2, Bag(), Train(epochs=1), Collect())
    plan = in_folds(seq(Reset(), Train(epochs=2), child), 3)
    assert isinstance(plan, Fork)
    assert folds_of(plan) == [0, 0, 1, 1, 2, 2]
    again = in_folds(seq(Reset(), repeat(2, Train(epochs=1), Collect())), 2)
    assert folds_of(again) == [0, 0, 1, 1]


@pytest.mark.parametrize("plan", [fork(2, fork(2, Reset(), Collect())), seq(Reset(), fork(2, Reset(), Collect()))])
def test_networks_started_within_two_forks_are_refused(plan: Phase) -> None:
    with pytest.raises(PlanError, match="instead of folds"):
        in_folds(plan, 2)


def test_as_many_members_hold_out_each_part() -> None:
    with pytest.raises(PlanError, match=r"5 members for 2.*2"):
        in_folds(fork(5, Reset(), Collect()), 2)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_folds(name: str) -> None:
    recipe = make(name)
    networks = begun(recipe.plan)
    folded = recipe.in_folds(networks if networks > 1 else 3)
    assert not folded.problems()
    assert None not in folds_of(folded.plan)
