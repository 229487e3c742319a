"""Weather: snow, frost, fog, brightness, and spatter on the lens."""

from collections.abc import Sequence

import numpy as np

from choral.base.errors import InputError
from choral.corruptions.blur import smooth
from choral.corruptions.color import grey_of, in_channels, with_value_added
from choral.corruptions.draws import Array, RowDraws
from choral.corruptions.resample import enlarge, line_blur, pixel_scale, zoom_center
from choral.corruptions.textures import frost_crystals, plasma

_SNOW = (  # mean, deviation, zoom, threshold, blur radius, blur sigma, share of the image kept
    (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
_FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # weights of image and frost
_FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))  # strength, decay
_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
_SPATTER = (  # mean, deviation, sigma, threshold, intensity, mud
    (0.62, 0.1, 0.7, 0.7, 0.5, False),
    (0.65, 0.1, 0.8, 0.7, 0.5, False),
    (0.65, 0.3, 1.0, 0.69, 0.5, False),
    (0.65, 0.1, 0.7, 0.69, 0.6, True),
    (0.65, 0.1, 0.5, 0.68, 0.6, True),
)
_WATER, _MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)


def _noise_layer(images: Array, draws: RowDraws) -> Array:
    """Return standard normal noise at the resolution of a 32-pixel image, (row, small height, small width)."""
    scale = pixel_scale(images)
    return draws.normal(*(max(1, round(size / scale)) for size in images.shape[1:3]))


def snow(images: Array, severity: int, draws: RowDraws) -> Array:
    """Whiten the image and add flakes, smeared as they fall, twice (once turned by 180 degrees)."""
    mean, deviation, zoom, threshold, radius, sigma, keep = _SNOW[severity - 1]
    height, width = images.shape[1:3]
    flakes = zoom_center((mean + deviation * _noise_layer(images, draws))[..., None], zoom)
    flakes = enlarge(np.where(flakes < threshold, 0.0, np.clip(flakes, 0, 1))[..., 0], height, width)[..., None]
    scale = pixel_scale(images)
    angles = draws.uniform(low=-135, high=-45)
    flakes = line_blur(flakes.astype(np.float32), angles, radius=radius * scale, sigma=sigma * scale)
    pale = keep * images + (1 - keep) * np.maximum(images, 1.5 * grey_of(images) + 0.5)
    return pale + flakes + flakes[:, ::-1, ::-1]


def frost(images: Array, severity: int, draws: RowDraws, texture: Sequence[Array] | None = None) -> Array:
    """Lay a random part of a frost picture over the image.

    Args:
        images: as everywhere.
        severity: 1 to 5.
        draws: of these rows.
        texture: pictures to use, uint8 (height, width, 3), each at least as large as the images; by default
        `frost_crystals`.
    """
    keep, add = _FROST[severity - 1]
    height, width, channels = images.shape[1:]
    pictures = frost_crystals(max(128, 4 * max(height, width))) if texture is None else tuple(texture)
    for picture in pictures:
        if picture.ndim != 3 or picture.dtype != np.uint8 or picture.shape[0] < height or picture.shape[1] < width:
            raise InputError(
                f"texture holds an array of shape {picture.shape} and dtype {picture.dtype}; each must be uint8 "
                f"(height, width, 3) and at least {height} x {width}."
            )
    out = keep * images
    for row, (which, down, right) in enumerate(draws.uniform(3)):
        picture = pictures[int(which * len(pictures))]
        top = int(down * (picture.shape[0] - height + 1))
        left = int(right * (picture.shape[1] - width + 1))
        crop = picture[top : top + height, left : left + width].astype(np.float32) / 255
        out[row] += add * in_channels(crop, channels)
    return out


def fog(images: Array, severity: int, draws: RowDraws) -> Array:
    """Add a cloud and dim the whole to the image's own brightest value."""
    strength, decay = _FOG[severity - 1]
    height, width = images.shape[1:3]
    size = 1 << max(1, (max(height, width) - 1).bit_length())
    cloud = plasma(draws.uniform(size, size, low=-1, high=1), decay)[:, :height, :width, None]
    brightest = images.max((1, 2, 3), keepdims=True)
    return (images + strength * cloud) * brightest / (brightest + strength)


def brightness(images: Array, severity: int, draws: RowDraws) -> Array:
    """Raise the value of hue-saturation-value."""
    return with_value_added(images, _BRIGHTNESS[severity - 1])


def spatter(images: Array, severity: int, draws: RowDraws) -> Array:
    """Throw drops of water (a pale tint, brighter at the middle of a drop) or mud at the lens.

    Differs from the published code, which lights water drops by a chain of edge detection and embossing.
    """
    mean, deviation, sigma, threshold, intensity, mud = _SPATTER[severity - 1]
    height, width, channels = images.shape[1:]
    liquid = smooth(mean + deviation * _noise_layer(images, draws), sigma)
    if mud:
        cover = smooth((liquid > threshold).astype(np.float32), intensity)
        cover = np.where(cover < 0.8, 0.0, cover)
        amount = enlarge(cover, height, width)[..., None]
        return images * (1 - amount) + amount * in_channels(np.array(_MUD, np.float32), channels)
    drops = np.where(liquid < threshold, 0.0, liquid)
    drops = enlarge(drops * _depth(drops > 0), height, width)
    peak = np.maximum(drops.max((1, 2), keepdims=True), 1e-6)
    amount = (intensity * drops / peak)[..., None]
    return images + amount * in_channels(np.array(_WATER, np.float32), channels)


def _depth(inside: Array) -> Array:
    """Return how deep each pixel lies inside its drop, from 1/2 at the rim to 1 at the deepest."""
    from scipy.ndimage import distance_transform_edt

    far = float(sum(inside.shape[1:]))  # rows of the batch are never neighbors
    depth = np.minimum(distance_transform_edt(inside, sampling=(far, 1, 1)), 5.0)
    return 0.5 + 0.5 * depth / np.maximum(depth.max((1, 2), keepdims=True), 1.0)
