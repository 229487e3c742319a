import numpy as np
import pytest

from choral.corruptions.functions import frost_crystals, plasma


def slow_plasma(noise: np.ndarray, decay: float) -> np.ndarray:
    """Diamond-square, point by point."""
    size = len(noise)
    heights = np.zeros((size, size))
    step, strength = size, 1.0
    while step >= 2:
        half = step // 2
        for y in range(half, size, step):
            for x in range(half, size, step):
                corners = [heights[(y + a) % size, (x + b) % size] for a in (-half, half) for b in (-half, half)]
                heights[y, x] = np.mean(corners) + strength * noise[y, x]
        for y in range(0, size, half):
            for x in range((y + half) % step, size, step):
                sides = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                heights[y, x] = np.mean([heights[a % size, b % size] for a, b in sides]) + strength * noise[y, x]
        step, strength = half, strength / decay**2
    return (heights - heights.min()) / (heights.max() - heights.min())


@pytest.mark.parametrize("size", [2, 8, 32])
def test_plasma_agrees_with_a_slow_reference(size: int) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (3, size, size))
    got = plasma(noise, 1.7)
    for row in range(3):
        np.testing.assert_allclose(got[row], slow_plasma(noise[row], 1.7), atol=1e-9)


def test_a_larger_decay_is_smoother() -> None:
    noise = np.random.default_rng(1).uniform(-1, 1, (20, 32, 32))
    rough = [np.abs(np.diff(plasma(noise, decay), axis=2)).mean() for decay in (1.2, 1.75, 2.5)]
    assert rough[0] > rough[1] > rough[2]


def test_frost_is_always_the_same_and_looks_like_photographed_frost() -> None:
    """Five photographs of frost have mean levels from 0.48 to 0.81, deviations from 0.09 to 0.17, and are bluish."""
    pictures = frost_crystals(128)
    frost_crystals.cache_clear()
    again = frost_crystals(128)
    assert len(pictures) == 5
    for picture, same in zip(pictures, again):
        np.testing.assert_array_equal(picture, same)
        assert picture.shape == (128, 128, 3)
        assert 0.45 < picture.mean() / 255 < 0.85
        assert 0.09 < picture.std() / 255 < 0.2
        assert picture[..., 2].mean() > picture[..., 0].mean()
