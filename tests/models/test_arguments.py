import pytest
from hypothesis import given
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.models import lenet, mlp, resnext50
from choral.models.spec import blocks


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (mlp, {"inputs": 2.0, "outputs": 1}, "mlp: inputs is 2.0; give whole numbers"),
        (mlp, {"inputs": True, "outputs": 1}, "mlp: inputs is True"),
        (mlp, {"inputs": 1, "outputs": 1, "hidden": 50}, "mlp: hidden is 50"),
        (mlp, {"inputs": 1, "outputs": 1, "norm": "bach"}, "norm is 'bach'; give 'batch' or 'layer' or None"),
        (mlp, {"inputs": 1, "outputs": 1, "dropout": float("nan")}, "dropout=nan"),
        (lenet, {"size": "XL"}, "lenet: size is 'XL'"),
        (resnext50, {"group_width": 1.5}, "resnext50: group_width is 1.5"),
    ],
)
def test_arguments_are_checked_by_their_annotations(build, arguments, message):
    with pytest.raises(InputError, match=message):
        build(**arguments)


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
