"""Which part of the points a fold holds out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.data.sources import source_of
from choral.data.splitting import held_out, partition


@given(points=st.integers(4, 60), parts=st.integers(2, 4), classes=st.integers(1, 4), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_parts_and_their_classes_differ_by_one_point_at_most(points: int, parts: int, classes: int, seed: int) -> None:
    labels = torch.randint(0, classes, (points,), generator=torch.Generator().manual_seed(seed))
    found = partition(source_of((torch.randn(points, 2), labels)), parts, seed)
    sizes = found.bincount(minlength=parts)
    assert int(sizes.max() - sizes.min()) <= 1
    for label in labels.unique():
        own = found[labels == label].bincount(minlength=parts)
        assert int(own.max() - own.min()) <= 2  # a class may begin and end within a round


def test_numbers_are_spread_over_the_parts_and_the_seed_decides() -> None:
    y = torch.linspace(0, 1, 40)[torch.randperm(40, generator=torch.Generator().manual_seed(1))]
    source = source_of((torch.randn(40, 2), y))
    found = partition(source, 4, 0)
    assert max(abs(float(y[found == k].mean()) - 0.5) for k in range(4)) < 0.05
    assert torch.equal(found, partition(source, 4, 0))
    assert not torch.equal(found, partition(source, 4, 1))


def test_groups_stay_together_and_parts_are_about_equal() -> None:
    groups = np.repeat([f"p{i}" for i in range(12)], [9, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    source = source_of((torch.randn(40, 2), torch.randn(40))).grouped(groups)
    found = partition(source, 3, 0)
    assert all(len(found[torch.as_tensor(groups == g)].unique()) == 1 for g in set(groups))
    assert int(found.bincount().max() - found.bincount().min()) <= 3
    lighter = source.weighing(np.where(groups == "p0", 0.0, 1.0))  # points of no weight leave, with their group
    assert len(partition(lighter, 3, 0)) == 31
    with pytest.raises(InputError, match="4 for 2 groups"):
        partition(source_of((torch.randn(4, 2), torch.randn(4))).grouped([1, 1, 2, 2]), 4, 0)
    with pytest.raises(InputError, match="one value for each point"):
        source.grouped([1, 2])


def test_more_folds_than_points_are_refused() -> None:
    with pytest.raises(InputError, match="folds is 5 for 3 points"):
        partition(source_of((torch.randn(3, 2), torch.randn(3))), 5, 0)


def test_copies_of_a_row_stay_in_one_part_and_distinct_tables_are_parted_as_before() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=g), torch.randn(40, generator=g)
    copies = torch.arange(320) % 40
    found = partition(source_of((x[copies], y[copies])), 5, 0)
    assert all(len(found[copies == k].unique()) == 1 for k in range(40))
    trained, held = held_out(source_of((x[copies], y[copies])), 0.2, 0)
    assert not set(copies[trained].tolist()) & set(copies[held].tolist())
    assert len(trained) + len(held) == 320
    few = torch.randint(0, 2, (200, 2), generator=g)  # four distinct inputs, each with both labels: no copies
    counted = partition(source_of((few, torch.randint(0, 2, (200,), generator=g))), 5, 0).bincount()
    assert counted.tolist() == [40] * 5
