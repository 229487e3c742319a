import pytest
import torch

from choral.plan import Bag, Boost, DrawMoments, Rewind, State, UpdateMoments, UseMean


class Place:
    points, branch = 1000, 0

    def __init__(self, seed=0):
        self.seed = seed

    def generator(self, purpose):
        return torch.Generator().manual_seed(self.seed)


def at(value):
    return State({"w": torch.full((2,), float(value))}, {})


def test_the_average_of_0_1_2_is_1():
    state = at(0)
    for value in (0, 1, 2):
        state = UpdateMoments(rank=2).apply(at(value).having(slots=state.slots), Place())
    assert UseMean().apply(state, Place()).params["w"].tolist() == [1.0, 1.0]
    assert state.slots["square"]["w"].tolist() == pytest.approx([5 / 3, 5 / 3])
    assert state.slots["deviations"]["w"].tolist() == [[0.5, 0.5], [1.0, 1.0]]


def test_draws_from_the_moments_have_their_mean_and_covariance():
    generator = torch.Generator().manual_seed(0)
    mix = torch.tensor([[1.0, 0.0], [0.8, 0.3]])
    state, points = at(0), torch.randn(400, 2, generator=generator) @ mix.T + torch.tensor([3.0, -1.0])
    for point in points:
        state = UpdateMoments(rank=400).apply(State({"w": point.clone()}, {}, state.slots), Place())
    drawn = torch.stack([DrawMoments().apply(state, Place(s)).params["w"] for s in range(4000)])
    mean, low = state.slots["mean"]["w"], state.slots["deviations"]["w"]
    covariance = 0.5 * (torch.diag(state.slots["square"]["w"] - mean**2) + low.T @ low / 399)
    assert torch.allclose(drawn.mean(0), mean, atol=0.06)
    assert torch.allclose(torch.cov(drawn.T), covariance, atol=0.08)


def test_a_bag_is_a_sorted_subset_without_repeats_or_a_bootstrap():
    subset = Bag(fraction=0.9).apply(at(0), Place()).slots["subset"]["indices"]
    assert len(subset) == len(set(subset.tolist())) == 900
    boot = Bag(fraction=1.0, replace=True).apply(at(0), Place()).slots["subset"]["indices"]
    assert len(boot) == 1000
    assert 600 < len(set(boot.tolist())) < 665  # 1 - 1/e of the points


class Judged(Place):
    """A place at which the points of a network cost what is written."""

    def __init__(self, losses, seed=0):
        super().__init__(seed)
        self.all = torch.tensor(losses)
        self.points = len(losses)

    def losses(self, state, points):
        return self.all[points]


def test_boosting_draws_points_in_proportion_to_one_and_the_fourth_power_of_the_times_they_were_hard():
    state = Boost().apply(at(0), Judged([0.1, 0.2, 9.0, 8.0]))
    assert state.slots["hard"]["times"].tolist() == [0, 0, 1, 1]  # above the mean of 4.3
    counts = torch.zeros(4)
    for seed in range(2000):
        again = Boost().apply(state, Judged([0.0, 5.0, 7.0, 0.0], seed))
        drawn = again.slots["subset"]["indices"]
        assert len(drawn) == 4
        counts += drawn.bincount(minlength=4)
    assert again.slots["hard"]["times"].tolist() == [0, 1, 2, 1]
    assert torch.allclose(counts / 8000, torch.tensor([1.0, 2.0, 17.0, 2.0]) / 22, atol=0.015)


def test_boosting_keeps_to_the_points_of_the_first_round():
    state = at(0).with_slots(subset={"indices": torch.tensor([1, 3, 4])})
    for seed in range(20):
        state = Boost().apply(state, Judged([0.0, 1.0, 50.0, 2.0, 9.0], seed))
        assert len(state.subset) == 3
        assert set(state.subset.tolist()) <= {1, 3, 4}
    assert state.slots["hard"]["times"].tolist() == [0, 0, 20]


def test_rounds_begin_again_with_the_first_network_and_keep_what_is_no_mask():
    state = Rewind().apply(at(1), Place())
    later = state.having(params=at(5).params).with_slots(mask={"w": torch.tensor([True, False])}, hard=at(2).params)
    again = Rewind().apply(later, Place())
    assert again.params["w"].tolist() == [1.0, 1.0]
    assert sorted(again.slots) == ["first", "hard"]
    masked = Rewind().apply(at(1).with_slots(mask={"w": torch.tensor([False, True])}), Place())
    assert Rewind().apply(masked.with_slots(mask={}), Place()).mask["w"].tolist() == [False, True]
