import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import affine_transform, map_coordinates

from choral.corruptions.functions import (
    box_matrix,
    enlarge,
    line_blur,
    linear_matrix,
    pixel_scale,
    separable,
    warp,
    zoom_center,
)


def random_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape).astype(np.float32)


def test_warp_agrees_with_scipy() -> None:
    images = random_images(2, 9, 12, 3)
    generator = np.random.default_rng(1)
    y, x = generator.uniform(-6, 16, (2, 9, 12)), generator.uniform(-6, 18, (2, 9, 12))
    got = warp(images, y, x)
    for row in range(2):
        for channel in range(3):
            expected = map_coordinates(images[row, :, :, channel], [y[row], x[row]], order=1, mode="reflect")
            np.testing.assert_allclose(got[row, :, :, channel], expected, atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 1.13, 2.25])
def test_zoom_agrees_with_scipy(factor: float) -> None:
    images = random_images(2, 9, 12, 1)
    got = zoom_center(images, factor)
    center = np.array([4.0, 5.5])
    for row in range(2):
        expected = affine_transform(images[row, :, :, 0], np.eye(2) / factor, center - center / factor, order=1)
        np.testing.assert_allclose(got[row, :, :, 0], expected, atol=1e-5)


@pytest.mark.parametrize("new", [30, 28, 27, 24, 20, 1, 32])
def test_box_resize_agrees_with_pillow(new: int) -> None:
    image = np.random.default_rng(2).integers(0, 256, (32, 32), dtype=np.uint8)
    down, up = box_matrix(new, 32), box_matrix(32, new)
    small = Image.fromarray(image).resize((new, new), Image.Resampling.BOX)
    got = separable(image[None, :, :, None].astype(np.float32), down, down)
    assert np.abs(got[0, :, :, 0] - np.asarray(small)).max() <= 1
    back = np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    assert np.abs(separable(got, up, up)[0, :, :, 0] - back).max() <= 1


def test_enlarging_keeps_levels_and_size() -> None:
    layers = random_images(2, 4, 5)
    assert enlarge(layers, 4, 5) is layers
    assert enlarge(layers, 28, 35).mean() == pytest.approx(layers.mean(), abs=0.03)
    assert enlarge(np.ones((1, 3, 3)), 10, 7) == pytest.approx(1.0)
    rows = linear_matrix(np.array([-3.0, 0.5, 1.0, 9.0]), 3)
    np.testing.assert_allclose(rows, np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]]))


def test_line_blur_of_a_horizontal_step() -> None:
    images = np.zeros((1, 3, 20, 1), np.float32)
    images[0, :, 10:] = 1.0
    got = line_blur(images, np.zeros(1), radius=3, sigma=1.5)[0, 1, :, 0]
    weights = np.exp(-0.5 * (np.arange(7) / 1.5) ** 2)
    weights /= weights.sum()
    # The pixel d before the step sees it through the taps d, d + 1, ...
    expected = [weights[max(0, 10 - place) :].sum() for place in range(20)]
    np.testing.assert_allclose(got, expected, atol=1e-3)
    turned = line_blur(np.swapaxes(images, 1, 2), np.full(1, 90.0), radius=3, sigma=1.5)
    np.testing.assert_allclose(turned[0, :, 1, 0], expected, atol=1e-3)  # 90 degrees reads from below


def test_lengths_grow_with_larger_images_only() -> None:
    assert pixel_scale(np.empty((1, 8, 8, 1))) == 1.0
    assert pixel_scale(np.empty((1, 32, 64, 1))) == 1.0
    assert pixel_scale(np.empty((1, 224, 256, 3))) == 7.0
