"""The walk over plans: its order, what it carries, and places that know their branch."""

from tests.plan.written_out import written_out

from choral.base import rng
from choral.plan import Collect, Reset, Train, UseMean, fork, repeat, seq
from choral.plan.walk import Place, Visitor, first, once, trainings, walk

PLAN = seq(Reset(), fork(2, repeat(3, Train(epochs=1), Collect()), UseMean()), Train(epochs=7))


def test_a_walk_goes_in_the_order_of_the_run_with_repeats_and_branches_written_out():
    found = [(type(phase).__name__, str(place)) for phase, place in written_out(PLAN)]
    branch = [[("Train", f"1/f{i}/0/r{r}/0"), ("Collect", f"1/f{i}/0/r{r}/1")] for i in range(2) for r in range(3)]
    rounds = [step for pair in branch for step in pair]
    expected = [("Reset", "0"), *rounds[:6], ("UseMean", "1/f0/1"), *rounds[6:], ("UseMean", "1/f1/1"), ("Train", "2")]
    assert found == expected
    assert [phase.epochs for phase in trainings(PLAN)] == [1] * 6 + [7]


def test_what_is_carried_goes_through_repeats_but_not_out_of_forks():
    seen = []

    def train(phase, place, carried):
        seen.append(carried)
        return carried + 1

    assert walk(PLAN, 10, Visitor(train=train)) == 11
    assert seen == [10, 11, 12, 10, 11, 12, 10]


def test_combinators_are_entered_and_can_be_shortened():
    found = []
    visitor = Visitor(
        enter=lambda node, place: found.append(f"{type(node).__name__} {place}"),
        train=lambda phase, place, _: found.append(str(place)),
        rounds=once,
        branches=first,
    )
    walk(PLAN, None, visitor)
    inner = ["Seq 1/f0", "Repeat 1/f0/0", "Seq 1/f0/0/r0", "1/f0/0/r0/0"]
    assert found == ["Seq start", "Fork 1", *inner, "2"]


def test_a_place_knows_its_branch_its_siblings_and_what_is_below_it():
    outer = Place().then("seq", 1).then("fork", 3)
    inner = outer.then("seq", 0).then("fork", 12).then("every", 0).then("after", 40)
    assert (inner.branch, Place().then("seq", 5).branch) == (12, 0)
    assert str(inner.siblings) == "1/f3/0/every0/40"
    rounds = outer.then("repeat", 2).then("seq", 1)
    assert (inner.turn, rounds.turn, rounds.branch, Place().then("seq", 5).turn) == (12, 2, 3, 0)
    assert str(rounds.siblings) == "1/f3/1"
    assert outer.holds(inner)
    assert not outer.holds(Place().then("seq", 1).then("fork", 30))
    assert Place.from_list(inner.to_list()) == inner


def test_words_of_a_place_seed_what_they_always_did():
    place = Place().then("seq", 0).then("repeat", 2).then("fork", 3)
    assert rng.key(7, *place.words) == rng.key(7, 0, "r2", "f3")
