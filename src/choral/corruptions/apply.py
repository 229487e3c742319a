"""Apply a corruption by name."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from choral.base.errors import InputError, did_you_mean
from choral.corruptions import functions
from choral.corruptions.pixels import Array, RowDraws

Corruption = Callable[[Array, int, RowDraws], Array]

FAMILIES: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
COMMON: tuple[str, ...] = tuple(name for family, names in FAMILIES.items() if family != "extra" for name in names)
EXTRA: tuple[str, ...] = FAMILIES["extra"]
SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)

_CORRUPTIONS: dict[str, Corruption] = {name: getattr(functions, name) for name in COMMON + EXTRA}
_BLOCK = 1 << 20  # values of one block of rows


def corrupt(images: Array, name: str, *, severity: int, seed: int = 0, first_row: int = 0) -> Array:
    """Return corrupted copies of the images.

    Every row has random numbers of its own, decided by (seed, name, row) alone: corrupting rows 100 to 199 with
    `first_row=100` gives rows 100 to 199 of the whole, and a higher severity strengthens the same pattern.

    Args:
        images: uint8 (row, height, width, channel) of any size and number of channels.
        name: one of `COMMON` or `EXTRA`.
        severity: 1 (mild) to 5 (strong), the published settings in the published order. The mean absolute change rises at
            every step for most; spatter turns from water to mud at 4, saturate from draining to deepening at 3, frost
            and elastic_transform grow by hiding and by local warps instead, glass_blur smooths again at 3 and 5.
        seed: root seed.
        first_row: place of the first row in the whole data set.

    Reference: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", 2019, arXiv:1903.12261, with the published constants for 32 x 32 images; lengths in pixels grow
    with larger images.

    >>> corrupt(np.full((1, 2, 2, 1), 100, np.uint8), "brightness", severity=4).ravel().tolist()
    [151, 151, 151, 151]
    """
    images = np.asarray(images)
    if images.ndim != 4 or images.dtype != np.uint8 or not images.size:
        raise InputError(
            f"images has shape {images.shape} and dtype {images.dtype}; it must be uint8 (row, height, width, channel), not "
            "empty. Scale floats to 0 ... 255 and add a channel axis to grey images."
        )
    if name not in _CORRUPTIONS:
        raise InputError(
            f"corruption {name!r} is not known; known: {', '.join(COMMON + EXTRA)}.{did_you_mean(name, _CORRUPTIONS)}"
        )
    if severity not in SEVERITIES:
        raise InputError(f"severity is {severity}; it must be 1, 2, 3, 4 or 5.")
    out = np.empty_like(images)
    rows = max(1, _BLOCK // images[0].size)
    for start in range(0, len(images), rows):
        block = images[start : start + rows]
        draws = RowDraws(seed, name, range(first_row + start, first_row + start + len(block)))
        changed = _CORRUPTIONS[name](block.astype(np.float32) / 255, severity, draws)
        out[start : start + rows] = np.rint(255 * np.clip(changed, 0, 1))
    return out


def each_corruption(
    images: Array, *, names: Sequence[str] = COMMON, severities: Sequence[int] = SEVERITIES, seed: int = 0
) -> Iterator[tuple[str, int, Array]]:
    """Yield (name, severity, corrupted images) one after another, so that only one copy is in memory; see `corrupt`."""
    for name in names:
        for severity in severities:
            yield name, severity, corrupt(images, name, severity=severity, seed=seed)
