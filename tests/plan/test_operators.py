import pytest
import torch

from choral.plan import Bag, DrawMoments, State, UpdateMoments, UseMean


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
