import pytest
from hypothesis import given
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.models.spec import blocks, choice, count, counts, rate


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True, None])
def test_only_whole_numbers_are_counts(value):
    with pytest.raises(InputError, match=r"classes=.* is not accepted"):
        count("classes", value)


def test_several_counts_name_the_one_at_fault():
    assert counts("hidden", [3, 4]) == (3, 4)
    assert counts("hidden", ()) == ()
    with pytest.raises(InputError, match=r"hidden\[1\]=0"):
        counts("hidden", (3, 0))
    with pytest.raises(InputError, match="hidden=50 is not accepted; give a tuple"):
        counts("hidden", 50)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, float("nan"), "0.5", True, None])
def test_rates_are_below_one(value):
    with pytest.raises(InputError, match="dropout="):
        rate("dropout", value)


def test_choices_offer_the_nearest():
    choice("norm", None, (None, "batch"))
    with pytest.raises(InputError, match=r"norm='bach' is not accepted.*Did you mean 'batch'"):
        choice("norm", "bach", (None, "batch"))
    with pytest.raises(InputError, match="size=5"):
        choice("size", 5, ("5", "S"))  # type: ignore[arg-type]  # wrong on purpose


@given(n=st.integers(1, 300), extra=st.sampled_from([2, 4]), off=st.integers(1, 5))
def test_depths_come_in_whole_blocks(n, extra, off):
    assert blocks("depth", 6 * n + extra, layers=6, extra=extra) == n
    with pytest.raises(InputError, match=r"the nearest such is \d+") as caught:
        blocks("depth", 6 * n + extra + off, layers=6, extra=extra)
    near = int(str(caught.value).rstrip(".").split()[-1])
    blocks("depth", near, layers=6, extra=extra)
    assert abs(near - (6 * n + extra + off)) <= 3


@pytest.mark.parametrize("depth", [0, 1, 2, 7, "20", 20.0])
def test_depths_without_a_block_are_refused(depth):
    with pytest.raises(InputError, match="depth="):
        blocks("depth", depth, layers=6, extra=2)
