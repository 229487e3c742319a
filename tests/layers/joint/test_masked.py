import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from choral.base.errors import InputError
from choral.layers.joint.layers import MaskedLayer, overlapping_masks


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 8), st.floats(1, 8), st.integers(0, 5))
def test_masks_have_equal_rows_and_use_every_channel(channels, members, scale, seed):
    masks = overlapping_masks(channels, members, scale=scale, generator=torch.Generator().manual_seed(seed))
    assert masks.shape == (members, channels)
    assert set(masks.flatten().tolist()) <= {0.0, 1.0}
    assert masks.sum(1).unique().numel() == 1
    assert (masks.sum(0) > 0).all()


def test_scale_sets_the_overlap():
    def overlap(scale):
        masks = overlapping_masks(1000, 4, scale=scale, generator=torch.Generator().manual_seed(0))
        return ((masks[0] * masks[1]).sum() / masks[0].sum()).item()

    assert overlap(1.0) == 1.0
    # two of M masks with m ones among m * scale places share a fraction 1 / scale
    assert overlap(2.0) == pytest.approx(1 / 2, abs=0.05)
    assert overlap(4.0) == pytest.approx(1 / 4, abs=0.05)


def test_layers_zero_what_is_out_of_the_mask():
    layer = MaskedLayer(nn.Conv2d(2, 10, 3).double(), members=3, scale=2.5)
    plain = nn.Conv2d(2, 10, 3).double()
    plain.load_state_dict({n: p for n, p in layer.state_dict().items() if n != "mask"})
    x = torch.randn(6, 2, 5, 5, dtype=torch.float64)
    wanted = plain(x).unflatten(0, (3, 2)) * layer.mask[:, None, :, None, None]
    torch.testing.assert_close(layer(x).unflatten(0, (3, 2)), wanted)
    own = {"mask": layer.mask[1]}
    torch.testing.assert_close(torch.func.functional_call(layer, own, (x,)), plain(x) * layer.mask[1][:, None, None])


def test_scales_below_one_are_refused():
    with pytest.raises(InputError, match="scale is"):
        overlapping_masks(4, 2, scale=0.5)
