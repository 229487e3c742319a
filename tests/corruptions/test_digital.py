import io

import numpy as np
import pytest
from PIL import Image

from choral.corruptions import corrupt, functions
from choral.corruptions.functions import RowDraws


def random_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(("severity", "factor"), list(enumerate((0.75, 0.5, 0.4, 0.3, 0.15), start=1)))
def test_contrast_keeps_the_mean_and_scales_the_deviation(severity: int, factor: float) -> None:
    images = random_images(3, 16, 16, 3)
    got = corrupt(images, "contrast", severity=severity).astype(float)
    np.testing.assert_allclose(got.mean((1, 2)), images.mean((1, 2)), atol=0.3)
    np.testing.assert_allclose(got.std((1, 2)), factor * images.std((1, 2)), rtol=0.02)


@pytest.mark.parametrize(("severity", "quality"), list(enumerate((80, 65, 58, 50, 40), start=1)))
def test_jpeg_is_pillows(severity: int, quality: int) -> None:
    images = random_images(2, 16, 24, 3)
    got = corrupt(images, "jpeg_compression", severity=severity)
    memory = io.BytesIO()
    Image.fromarray(images[1]).save(memory, "JPEG", quality=quality)
    np.testing.assert_array_equal(got[1], np.asarray(Image.open(memory)))
    grey = corrupt(images[..., :2], "jpeg_compression", severity=severity)
    memory = io.BytesIO()
    Image.fromarray(images[0, :, :, 1]).save(memory, "JPEG", quality=quality)
    np.testing.assert_array_equal(grey[0, :, :, 1], np.asarray(Image.open(memory)))


@pytest.mark.parametrize(("severity", "size"), list(enumerate((30, 28, 27, 24, 20), start=1)))
def test_pixelate_is_pillows_box_resize_there_and_back(severity: int, size: int) -> None:
    images = random_images(2, 32, 32, 3)
    got = corrupt(images, "pixelate", severity=severity)
    small = Image.fromarray(images[1]).resize((size, size), Image.Resampling.BOX)
    expected = np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    assert np.abs(got[1].astype(int) - expected).max() <= 1


def test_saturate_drains_then_deepens() -> None:
    image = np.broadcast_to(np.array([200, 100, 100], np.uint8), (1, 4, 4, 3)).copy()  # saturation 0.5
    smallest = [int(corrupt(image, "saturate", severity=severity)[0, 0, 0, 1]) for severity in (1, 2, 3, 4, 5)]
    assert smallest == [170, 190, 50, 0, 0]  # 200 x (1 - min(1, 0.5 m + a))


def ramps(rows: int, side: int = 64) -> np.ndarray:
    """Images whose two channels hold each pixel's own position, so that warps can be read off."""
    y, x = np.mgrid[:side, :side].astype(np.float32)
    return np.broadcast_to(np.stack([y, x], -1), (rows, side, side, 2)).copy()


def beyond_affine(severity: int, rows: int = 10) -> tuple[float, float]:
    """Deviation from the best affine map, and size of that map's own displacement, in shares of the side."""
    warped = functions.elastic_transform(ramps(rows), severity, RowDraws(0, "elastic_transform", range(rows)))
    inner = (slice(16, 48), slice(16, 48))
    y, x = np.mgrid[:64, :64]
    design = np.stack([y[inner].ravel(), x[inner].ravel(), np.ones(32 * 32)], 1)
    residuals, moves = [], []
    for row in warped:
        target = row[inner].reshape(-1, 2)
        fit = np.linalg.lstsq(design, target, rcond=None)[0]
        residuals.append((target - design @ fit).std())
        moves.append(np.abs(design @ fit - design[:, :2]).mean())
    return float(np.mean(residuals)) / 64, float(np.mean(moves)) / 64


def test_elastic_trades_affine_moves_for_local_warps() -> None:
    local, moves = zip(*(beyond_affine(severity) for severity in (1, 2, 3, 4, 5)))
    assert local[0] < 1e-6  # the mildest is purely affine
    assert list(local) == sorted(local)
    assert local[4] > 0.006
    assert list(moves) == sorted(moves, reverse=True)


def test_affine_part_moves_the_three_points_as_drawn() -> None:
    moves = np.array([[[2.0, 1.0], [-1.0, 0.5], [0.0, -2.0]]])
    moved = functions._random_affine(ramps(1), moves)[0]
    # What stood at a point stands at the moved point afterwards.
    for point, move in zip(np.array([[53, 53], [11, 53], [11, 11]]), moves[0]):
        y, x = point + move
        top, left = int(np.floor(y)), int(np.floor(x))
        down, right = y - top, x - left
        block = moved[top : top + 2, left : left + 2]
        rows = block[0] * (1 - down) + block[1] * down
        np.testing.assert_allclose(rows[0] * (1 - right) + rows[1] * right, point, atol=1e-3)
