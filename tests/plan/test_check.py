import pytest

from choral.base.errors import InputError
from choral.plan import (
    Collect,
    DrawMoments,
    Fold,
    Reset,
    Train,
    UpdateMoments,
    UseMean,
    cost,
    every,
    fork,
    problems,
    repeat,
    seq,
)
from choral.plan.show import lines


def test_every_problem_is_in_one_message():
    plan = seq(
        Train(epochs=1),
        UseMean(),
        fork(2, Collect()),
        Train(epochs=1, every=(every(1, DrawMoments()),)),
    )
    text = "; ".join(problems(plan, penalty_slots=("anchor",)))
    for part in ("seq[0] Train: there are no weights", "'mean'", "every: DrawMoments needs", "'anchor'"):
        assert part in text


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Train(epochs=-1), "epochs is -1"),
        (lambda: Train(epochs=1, batch_size=-1), "batch_size is -1"),
        (lambda: repeat(-1, Collect()), "times is -1"),
        (lambda: fork(0, Collect()), "branches is 0"),
        (lambda: fork(3, Collect(), variants=[{"rate": 1.0}]), "3 branches and 1 variants"),
        (lambda: fork(Collect(), variants=[{"rate": 1.0}, {"dropout": 0.1}]), "do not all set the same: dropout, rate"),
        (lambda: Fold(folds=1), "2 or more"),
    ],
)
def test_numbers_out_of_range_are_refused_when_a_phase_is_made(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_slots_given_inside_a_fork_do_not_leak_out():
    inner = Train(epochs=1, every=(every(1, UpdateMoments()),))
    assert problems(seq(Reset(), fork(2, inner, UseMean(), Collect()))) == []
    assert "needs the slot 'mean'" in problems(seq(Reset(), fork(2, inner, Collect()), UseMean()))[0]


def test_cost_multiplies_through_repeats_and_forks():
    plan = seq(Reset(), Train(epochs=5), fork(3, repeat(2, Train(epochs=2), Collect())))
    assert (cost(plan).epochs, cost(plan).networks, cost(plan).phases) == (17, 6, 7)


def test_the_shown_tree_has_a_line_for_every_phase():
    text = "\n".join(lines(seq(Reset(), fork(3, Train(epochs=2), Collect()))))
    assert "fork into 3" in text
    assert "Train 2 epochs" in text
    assert "6 epochs" in text


def test_operators_during_training_need_a_count_and_a_part_of_the_phase():
    with pytest.raises(InputError, match="count is 0"):
        every(0, DrawMoments())
    with pytest.raises(InputError, match=r"start is 1.5"):
        every(1, DrawMoments(), start=1.5)
