import numpy as np
import pytest

from choral.base.errors import InputError
from choral.data.splitting import Seen, split, split_by_group, split_by_time


def test_rows_are_told_from_strange_ones():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4000, 3)).astype(np.float32), rng.integers(0, 2, 4000)
    seen = Seen.of(x[:2000], y[:2000])
    assert seen.find(x[:2000], y[:2000]).all()
    assert seen.find(x[2000:], y[2000:]).sum() <= 1
    assert not seen.find(x[:50], 1 - y[:50]).any()  # the target is a part of the row
    assert Seen.of(x[:1], y[:1]).find(x[:2], y[:2]).tolist() == [True, False]


def test_groups_stay_together_and_about_the_share_is_held_out():
    names = [f"g{i % 40}" for i in range(1000)]
    train, test = split_by_group(np.array(names), 0.25, seed=0)
    assert not {names[i] for i in train} & {names[i] for i in test}
    assert len(test) == 250
    other, _ = split_by_group(np.array(names), 0.25, seed=1)
    assert list(other) != list(train)
    train, test = split_by_group(np.array(["a", "b"] * 5), 0.9, seed=0)
    assert len(train) == len(test) == 5
    with pytest.raises(InputError, match="a single group"):
        split_by_group(np.array(["a"] * 5), 0.5, seed=0)


def test_the_last_rows_in_time_are_held_out_whatever_their_order():
    days = np.random.default_rng(0).permutation(56) % 28
    train, test = split_by_time(days, 0.25)
    assert max(days[i] for i in train) < min(days[i] for i in test)  # a day is on one side only
    assert len(test) == 14
    train, test = split_by_time(np.full(8, 5.0), 0.25)  # no day comes after another
    assert (len(train), len(test)) == (6, 2)


def test_too_few_rows_are_refused():
    for rows in (0, 1, 2):
        with pytest.raises(InputError, match="at least 3"):
            split(rows, 0.5, 0)
    assert [len(part) for part in split(3, 0.9, 0)] == [2, 1]
