import math

import pytest
import torch
from scipy.stats import kstest

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.plan.bayes import HMC, IID, Autoregressive, GaussianWalk, GuidedWalk
from choral.recipes.sequential_anchored import GUIDED

WALKS = [
    GuidedWalk(step_std=0.4, relative_step=True),
    GuidedWalk(step_std=0.5),
    GaussianWalk(step_std=1.0, relative_step=True),
    Autoregressive(correlation=0.8),
    HMC(step_std=0.9, relative_step=True, leapfrog_steps=2),
    HMC(step_std=1.9, relative_step=True, leapfrog_steps=1),
    IID(),
]
PRIOR_STD = 0.45


def start(walk, shape=(4000,), seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    like = {"a.weight": torch.zeros(shape, dtype=dtype), "b": torch.zeros(3, 2, dtype=dtype)}
    return *walk.start(like, PRIOR_STD, generator), generator


@pytest.mark.parametrize("walk", WALKS, ids=repr)
def test_the_prior_is_invariant(walk):
    anchor, memory, generator = start(walk)
    for _ in range(60):
        anchor, memory = walk.step(anchor, memory, PRIOR_STD, generator)
    assert kstest(anchor["a.weight"].numpy() / PRIOR_STD, "norm").pvalue > 0.005


@pytest.mark.parametrize("walk", WALKS, ids=repr)
def test_one_chain_thinned_passes_against_the_prior(walk):
    anchor, memory, generator = start(walk, shape=(8,), seed=3)
    kept = []
    for step in range(3000):
        anchor, memory = walk.step(anchor, memory, PRIOR_STD, generator)
        if step % 30 == 29:
            kept.append(anchor["a.weight"] / PRIOR_STD)
    assert kstest(torch.stack(kept).flatten().numpy(), "norm").pvalue > 0.005


@pytest.mark.parametrize("walk", WALKS, ids=repr)
def test_a_chain_forgets_a_start_far_from_the_prior(walk):
    anchor, memory, generator = start(walk)
    anchor = {name: torch.full_like(value, 2 * PRIOR_STD) for name, value in anchor.items()}
    for _ in range(150):
        anchor, memory = walk.step(anchor, memory, PRIOR_STD, generator)
    assert kstest(anchor["a.weight"].numpy() / PRIOR_STD, "norm").pvalue > 0.005


@pytest.mark.parametrize("walk", [GaussianWalk(step_std=0.7), GuidedWalk(step_std=0.7)], ids=repr)
def test_metropolis_accepts_as_often_as_theory_says(walk):
    # symmetric N(0, s^2) proposals on N(0, t^2) are accepted with probability 2/pi * atan(2 t / s)
    anchor, memory, generator = start(walk, shape=(40000,))
    moved, _ = walk.step(anchor, memory, PRIOR_STD, generator)
    rate = (moved["a.weight"] != anchor["a.weight"]).double().mean().item()
    expected = 2 / math.pi * math.atan(2 * PRIOR_STD / 0.7)
    assert abs(rate - expected) < 4 * (expected * (1 - expected) / 40000) ** 0.5


def test_the_default_walk_of_sequential_anchored_spans_the_prior_in_fifty_steps():
    anchor, memory, generator = start(GUIDED, shape=(20000,))
    moved = anchor
    for _ in range(50):
        moved, memory = GUIDED.step(moved, memory, PRIOR_STD, generator)
    assert abs(torch.corrcoef(torch.stack([anchor["a.weight"], moved["a.weight"]]))[0, 1]) < 0.4
    assert abs(moved["a.weight"].std().item() / PRIOR_STD - 1) < 0.03


@pytest.mark.parametrize(("size", "independent"), [(0.045, 1.24), (0.2, 4.6)])
def test_the_mean_of_51_anchors_varies_like_that_of_fewer_independent_ones(size, independent):
    """In a linear model it is the mean of the members, so a chain of short steps says less than two restarts."""
    walk = GuidedWalk(step_std=size, relative_step=True)
    anchor, memory, generator = start(walk, shape=(20000,))
    total = anchor["a.weight"].clone()
    for _ in range(50):
        anchor, memory = walk.step(anchor, memory, PRIOR_STD, generator)
        total += anchor["a.weight"]
    variance = (total / 51).var().item()
    assert PRIOR_STD**2 / variance == pytest.approx(independent, rel=0.05)


def test_a_guided_walk_never_rejects_uphill_and_turns_only_on_rejection():
    walk = GuidedWalk(step_std=0.02)
    anchor, memory, generator = start(walk, shape=(20000,))
    for _ in range(20):
        moved, directions = walk.step(anchor, memory, PRIOR_STD, generator)
        before, after = anchor["a.weight"], moved["a.weight"]
        rejected = before == after
        assert torch.equal(directions["a.weight"], torch.where(rejected, -1.0, 1.0) * memory["a.weight"])
        uphill = (before * memory["a.weight"] < 0) & (before.abs() > 6 * 0.02)  # the proposal stays on this side
        assert uphill.any()
        assert not rejected[uphill].any()
        assert ((after - before)[~rejected] * memory["a.weight"][~rejected] > 0).all()
        anchor, memory = moved, directions


def test_a_guided_walk_spans_the_prior_faster_than_a_plain_one():
    def distance(walk):
        anchor, memory, generator = start(walk)
        first = anchor["a.weight"]
        for _ in range(40):
            anchor, memory = walk.step(anchor, memory, PRIOR_STD, generator)
        return (anchor["a.weight"] - first).square().mean().sqrt()

    assert distance(GuidedWalk(step_std=0.02)) > 3 * distance(GaussianWalk(step_std=0.02))


@pytest.mark.parametrize(
    ("walk", "correlation"),
    [
        (Autoregressive(correlation=0.9), 0.9),
        (IID(), 0.0),
        (HMC(step_std=0.1, relative_step=True, leapfrog_steps=5), math.cos(0.5)),
        (HMC(step_std=0.1 * PRIOR_STD, leapfrog_steps=5), math.cos(0.5)),
    ],
    ids=repr,
)
def test_neighboring_anchors_correlate_as_theory_says(walk, correlation):
    anchor, memory, generator = start(walk, shape=(50000,))
    moved, _ = walk.step(anchor, memory, PRIOR_STD, generator)
    measured = (moved["a.weight"] * anchor["a.weight"]).mean().item() / PRIOR_STD**2
    assert abs(measured - correlation) < 0.025


@pytest.mark.parametrize("walk", WALKS, ids=repr)
def test_a_step_is_pure_resumable_and_keeps_names_shapes_and_types(walk):
    anchor, memory, generator = start(walk, dtype=torch.float32)
    copies = {n: v.clone() for n, v in anchor.items()}, {n: v.clone() for n, v in memory.items()}
    state = generator.get_state()
    first = walk.step(anchor, memory, PRIOR_STD, generator)
    assert all(torch.equal(anchor[n], copies[0][n]) for n in anchor)
    assert all(torch.equal(memory[n], copies[1][n]) for n in memory)
    again = walk.step(*copies, PRIOR_STD, torch.Generator().set_state(state))
    for one, two in zip(first, again):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[n], two[n]) for n in one)
    assert {n: (v.shape, v.dtype) for n, v in first[0].items()} == {n: (v.shape, v.dtype) for n, v in anchor.items()}
    assert from_dict(walk.to_dict()) == walk


def test_scalars_walk_independently():
    walk = GuidedWalk(step_std=0.5, relative_step=True)
    anchor, memory, generator = start(walk, shape=(2, 20000))
    moved, _ = walk.step(anchor, memory, PRIOR_STD, generator)
    change = moved["a.weight"] - anchor["a.weight"]
    assert abs(torch.corrcoef(change)[0, 1]) < 4 / 20000**0.5


def test_arguments_are_checked():
    for make in (
        lambda: GuidedWalk(step_std=0.0),
        lambda: GaussianWalk(step_std=-1.0),
        lambda: Autoregressive(correlation=1.0),
        lambda: HMC(leapfrog_steps=0),
        lambda: HMC(step_std=1.0).step({"w": torch.zeros(1)}, {}, 0.45, torch.Generator()),
    ):
        with pytest.raises(InputError):
            make()
