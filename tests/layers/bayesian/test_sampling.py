import pytest
import torch
from torch import nn

from choral.base import draws
from choral.base.draws import now
from choral.layers.bayesian.sampling import GaussianLayer, at_means, draw
from choral.layers.keyed import keyed
from choral.objectives.kl import std_of


def test_mean_mode_nests_and_ends_with_its_block():
    assert not now().means
    with at_means():
        with at_means():
            pass
        assert now().means
    with pytest.raises(KeyError), at_means():
        raise KeyError
    assert not now().means


def test_a_draw_is_the_mean_plus_scaled_noise():
    mean, rho = torch.randn(4, 3), torch.randn(4, 3)
    with keyed(3):
        value = draw(mean, rho)
    with keyed(3):
        torch.testing.assert_close(value, mean + std_of(rho) * draws.normal((4, 3), like=mean))
    assert draw(None, None) is None
    with at_means():
        assert draw(mean, rho) is mean


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 2, (1, 2), "valid", "same"])
def test_a_layer_at_its_means_does_what_its_plain_layer_does(mode, padding):
    layer = nn.Conv2d(2, 4, (3, 5), padding=padding, dilation=(2, 1), groups=2, padding_mode=mode)
    sampled, x = GaussianLayer(layer, keep_weights=True), torch.randn(3, 2, 7, 8)
    with at_means():
        torch.testing.assert_close(sampled(x), layer(x))
    twin = sampled.plain()
    assert repr(twin) == repr(layer)
    torch.testing.assert_close(twin(x), layer(x))
