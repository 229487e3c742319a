import numpy as np
import pytest
from scipy.ndimage import convolve, gaussian_filter

from choral.corruptions import corrupt, functions
from choral.corruptions.functions import RowDraws


def point(side: int = 32) -> np.ndarray:
    images = np.zeros((1, side, side, 1), np.float32)
    images[0, side // 2, side // 2] = 1.0
    return images


@pytest.mark.parametrize(("severity", "sigma"), list(enumerate((0.4, 0.6, 0.7, 0.8, 1.0), start=1)))
def test_gaussian_blur_is_scipys_filter_of_each_plane(severity: int, sigma: float) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    got = corrupt(images, "gaussian_blur", severity=severity)
    for row in range(3):
        for channel in range(3):
            plane = gaussian_filter(images[row, :, :, channel] / 255.0, sigma, mode="nearest")
            assert np.abs(got[row, :, :, channel] - 255 * plane).max() <= 0.51


def test_defocus_spreads_a_point_over_the_published_disks() -> None:
    draws = RowDraws(0, "defocus_blur", range(1))
    square = functions.defocus_blur(point(), 5, draws)[0, 13:20, 13:20, 0]  # radius 1.5 is a block of 3 x 3
    expected = np.zeros((7, 7))
    expected[2:5, 2:5] = 1 / 9
    np.testing.assert_allclose(square, expected, atol=1e-6)
    plus = functions.defocus_blur(point(), 4, draws)[0, 14:19, 14:19, 0]  # radius 1 is a plus
    assert plus[2, 2] == pytest.approx(0.2, abs=1e-4)
    assert plus[1, 2] == pytest.approx(0.2, abs=1e-4)
    assert plus[1, 1] < 1e-4
    mild = functions.defocus_blur(point(), 1, draws)[0, 15:18, 15:18, 0]  # one pixel, smoothed by a 3 x 3 Gaussian
    line = np.exp(-0.5 * (np.array([-1, 0, 1]) / 0.4) ** 2)
    np.testing.assert_allclose(mild, np.outer(line, line) / line.sum() ** 2, atol=1e-6)


def test_wide_kernels_take_the_same_path_through_frequencies() -> None:
    images = np.random.default_rng(1).random((2, 40, 30, 3)).astype(np.float32)
    kernel = functions._disk(6.0, 1.0, reach=2)
    assert len(kernel) > 9
    expected = convolve(images, kernel[None, :, :, None], mode="mirror")
    np.testing.assert_allclose(functions._convolve(images, kernel), expected, atol=1e-5)


def test_motion_blur_smears_a_point_along_one_line_to_one_side() -> None:
    images = np.repeat(point(), 50, 0)
    smeared = functions.motion_blur(images, 3, RowDraws(0, "motion_blur", range(50)))[..., 0]
    np.testing.assert_allclose(smeared.sum((1, 2)), 1.0, atol=1e-3)
    head = 1 / np.exp(-0.5 * (np.arange(13) / 2.0) ** 2).sum()
    angles = []
    for row in smeared:
        y, x = np.nonzero(row > 1e-3)
        assert row[16, 16] == pytest.approx(head, abs=1e-3)
        assert (x <= 16).all()  # pixels are read from the right, so the point spreads to the left
        mass_y, mass_x = (row * (np.arange(32)[:, None] - 16)).sum(), (row * (np.arange(32)[None] - 16)).sum()
        angles.append(np.rad2deg(np.arctan2(mass_y, -mass_x)))
        assert len(y) > 4
    assert np.abs(angles).max() < 50
    assert np.std(angles) > 15  # uniform in [-45, 45] has 26
    along = np.sort(smeared[np.argmin(np.abs(angles)), 16])[::-1][:4]
    np.testing.assert_allclose(along / along[0], np.exp(-0.5 * (np.arange(4) / 2.0) ** 2), atol=0.01)


def test_glass_takes_each_pixel_from_a_neighbor() -> None:
    # Every pixel has its own value, and at severity 1 the Gaussian is too narrow to change anything.
    images = np.arange(32 * 32, dtype=np.float32).reshape(1, 32, 32, 1) / 1024
    got = np.rint(1024 * functions.glass_blur(images, 1, RowDraws(0, "glass_blur", range(1)))[0, :, :, 0]).astype(int)
    dy, dx = got // 32 - np.arange(32)[:, None], got % 32 - np.arange(32)[None]
    assert set(dy[1:, 1:].ravel()) == {-1, 0}
    assert set(dx[1:, 1:].ravel()) == {-1, 0}
    assert (dy[1:, 1:] == 0).mean() == pytest.approx(0.5, abs=0.06)
    twice = np.rint(1024 * functions.glass_blur(images, 4, RowDraws(0, "glass_blur", range(1)))[0, 2:, 2:, 0]).astype(
        int
    )
    assert (twice // 32 - np.arange(2, 32)[:, None]).min() == -2  # two rounds reach two pixels


def test_zoom_blur_is_the_mean_of_its_zooms() -> None:
    # A ramp through the center, zoomed by f, has its slope divided by f (away from the held edges).
    line = np.linspace(-1, 1, 33, dtype=np.float32)
    images = np.broadcast_to(line[None, :, None, None], (1, 33, 33, 1)).copy()
    blurred = functions.zoom_blur(images, 1, RowDraws(0, "zoom_blur", range(1)))[0, :, 5, 0]
    slopes = [1.0, *(1 / factor for factor in (1.0, 1.01, 1.02, 1.03, 1.04, 1.05))]
    np.testing.assert_allclose(blurred, line * np.mean(slopes), atol=1e-5)
