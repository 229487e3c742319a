import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.data.images import from_images, holds_images, strange, to_images


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_survive_the_way_there_and_back(channels):
    x = np.random.default_rng(0).integers(0, 256, (5, channels, 6, 7), dtype=np.uint8)
    images = to_images(x)
    assert images.shape == (5, 6, 7, channels)
    assert images[2, 3, 4, 0] == x[2, 0, 3, 4]
    assert np.array_equal(from_images(images, like=x), x)


def test_flat_numbers_come_back_to_half_a_byte():
    x = np.random.default_rng(0).random((5, 12)).astype(np.float32)
    images = to_images(x, shape=(3, 4))
    assert images.shape == (5, 3, 4, 1)
    back = from_images(images, like=x)
    assert back.dtype == np.float32
    assert np.abs(back - x).max() <= 0.5 / 255 + 1e-6


def test_what_is_no_image_is_refused_with_a_reason():
    with pytest.raises(InputError, match="runs from -3"):
        to_images(np.full((2, 1, 4, 4), -3.0))
    with pytest.raises(InputError, match=r"shape \(2, 13\)"):
        to_images(np.zeros((2, 13)))
    assert holds_images(np.zeros((2, 1, 4, 4)))
    assert not holds_images(np.zeros((2, 13)))
    assert not holds_images(np.full((2, 16), 3.0), shape=(4, 4))


@given(st.integers(0, 100))
def test_a_strange_table_keeps_every_column_s_values_and_breaks_their_rows(seed):
    x = np.random.default_rng(1).normal(size=(40, 3))
    made, name = strange(x, seed=seed)
    assert "column" in name
    assert all(np.array_equal(np.sort(made[:, i]), np.sort(x[:, i])) for i in range(3))
    assert not np.array_equal(made[made[:, 0].argsort()], x[x[:, 0].argsort()])


def test_strange_images_are_inverted_shuffled_and_noisy_in_turn():
    x = np.random.default_rng(2).integers(0, 256, (9, 3, 8, 8), dtype=np.uint8)
    made, name = strange(x, seed=0)
    assert "inverted" in name
    assert made.shape == x.shape
    assert np.array_equal(made[0::3], 255 - x[0::3])
    for before, after in zip(x[1::3], made[1::3]):  # the same pixels at other places
        assert np.array_equal(np.sort(before, axis=None), np.sort(after, axis=None))
        assert not np.array_equal(before, after)
        patch = after[:, :2, :2]
        assert any(
            np.array_equal(patch, before[:, i : i + 2, j : j + 2]) for i in range(0, 8, 2) for j in range(0, 8, 2)
        )
    changed = (made[2::3] != x[2::3]).mean()
    assert changed == pytest.approx(0.6 * 255 / 256, abs=0.05)
    assert np.array_equal(strange(x, seed=0)[0], made)
