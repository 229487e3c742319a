import numpy as np
import pytest

from choral.corruptions import corrupt, functions
from choral.corruptions.functions import RowDraws, plasma


def greys(level: float, rows: int = 8, side: int = 32) -> np.ndarray:
    return np.full((rows, side, side, 3), level, np.float32)


@pytest.mark.parametrize(
    ("severity", "keep", "add"), [(1, 1.0, 0.2), (2, 1.0, 0.3), (3, 0.9, 0.4), (4, 0.85, 0.4), (5, 0.75, 0.45)]
)
def test_frost_mixes_with_the_published_weights(severity: int, keep: float, add: float, monkeypatch) -> None:
    texture = np.zeros((40, 50, 3), np.uint8) + np.array([10, 120, 240], np.uint8)
    images = np.full((2, 32, 32, 3), 60, np.uint8)
    monkeypatch.setattr(functions, "frost_crystals", lambda size: [texture])
    got = corrupt(images, "frost", severity=severity)
    np.testing.assert_allclose(got[0, 0, 0], np.rint(keep * 60 + add * np.array([10, 120, 240])), atol=1)


def test_frost_takes_random_parts_of_random_pictures(monkeypatch) -> None:
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8)[:, None, None], (64, 64, 3))
    pictures = [np.ascontiguousarray(ramp), np.ascontiguousarray(ramp + 128)]
    monkeypatch.setattr(functions, "frost_crystals", lambda size: pictures)
    got = corrupt(np.zeros((60, 32, 32, 3), np.uint8), "frost", severity=3)
    tops = np.rint(got[:, 0, 0, 0] / 0.4).astype(int)
    assert 15 < (tops >= 128).sum() < 45
    assert len(set(tops % 128)) > 15
    assert (tops % 128).max() <= 33


def test_fog_follows_its_formula() -> None:
    images = np.random.default_rng(0).random((3, 32, 32, 3)).astype(np.float32) * 0.8
    got = functions.fog(images, 4, RowDraws(7, "fog", range(3)))
    cloud = plasma(RowDraws(7, "fog", range(3)).uniform(32, 32, low=-1, high=1), 2.0)[..., None]
    for row in range(3):
        peak = images[row].max()
        np.testing.assert_allclose(got[row], (images[row] + cloud[row]) * peak / (peak + 1.0), rtol=1e-5)
        assert got[row].max() <= peak + 1e-6


def test_snow_whitens_by_the_published_share_and_falls_in_streaks() -> None:
    images = greys(0.2, rows=40)
    got = functions.snow(images, 1, RowDraws(0, "snow", range(40)))
    floor = 0.95 * 0.2 + 0.05 * max(0.2, 1.5 * 0.2 + 0.5)
    assert got.min() == pytest.approx(floor, abs=1e-5)
    flakes = got[..., 0] - got.min()
    np.testing.assert_allclose(flakes, flakes[:, ::-1, ::-1], atol=1e-5)  # every layer is added twice, once turned
    # Falling within 45 degrees of the vertical: neighbors above are more alike than neighbors beside.
    down, beside = np.abs(np.diff(flakes, axis=1)).mean(), np.abs(np.diff(flakes, axis=2)).mean()
    assert down < beside


def test_water_tints_and_mud_covers() -> None:
    images = greys(0.3, rows=40)
    water = functions.spatter(images, 2, RowDraws(0, "spatter", range(40)))
    added = water - images
    assert added.min() >= 0
    assert added.max() == pytest.approx(0.5 * 238 / 255, abs=1e-3)
    wet = added[..., 0] > 1e-6
    assert 0.02 < wet.mean() < 0.6
    np.testing.assert_allclose(added[wet][:, 0] / added[wet][:, 1], 175 / 238, rtol=1e-3)
    mud = functions.spatter(images, 5, RowDraws(0, "spatter", range(40)))
    covered = np.abs(mud - images).max(-1) > 1e-6
    assert 0.005 < covered.mean() < 0.4
    assert np.abs(mud[covered] - np.array([63, 42, 20]) / 255).max() < 0.2 * 0.3 + 1e-6  # cover is at least 0.8


def test_drops_of_different_rows_do_not_touch() -> None:
    inside = np.ones((2, 6, 6), bool)
    inside[0] = False
    inside[1, 0] = False
    alone = functions._depth(inside[1:])
    np.testing.assert_allclose(functions._depth(inside)[1], alone[0])


def test_brightness_adds_to_the_value() -> None:
    images = np.full((1, 4, 4, 3), 100, np.uint8)
    for severity, add in enumerate((0.05, 0.1, 0.15, 0.2, 0.3), start=1):
        assert corrupt(images, "brightness", severity=severity).max() == pytest.approx(100 + 255 * add, abs=1)
