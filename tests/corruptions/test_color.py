import colorsys

import numpy as np
import pytest

from choral.corruptions.functions import grey_of, in_channels, with_saturation, with_value_added


def pixels() -> np.ndarray:
    colors = np.random.default_rng(0).random((1, 20, 20, 3)).astype(np.float32)
    colors[0, 0, :4] = np.array([[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0]])
    return colors


@pytest.mark.parametrize("add", [0.05, 0.3])
def test_value_agrees_with_colorsys(add: float) -> None:
    images = pixels()
    got = with_value_added(images, add)
    for before, after in zip(images.reshape(-1, 3), got.reshape(-1, 3)):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, before))
        np.testing.assert_allclose(after, colorsys.hsv_to_rgb(hue, saturation, min(1.0, value + add)), atol=1e-5)


@pytest.mark.parametrize(("multiply", "add"), [(0.3, 0.0), (2.5, 0.2)])
def test_saturation_agrees_with_colorsys(multiply: float, add: float) -> None:
    images = pixels()
    got = with_saturation(images, multiply, add)
    for before, after in zip(images.reshape(-1, 3), got.reshape(-1, 3)):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, before))
        wanted = colorsys.hsv_to_rgb(hue, min(1.0, saturation * multiply + add), value)
        np.testing.assert_allclose(after, wanted, atol=1e-5)


def test_grey_and_colors_for_other_channel_counts() -> None:
    assert grey_of(np.array([[1.0, 0.0, 0.0]])) == pytest.approx(0.299)
    assert grey_of(np.array([[0.2, 0.4]])) == pytest.approx(0.3)
    assert in_channels(np.array([0.0, 1.0, 0.0]), 2).tolist() == pytest.approx([0.587, 0.587])
    assert in_channels(np.array([0.0, 1.0, 0.0]), 3).tolist() == [0.0, 1.0, 0.0]
    assert with_value_added(np.array([[0.25]], np.float32), 0.5).tolist() == [[0.75]]
