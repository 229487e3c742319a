"""Drawn values are kept by key, step, site and source, within their bytes."""

import pytest
import torch
from torch import nn

from choral.base import draws
from choral.base.draws import Kept, under
from choral.layers.bayesian.sampling import remembered
from choral.layers.keyed import keyed

WEIGHT = nn.Parameter(torch.zeros(4), requires_grad=False)


def noisy(source=WEIGHT):
    return remembered(source, lambda: source + draws.normal(source.shape, like=source))


def drawn(kept, key=1, step=0, source=WEIGHT):
    with under(kept=kept), keyed(key, step):
        return noisy(source), noisy(source), draws.uniform((2,), like=source)


@pytest.mark.parametrize(("key", "step"), [(1, 0), (1, 5), (2, 0)])
def test_what_is_kept_is_what_would_be_drawn(key, step):
    kept = Kept(1000)
    fresh = drawn(None, key, step)
    first, again = drawn(kept, key, step), drawn(kept, key, step)
    assert all(torch.equal(a, b) for a, b in zip(fresh, first))
    assert all(torch.equal(a, b) for a, b in zip(fresh, again))  # also what comes after: sites are passed over
    assert again[0] is first[0]


def test_another_tensor_at_the_same_site_is_drawn_anew():
    kept, other = Kept(1000), nn.Parameter(torch.ones(4), requires_grad=False)
    drawn(kept)
    assert all(torch.equal(a, b) for a, b in zip(drawn(kept, source=other), drawn(None, source=other)))


def test_no_more_bytes_are_kept_than_allowed():
    kept = Kept(20)  # one value of four floats, not two
    whole = drawn(None)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(drawn(kept), whole))
    assert kept.bytes == 16


def test_parts_of_tensors_and_mapped_draws_are_not_kept():
    kept, stacked = Kept(1000), torch.zeros(3, 4)
    drawn(kept, source=stacked[0])
    with under(kept=kept):

        def one(words):
            with keyed(words, 0):
                return noisy()

        torch.func.vmap(one)(draws.words(1, 2))
    assert kept.bytes == 0
