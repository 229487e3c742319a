"""ERK densities, magnitude masks and the drop-and-grow step, against slow references."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.masks import erk_densities, keep_vectors, magnitude_masks, random_masks, regrow

SEEDS = st.integers(0, 2**31)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@st.composite
def all_shapes(draw):
    sizes = st.integers(1, 12)
    ranks = draw(st.lists(st.sampled_from([2, 4]), min_size=1, max_size=6))
    return {f"layer{i}.weight": tuple(draw(sizes) for _ in range(rank)) for i, rank in enumerate(ranks)}


@given(shapes=all_shapes(), sparsity=st.floats(0, 1), seed=SEEDS)
def test_erk_keeps_exactly_the_wanted_number_of_weights(shapes, sparsity, seed):
    densities = erk_densities(shapes, sparsity=sparsity)
    assert all(0 <= d <= 1 for d in densities.values())
    masks = random_masks(shapes, generator(seed), density=densities)
    assert sum(int(m.sum()) for m in masks.values()) == round((1 - sparsity) * sum(map(math.prod, shapes.values())))


def test_erk_is_proportional_where_no_layer_is_full():
    shapes = {"conv": (64, 32, 3, 3), "deep": (128, 64, 3, 3), "fc": (400, 300)}
    densities = erk_densities(shapes, sparsity=0.9)
    scales = [densities[name] / (sum(shape) / math.prod(shape)) for name, shape in shapes.items()]
    assert max(scales) / min(scales) == pytest.approx(1, rel=1e-3)


def test_erk_leaves_small_layers_dense():
    densities = erk_densities({"first": (16, 3, 3, 3), "wide": (512, 512, 3, 3)}, sparsity=0.8)
    assert densities["first"] == 1.0
    assert densities["wide"] == pytest.approx(0.2, abs=1e-3)


@given(seed=SEEDS, share=st.floats(0, 1))
def test_magnitude_keeps_the_largest(seed, share):
    params = {"a": torch.randn(5, 7, generator=generator(seed)), "b": torch.randn(4, 3, generator=generator(seed + 1))}
    for name, mask in magnitude_masks(params, density=share).items():
        values = params[name].abs()
        assert int(mask.sum()) == round(share * values.numel())
        if 0 < mask.sum() < mask.numel():
            assert values[mask].min() >= values[~mask].max()
    masks = magnitude_masks(params, density=share, scope="global")
    flat = torch.cat([p.abs().flatten() for p in params.values()])
    chosen = torch.cat([m.flatten() for m in masks.values()])
    assert int(chosen.sum()) == round(share * flat.numel())
    if 0 < chosen.sum() < chosen.numel():
        assert flat[chosen].min() >= flat[~chosen].max()


def test_neurons_are_judged_by_their_mean_square_and_groups_together():
    a = torch.tensor([[1.0, 1.0], [3.0, 0.0], [0.0, 2.0], [0.1, 0.1]])  # mean squares 1, 4.5, 2, 0.01
    b = torch.tensor([[0.0], [0.0], [0.0], [9.0]])
    assert keep_vectors(magnitude_masks({"a.weight": a}, unit="neuron"))["a"].tolist() == [False, True, True, False]
    keep = keep_vectors(magnitude_masks({"a.weight": a, "b.weight": b}, unit="neuron", groups=[["a", "b"]]))
    # sums of squares over both layers 2, 9, 4, 81.02
    assert keep["a"].tolist() == keep["b"].tolist() == [False, True, False, True]


def test_global_neurons_never_empty_a_layer():
    params = {"strong.weight": torch.full((6, 2), 9.0), "weak.weight": torch.tensor([[0.1, 0.1], [0.2, 0.2]])}
    keep = keep_vectors(magnitude_masks(params, unit="neuron", scope="global"))
    assert keep["weak"].tolist() == [False, True]
    assert int(keep["strong"].sum()) == 3


def slow_regrow(mask, weight, appeal, rate):
    """One position at a time, with a list."""
    kept = [i for i in range(len(mask)) if mask[i]]
    free = [i for i in range(len(mask)) if not mask[i]]
    count = min(int(rate * len(kept)), len(free))
    dropped = sorted(kept, key=lambda i: (abs(weight[i]), i))[:count]
    grown = sorted(free, key=lambda i: (-abs(appeal[i]), i))[:count]
    return [(mask[i] and i not in dropped) or i in grown for i in range(len(mask))]


@given(seed=SEEDS, share=st.floats(0, 1), rate=st.floats(0, 1))
def test_regrow_by_gradient_equals_the_slow_reference(seed, share, rate):
    g = generator(seed)
    masks = random_masks({"a": (6, 7)}, g, density=share)
    weights = {"a": torch.randn(6, 7, generator=g) * masks["a"]}
    gradients = {"a": torch.randn(6, 7, generator=g)}
    new = regrow(masks, weights, gradients, rate=rate)["a"]
    expected = slow_regrow(
        masks["a"].flatten().tolist(), weights["a"].flatten().tolist(), gradients["a"].flatten().tolist(), rate
    )
    assert new.flatten().tolist() == expected
    assert new.sum() == masks["a"].sum()


@given(seed=SEEDS, share=st.floats(0, 1), rate=st.floats(0, 1))
def test_regrow_at_random_keeps_counts_and_never_revives_the_dropped(seed, share, rate):
    g = generator(seed)
    masks = random_masks({"a": (4, 5), "b": (3, 11)}, g, density=share)
    weights = {name: torch.randn(m.shape, generator=g) for name, m in masks.items()}
    new = regrow(masks, weights, rate=rate, generator=generator(seed))
    again = regrow(masks, weights, rate=rate, generator=generator(seed))
    for name, mask in masks.items():
        kept = int(mask.sum())
        replaced = min(int(rate * kept), mask.numel() - kept)
        assert int(new[name].sum()) == kept
        assert int((mask & ~new[name]).sum()) == int((new[name] & ~mask).sum()) == replaced
        lost, stayed = weights[name][mask & ~new[name]].abs(), weights[name][mask & new[name]].abs()
        assert not lost.numel() or not stayed.numel() or lost.max() <= stayed.min()
        assert torch.equal(new[name], again[name])


def test_random_growth_reaches_every_free_place_equally():
    masks, weights = {"a": torch.tensor([True] * 4 + [False] * 6)}, {"a": torch.arange(10.0)}
    g = generator(0)
    times = torch.stack([regrow(masks, weights, rate=0.5, generator=g)["a"] for _ in range(1500)]).float().mean(0)
    assert times[:4].tolist() == [0, 0, 1, 1]
    assert (times[4:] - 1 / 3).abs().max() < 0.06  # five binomial spreads


def test_regrow_asks_for_what_it_needs():
    masks, weights = {"a": torch.tensor([True, False])}, {"a": torch.zeros(2)}
    with pytest.raises(InputError, match="neither"):
        regrow(masks, weights, rate=0.5)
    with pytest.raises(InputError, match="rate is 2"):
        regrow(masks, weights, weights, rate=2)
