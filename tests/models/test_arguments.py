import pytest
from hypothesis import given
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.models import mlp, tabular
from choral.models.spec import blocks


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True, None])
def test_only_whole_numbers_are_counts(value):
    with pytest.raises(InputError, match=r"mlp: inputs=.* is not accepted; give a whole number of at least 1"):
        mlp(value, 1)


def test_a_count_that_is_zero_by_default_may_be_zero():
    tabular(1, 1, embedding="none", embedding_width=0)
    with pytest.raises(InputError, match=r"embedding_width=-1.*0"):
        tabular(1, 1, embedding="none", embedding_width=-1)


def test_several_counts_name_the_one_at_fault():
    mlp(1, 1, hidden=[3, 4])
    mlp(1, 1, hidden=())
    with pytest.raises(InputError, match=r"hidden\[1\]=0"):
        mlp(1, 1, hidden=(3, 0))
    with pytest.raises(InputError, match="hidden=50 is not accepted; give a tuple"):
        mlp(1, 1, hidden=50)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, float("nan"), "0.5", True, None])
def test_rates_are_below_one(value):
    with pytest.raises(InputError, match="dropout="):
        mlp(1, 1, dropout=value)


def test_choices_offer_the_nearest():
    with pytest.raises(InputError, match=r"norm='bach'.*'batch', 'layer', None\. Did you mean 'batch'"):
        mlp(1, 1, norm="bach")  # type: ignore[arg-type]  # wrong on purpose


@given(n=st.integers(1, 300), extra=st.sampled_from([2, 4]), off=st.integers(1, 5))
def test_depths_come_in_whole_blocks(n, extra, off):
    assert blocks(6 * n + extra, layers=6, extra=extra) == n
    with pytest.raises(InputError, match=r"the nearest such is \d+") as caught:
        blocks(6 * n + extra + off, layers=6, extra=extra)
    near = int(str(caught.value).rstrip(".").split()[-1])
    blocks(near, layers=6, extra=extra)
    assert abs(near - (6 * n + extra + off)) <= 3


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_depths_without_a_block_are_refused(depth):
    with pytest.raises(InputError, match="depth="):
        blocks(depth, layers=6, extra=2)
