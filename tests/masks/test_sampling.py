"""Random, anti-random and partition masks: exact counts, disjoint and covering, decided by the seed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.masks import keep_vectors, partition, random_masks

UNITS = st.sampled_from(["connection", "neuron"])
SCOPES = st.sampled_from(["layer", "global"])
SEEDS = st.integers(0, 2**31)


@st.composite
def all_shapes(draw, least_rows=1):
    ranks = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=4))
    sizes = st.integers(1, 6)
    return {
        f"layer{i}.weight": (draw(st.integers(least_rows, 9)), *(draw(sizes) for _ in range(rank - 1)))
        for i, rank in enumerate(ranks)
    }


def generator(seed):
    return torch.Generator().manual_seed(seed)


def kept(masks):
    return {name: int(mask.sum()) for name, mask in masks.items()}


def rows_kept(masks):
    return {name: int(vector.sum()) for name, vector in keep_vectors(masks).items()}


def assert_whole_rows(masks):
    for mask in masks.values():
        flat = mask.flatten(1)
        assert torch.equal(flat.any(1), flat.all(1))


@given(shapes=all_shapes(), share=st.floats(0, 1), seed=SEEDS)
def test_connection_counts_are_exact_in_every_layer(shapes, share, seed):
    masks = random_masks(shapes, generator(seed), density=share)
    assert {n: m.shape for n, m in masks.items()} == {n: torch.Size(s) for n, s in shapes.items()}
    assert kept(masks) == {name: round(share * math.prod(shape)) for name, shape in shapes.items()}


@given(shapes=all_shapes(), share=st.floats(0, 1), seed=SEEDS)
def test_connection_count_is_exact_over_all_layers(shapes, share, seed):
    masks = random_masks(shapes, generator(seed), density=share, scope="global")
    assert sum(kept(masks).values()) == round(share * sum(math.prod(s) for s in shapes.values()))


@given(shapes=all_shapes(), share=st.floats(0, 1), seed=SEEDS)
def test_neuron_counts_are_exact_and_no_layer_is_emptied(shapes, share, seed):
    masks = random_masks(shapes, generator(seed), density=share, unit="neuron")
    assert_whole_rows(masks)
    wanted = {name: max(1, round(share * shape[0])) for name, shape in shapes.items()}
    assert rows_kept(masks) == {name.removesuffix(".weight"): count for name, count in wanted.items()}


@given(shapes=all_shapes(), share=st.floats(0, 1), seed=SEEDS)
def test_global_neuron_count_is_exact_and_no_layer_is_emptied(shapes, share, seed):
    masks = random_masks(shapes, generator(seed), density=share, unit="neuron", scope="global")
    assert_whole_rows(masks)
    rows = rows_kept(masks)
    assert min(rows.values()) >= 1
    assert sum(rows.values()) == max(len(shapes), round(share * sum(s[0] for s in shapes.values())))


@given(shapes=all_shapes(least_rows=4), members=st.integers(1, 4), unit=UNITS, scope=SCOPES, seed=SEEDS)
def test_partition_is_disjoint_covering_and_even(shapes, members, unit, scope, seed):
    parts = partition(shapes, generator(seed), members=members, unit=unit, scope=scope)
    assert len(parts) == members
    for name in shapes:
        assert bool((torch.stack([p[name] for p in parts]).sum(0) == 1).all())
    counts = [kept(p) if unit == "connection" else rows_kept(p) for p in parts]
    totals = [sum(c.values()) for c in counts]
    assert max(totals) - min(totals) <= 1
    if scope == "layer":
        for name in counts[0]:
            sizes = [c[name] for c in counts]
            assert max(sizes) - min(sizes) <= 1
    if unit == "neuron":
        assert min(min(c.values()) for c in counts) >= 1
        for p in parts:
            assert_whole_rows(p)


@given(shapes=all_shapes(least_rows=2), unit=UNITS, scope=SCOPES, seed=SEEDS)
def test_anti_random_pair_is_a_half_and_its_complement(shapes, unit, scope, seed):
    one, other = partition(shapes, generator(seed), members=2, unit=unit, scope=scope)
    for name in shapes:
        assert torch.equal(other[name], ~one[name])
    size = sum(math.prod(s) if unit == "connection" else s[0] for s in shapes.values())
    total = sum((kept(one) if unit == "connection" else rows_kept(one)).values())
    assert total in (size // 2, size - size // 2)


@given(shapes=all_shapes(least_rows=3), unit=UNITS, scope=SCOPES, seed=SEEDS)
def test_the_seed_decides(shapes, unit, scope, seed):
    for make in (
        lambda g: [random_masks(shapes, g, unit=unit, scope=scope)],
        lambda g: partition(shapes, g, members=3, unit=unit, scope=scope),
    ):
        for one, other in zip(make(generator(seed)), make(generator(seed)), strict=True):
            assert all(torch.equal(one[name], other[name]) for name in shapes)


def test_another_seed_draws_other_masks():
    shapes = {"a.weight": (20, 20)}
    for make in (random_masks, lambda s, g: partition(s, g, members=2)[0]):
        assert not torch.equal(make(shapes, generator(0))["a.weight"], make(shapes, generator(1))["a.weight"])


@pytest.mark.parametrize("unit", ["connection", "neuron"])
def test_every_cell_is_kept_equally_often(unit):
    shapes, g, draws = {"a.weight": (6, 2)}, generator(3), 2000
    drawn = [random_masks(shapes, g, density=1 / 3, unit=unit)["a.weight"] for _ in range(draws)]
    # binomial spread of a share of 1/3 over 2000 draws is 0.0105: five of them
    assert (torch.stack(drawn).float().mean(0) - 1 / 3).abs().max() < 0.053


def test_density_by_name():
    masks = random_masks({"a": (4, 5), "b": (10, 10)}, generator(0), density={"a": 0.1, "b": 0.75})
    assert kept(masks) == {"a": 2, "b": 75}


@given(seed=SEEDS, scope=SCOPES)
def test_tied_layers_keep_the_same_neurons(seed, scope):
    shapes = {"stem.weight": (8, 3, 3, 3), "inner.weight": (8, 8, 3, 3), "out.weight": (8, 8, 3, 3)}
    groups = [["stem", "out", "not_pruned"]]
    for masks in (
        random_masks(shapes, generator(seed), unit="neuron", scope=scope, groups=groups),
        *partition(shapes, generator(seed), members=3, unit="neuron", scope=scope, groups=groups),
    ):
        keep = keep_vectors(masks)
        assert torch.equal(keep["stem"], keep["out"])
    halves = random_masks(shapes, generator(seed), unit="neuron", groups=groups)
    assert all(2 * count == math.prod(shapes[name]) for name, count in kept(halves).items())


@settings(max_examples=20)
@given(seed=SEEDS)
def test_ties_leave_other_layers_free(seed):
    shapes = {"a.weight": (64, 2), "b.weight": (64, 2), "c.weight": (64, 2)}
    keep = keep_vectors(random_masks(shapes, generator(seed), unit="neuron", groups=[["a", "c"]]))
    assert torch.equal(keep["a"], keep["c"])
    assert not torch.equal(keep["a"], keep["b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "filter"}, "unit is 'filter'"),
        ({"scope": "network"}, "scope is 'network'"),
        ({"density": 1.5}, "density=1.5"),
        ({"unit": "neuron", "groups": [["a"], ["a"]]}, "one group only"),
    ],
)
def test_wrong_choices_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        random_masks({"a.weight": (2, 3), "b.weight": (4, 3)}, generator(0), **options)


def test_too_few_neurons_to_share_out_are_refused():
    with pytest.raises(InputError, match=r"a\.weight \(2\)"):
        partition({"a.weight": (2, 3)}, generator(0), members=3, unit="neuron")
    with pytest.raises(InputError, match="members is 0"):
        partition({"a.weight": (2, 3)}, generator(0), members=0)


@given(shapes=all_shapes(), share=st.floats(0, 1), seed=SEEDS)
def test_layers_are_kept_or_removed_whole_and_groups_together(shapes, share, seed):
    tied = [list(shapes)[:2]]
    masks = random_masks(shapes, generator(seed), density=share, unit="layer", scope="global", groups=tied)
    assert all(bool(m.all()) or not bool(m.any()) for m in masks.values())
    assert len({bool(masks[name].all()) for name in tied[0]}) == 1
    apart = [name for name in shapes if name not in tied[0][1:]]
    assert sum(bool(masks[name].all()) for name in apart) == round(share * len(apart))
    one, other = partition(shapes, generator(seed), members=2, unit="layer", scope="global", groups=tied)
    assert all(torch.equal(one[name], ~other[name]) for name in shapes)
