"""Sequential baselines: where fast geometric ensembling starts, and at which rate it keeps members."""

import pytest
import torch

from choral import Compute
from choral.base.errors import InputError
from choral.fit import fit
from choral.plan import Reset
from choral.plan.walk import Visitor, trainings, walk
from choral.recipes import make
from choral.recipes.training import Training
from choral.testing.problems import CALM, PROBLEMS


def kept_at(recipe):
    """Where each member is kept: epochs of its own history, and the rate of its last step in 1,000."""
    found = []

    def train(phase, place, spent):
        return spent[0] + phase.epochs, phase.schedule.rate(999, 1000)

    def collect(phase, place, spent):
        found.append(spent)
        return spent

    walk(recipe.plan, (0, 0.0), Visitor(train=train, collect=collect))
    return found


def test_fge_keeps_the_papers_twelve_members_at_the_low_points_of_two_starts():
    found = kept_at(make("fge", training="paper"))
    assert [epochs for epochs, _ in found] == [start + low for start in (120, 156) for low in (2, 6, 10, 14, 18, 22)]
    assert [rate for _, rate in found] == pytest.approx([0.0005] * 12, rel=0.1)
    assert make("fge", training="paper").epochs == 156 + 22 + 22


def test_fge_trains_on_the_first_part_of_a_schedule_for_the_whole_budget():
    phases = trainings(make("fge", training="paper").plan)
    first, later = phases[0], next(p for p in phases if p.epochs == 36)
    assert first.schedule.at(0.5) == pytest.approx(0.1)  # epoch 60 of 200
    assert first.schedule.at(1.0) == later.schedule.at(0.0) == pytest.approx(0.1 - 0.099 * 0.1 / 0.4)  # epoch 120
    assert later.schedule.at(1.0) == pytest.approx(0.1 - 0.099 * 0.28 / 0.4)  # epoch 156
    assert later.memory == "carried"


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"epochs": 12}, [12]),
        ({"epochs": 24}, [17, 22]),
        ({"starts": 1}, list(range(160, 201, 4))),
        ({"members": 3}, [192, 196, 200]),
        ({"members": 4, "cycle": 2}, [149 + 1, 149 + 3, 194 + 1, 194 + 3]),
    ],
)
def test_fge_splits_other_budgets_the_same_way(options, epochs):
    assert [at for at, _ in kept_at(make("fge", **options))] == epochs


@pytest.mark.parametrize("schedule", ["linear_drop", "cosine", "steps"])
def test_horizontal_voting_keeps_the_last_epochs_of_one_schedule(schedule):
    training = Training(lr=0.1, optimizer="sgd", schedule=schedule)
    recipe = make("horizontal_voting", epochs=20, members=4, training=training)
    assert [at for at, _ in kept_at(recipe)] == [17, 18, 19, 20]
    phases = trainings(recipe.plan)
    assert [phase.memory for phase in phases] == ["fresh", "carried", "carried", "carried"]
    rates = [phase.schedule.rate(step, 5 * phase.epochs) for phase in phases for step in range(5 * phase.epochs)]
    assert rates == pytest.approx([training.full().rate(step, 100) for step in range(100)])
    with pytest.raises(InputError, match="3 epochs in all are too few for 4 members"):
        make("horizontal_voting", epochs=3, members=4)


def test_fge_refuses_what_cannot_be_split():
    with pytest.raises(InputError, match="2 and an even number"):
        make("fge", members=3, starts=2)
    with pytest.raises(InputError, match="give 1 start, or 2"):
        make("fge", starts=3)
    with pytest.raises(InputError, match=r"14 member\(s\) in cycles of 4, which need 52"):
        make("fge", members=14)


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 8, 13, 17])
def test_fge_goes_on_from_the_second_start_after_a_break(after, tmp_path):
    build, data = PROBLEMS["classification"]
    recipe = make("fge", budget=24, training=CALM)
    assert sum(isinstance(phase, Reset) for phase in recipe.plan.phases) == 1
    whole = [state.params for state in fit(build, data(), recipe, seed=2).states()]
    seen = 0

    def hear(event):
        nonlocal seen
        seen += event["kind"] == "epoch"
        if seen == after:
            raise Stop

    with pytest.raises(Stop):
        fit(build, data(), recipe, seed=2, run_dir=tmp_path, compute=Compute(checkpoint_seconds=0), callbacks=hear)
    again = fit(build, data(), recipe, seed=2, run_dir=tmp_path)
    for a, b in zip(whole, [state.params for state in again.states()]):
        assert all(torch.equal(a[n], b[n]) for n in a)
