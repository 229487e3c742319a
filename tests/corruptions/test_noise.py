import numpy as np
import pytest

from choral.corruptions import corrupt


def grey(level: int, rows: int = 20) -> np.ndarray:
    return np.full((rows, 32, 32, 3), level, np.uint8)


@pytest.mark.parametrize(("severity", "sigma"), list(enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1)))
def test_gaussian_noise_has_the_published_deviation(severity: int, sigma: float) -> None:
    noise = corrupt(grey(128), "gaussian_noise", severity=severity) / 255.0 - 128 / 255
    assert noise.std() == pytest.approx(sigma, rel=0.01)
    assert abs(noise.mean()) < 0.001


@pytest.mark.parametrize(("severity", "rate"), list(enumerate((500, 250, 100, 75, 50), start=1)))
def test_shot_noise_has_the_variance_of_counts(severity: int, rate: int) -> None:
    for level in (60, 120):
        noise = corrupt(grey(level), "shot_noise", severity=severity) / 255.0 - level / 255
        assert noise.std() == pytest.approx(np.sqrt(level / 255 / rate), rel=0.02)
        assert abs(noise.mean()) < 0.001


@pytest.mark.parametrize(("severity", "amount"), list(enumerate((0.01, 0.02, 0.03, 0.05, 0.07), start=1)))
def test_impulse_noise_sets_the_published_share_to_black_and_white(severity: int, amount: float) -> None:
    noisy = corrupt(grey(100), "impulse_noise", severity=severity)
    assert set(np.unique(noisy)) == {0, 100, 255}
    for level in (0, 255):
        assert (noisy == level).mean() == pytest.approx(amount / 2, rel=0.1)
    channels = noisy != 100
    assert (channels.all(-1).mean()) < 0.01  # values are hit one by one, not whole pixels


@pytest.mark.parametrize(("severity", "sigma"), list(enumerate((0.06, 0.1, 0.12, 0.16, 0.2), start=1)))
def test_speckle_noise_grows_with_brightness(severity: int, sigma: float) -> None:
    for level in (50, 110):
        noise = corrupt(grey(level), "speckle_noise", severity=severity) / 255.0 - level / 255
        assert noise.std() == pytest.approx(sigma * level / 255, rel=0.02)
