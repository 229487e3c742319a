"""The total distance of masks against values worked out by hand."""

import math

import pytest
import torch

from choral.masks import partition, random_masks, total_distance


def masks_of(*rows):
    return [{"a": torch.tensor(row[:2]).bool(), "b": torch.tensor(row[2:]).bool()} for row in rows]


def test_total_distance_by_hand():
    masks = masks_of([1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1])
    # Hamming distances 2, 4, 2; each pair is counted in both orders
    assert total_distance(masks) == pytest.approx(2 * (math.sqrt(2) + 2 + math.sqrt(2)))


def test_complements_are_further_apart_than_two_random_masks():
    g = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (40, 25)}
    pair = partition(shapes, g, members=2)
    assert total_distance(pair) == pytest.approx(2 * math.sqrt(1000))
    assert total_distance(pair) > total_distance([random_masks(shapes, g), random_masks(shapes, g)])
