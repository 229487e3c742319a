import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from choral.base.errors import InputError
from choral.corruptions import COMMON, EXTRA, FAMILIES, SEVERITIES, corrupt, functions
from choral.corruptions.functions import grey_of

ALL = COMMON + EXTRA

# The published constants do not raise the mean absolute change at every step for these; where they do, it is tested.
STEPS = {
    "glass_blur": [(3, 4), (3, 5)],  # 1 and 2 differ by less than rounding; 3 and 5 only smooth more than 2 and 4
    "motion_blur": [(1, 2), (2, 3), (4, 5)],  # 3 and 4 cut the same Gaussian at 12 and 16 pixels
    "snow": [(1, 2), (2, 4), (3, 4), (4, 5)],  # 2 and 3 change equally much, by small and by large flakes
    "frost": [(1, 2), (2, 3)],  # from 3 on the image is dimmed, see below
    "elastic_transform": [],  # trades shifts of the whole image for local warps, see test_digital
    "spatter": [(1, 2), (2, 3), (4, 5)],  # water, then mud
    "saturate": [(1, 2), (3, 4), (4, 5)],  # drained, then deepened
}


def natural_images(side: int = 32, count: int = 120) -> np.ndarray:
    """Crops of the two photographs that come with scikit-learn, at two scales."""
    generator, crops = np.random.default_rng(0), []
    for photograph in load_sample_images().images:
        for shrink in (2, 4):
            size = (photograph.shape[1] // shrink, photograph.shape[0] // shrink)
            small = np.asarray(Image.fromarray(photograph).resize(size, Image.Resampling.BOX))
            for _ in range(count // 4):
                top, left = (int(generator.integers(length - side)) for length in small.shape[:2])
                crops.append(small[top : top + side, left : left + side])
    return np.stack(crops)


PHOTOGRAPHS = natural_images()


def change(name: str, severity: int) -> float:
    changed = corrupt(PHOTOGRAPHS, name, severity=severity)
    return float(np.abs(changed.astype(float) - PHOTOGRAPHS).mean())


@pytest.mark.parametrize("name", ALL)
def test_change_grows_with_severity(name: str) -> None:
    changes = {severity: change(name, severity) for severity in SEVERITIES}
    for lower, higher in STEPS.get(name, [(1, 2), (2, 3), (3, 4), (4, 5)]):
        assert changes[lower] < changes[higher], (lower, higher, changes)
    assert min(changes.values()) > 0.5


def test_frost_hides_more_of_the_image_with_each_severity() -> None:
    def unexplained(images: np.ndarray) -> float:
        pairs = zip(grey_of(images / 255.0), grey_of(PHOTOGRAPHS / 255.0))
        kept = [np.corrcoef(a.ravel(), b.ravel())[0, 1] ** 2 for a, b in pairs if a.std() > 0.02 and b.std() > 0.02]
        return 1 - float(np.mean(kept))

    lost = [unexplained(corrupt(PHOTOGRAPHS, "frost", severity=severity)) for severity in SEVERITIES]
    assert lost == sorted(lost)
    assert lost[4] > 3 * lost[0]


@pytest.mark.parametrize("name", ALL)
def test_rows_are_seeded_one_by_one(name: str) -> None:
    images = PHOTOGRAPHS[:6].copy()
    whole = corrupt(images, name, severity=3, seed=5)
    assert whole.dtype == np.uint8
    assert whole.shape == images.shape
    np.testing.assert_array_equal(images, PHOTOGRAPHS[:6])  # the input is left alone
    np.testing.assert_array_equal(corrupt(images, name, severity=3, seed=5), whole)
    np.testing.assert_array_equal(corrupt(images[:2], name, severity=3, seed=5), whole[:2])
    np.testing.assert_array_equal(corrupt(images[4:], name, severity=3, seed=5, first_row=4), whole[4:])


@pytest.mark.parametrize("name", ["gaussian_noise", "glass_blur", "motion_blur", "snow", "frost", "elastic_transform"])
def test_equal_images_in_different_rows_and_under_different_seeds_differ(name: str) -> None:
    twice = np.repeat(PHOTOGRAPHS[:1], 2, axis=0)
    first, second = corrupt(twice, name, severity=4)
    assert (first != second).any()
    assert (corrupt(twice, name, severity=4, seed=1)[0] != first).any()


def test_blocks_of_rows_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: corrupt(PHOTOGRAPHS[:7], name, severity=2) for name in ALL}
    monkeypatch.setattr(functions, "_BLOCK", 3 * PHOTOGRAPHS[0].size)
    for name, expected in whole.items():
        np.testing.assert_array_equal(corrupt(PHOTOGRAPHS[:7], name, severity=2), expected)


@pytest.mark.parametrize("shape", [(8, 8, 1), (7, 13, 3), (1, 1, 1), (2, 5, 3), (33, 40, 4), (64, 48, 3)])
def test_any_size_and_number_of_channels(shape: tuple[int, int, int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    for name in ALL:
        if name == "saturate" and shape[2] != 3:
            with pytest.raises(InputError, match="needs 3"):
                corrupt(images, name, severity=1)
            continue
        for severity in (1, 5):
            assert corrupt(images, name, severity=severity).shape == images.shape


@pytest.mark.parametrize(
    "name", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "glass_blur", "pixelate"]
)
def test_blurs_leave_a_plain_image_alone_and_reach_further_in_larger_ones(name: str) -> None:
    plain = np.full((1, 40, 40, 3), 77, np.uint8)
    np.testing.assert_array_equal(corrupt(plain, name, severity=5), plain)
    large = PHOTOGRAPHS[:20].repeat(3, 1).repeat(3, 2)  # the same pictures at 96 x 96
    on_large = float(np.abs(corrupt(large, name, severity=5).astype(float) - large).mean())
    on_small = float(np.abs(corrupt(PHOTOGRAPHS[:20], name, severity=5).astype(float) - PHOTOGRAPHS[:20]).mean())
    assert on_large > 0.5 * on_small


def test_names_by_family() -> None:
    assert len(COMMON) == 15
    assert len(EXTRA) == 4
    assert sorted(name for names in FAMILIES.values() for name in names) == sorted(ALL)


def test_wrong_arguments_are_refused() -> None:
    images = PHOTOGRAPHS[:1]
    with pytest.raises(InputError, match="Did you mean 'gaussian_noise'"):
        corrupt(images, "gausian_noise", severity=1)
    with pytest.raises(InputError, match="1, 2, 3, 4 or 5"):
        corrupt(images, "fog", severity=0)
    with pytest.raises(InputError, match="uint8"):
        corrupt(images / 255, "fog", severity=1)
    with pytest.raises(InputError, match="row, height, width, channel"):
        corrupt(images[0], "fog", severity=1)
