"""Where channels are after a reshape, against the reshape itself."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.compaction.rules import moved
from choral.compaction.tracer import Channels, Units


def factorings(number):
    """All ways to write a number as an ordered product of up to four factors."""
    if number == 1:
        return [()]
    return [(d, *rest) for d in range(2, number + 1) if number % d == 0 for rest in factorings(number // d)]


@st.composite
def reshapes(draw):
    before = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    after = list(draw(st.sampled_from(factorings(torch.Size(before).numel()))))
    for _ in range(draw(st.integers(0, 2))):
        after.insert(draw(st.integers(0, len(after))), 1)
    return before, draw(st.integers(0, len(before) - 1)), tuple(after)


@settings(deadline=None, derandomize=True, max_examples=400)
@given(reshapes())
def test_channels_after_a_reshape_are_where_the_values_are(case):
    before, axis, after = case
    count = before[axis]
    view = [-1 if i == axis else 1 for i in range(len(before))]
    values = torch.arange(count).view(view).expand(before)  # every element holds its channel
    result = values.reshape(after)
    channels = Channels(axis, torch.arange(count), torch.zeros(count))
    known = moved(channels, torch.zeros(before), lambda t: t.reshape(after))
    if known is not None:
        assert torch.equal(
            known.units.view([-1 if i == known.axis else 1 for i in range(len(after))]).expand(after), result
        )
    elif count > 1:
        # no single axis tells the channel: along each one, other places see other channels
        for i, size in enumerate(after):
            rows = result.movedim(i, 0).reshape(size, -1)
            assert not bool((rows == rows[:, :1]).all())


def test_ties_are_transitive_and_locks_are_kept():
    units = Units()
    a, b, c = (units.fresh(3) for _ in range(3))
    units.tie(a, b)
    units.tie(b[:2], c[1:])
    roots = units.roots()
    assert roots[a].tolist() == roots[b].tolist()
    free, *tied = roots[c].tolist()
    assert tied == roots[a[:2]].tolist()
    assert free not in roots[a]
    units.lock(c[1:])
    (locked,) = units.locks
    assert locked.tolist() == c[1:].tolist()
