"""Operations on images that corruptions share: resampling, color, and random numbers for each row."""

import numpy as np

from choral.base.rng import key

Array = np.ndarray
"""Images are float32 in [0, 1], (row, height, width, channel), unless said otherwise."""


class RowDraws:
    """One generator for each row, made from (seed, corruption, its place in the whole data set).

    The severity is not part of the key: the same noise pattern grows with severity, so severities can be compared.
    """

    def __init__(self, seed: int, name: str, rows: range) -> None:
        keys = (key(seed, "corruption", name, row) for row in rows)
        self._generators = [np.random.Generator(np.random.Philox(key=each)) for each in keys]

    def normal(self, *shape: int) -> Array:
        """Return standard normal draws, (row, *shape)."""
        return np.stack([g.standard_normal(shape, dtype=np.float32) for g in self._generators])

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Array:
        """Return draws from [low, high), (row, *shape)."""
        draws = np.stack([np.asarray(g.random(shape, dtype=np.float32)) for g in self._generators])
        return np.float32(low) + np.float32(high - low) * draws

    def integers(self, *shape: int, low: int = 0, high: int) -> Array:
        """Return whole numbers from low to high, both included, (row, *shape)."""
        return np.stack([np.asarray(g.integers(low, high, shape, endpoint=True)) for g in self._generators])

    def poisson(self, rates: Array) -> Array:
        """Return one Poisson draw for each rate, in the shape of the rates (row, ...)."""
        return np.stack([g.poisson(rate) for g, rate in zip(self._generators, rates)]).astype(np.float32)


_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def grey_of(images: Array) -> Array:
    """Return the grey value of each pixel, (..., 1): luma of three channels, else the mean of the channels."""
    if images.shape[-1] == 3:
        return (images @ _LUMA)[..., None]
    return images.mean(-1, keepdims=True)


def in_channels(rgb: Array, channels: int) -> Array:
    """Return RGB values (..., 3) for images of `channels` channels: as they are for three, else their grey."""
    if channels == 3:
        return rgb
    return np.repeat((rgb @ _LUMA)[..., None], channels, -1)


def with_value_added(images: Array, add: float) -> Array:
    """Return the images with `add` added to their value (the largest channel), hue and saturation kept.

    In hue-saturation-value a change of value multiplies all channels; a black pixel has no hue and turns grey.
    """
    value = images.max(-1, keepdims=True)
    raised = np.clip(value + add, 0, 1)
    return np.where(value > 0, images * raised / np.maximum(value, 1e-6), raised)


def with_saturation(images: Array, multiply: float, add: float) -> Array:
    """Return RGB images with saturation x multiply + add, hue and value kept.

    Saturation is (largest - smallest) / largest channel. A grey pixel has no hue; by convention it is 0, red.
    """
    value = images.max(-1, keepdims=True)
    depth = value - images  # how far each channel lies below the largest one
    span = depth.max(-1, keepdims=True)
    saturation = span / np.maximum(value, 1e-6)
    wanted = np.clip(saturation * multiply + add, 0, 1)
    red = np.array([0.0, 1.0, 1.0], dtype=np.float32)
    direction = np.where(span > 0, depth / np.maximum(span, 1e-6), red)
    return value * (1 - wanted * direction)


def pixel_scale(images: Array) -> float:
    """Return what lengths given for 32 x 32 images are multiplied by: the shorter side / 32, never below 1.

    The published lengths are fractions of a pixel at 32; making them smaller still would leave tiny images untouched.
    """
    return max(1.0, min(images.shape[1:3]) / 32.0)


def linear_matrix(positions: Array, size: int) -> Array:
    """Return (position, size) weights that read a line of `size` pixels at real positions, ends held."""
    positions = np.clip(np.asarray(positions, dtype=np.float64), 0, size - 1)
    left = np.minimum(np.floor(positions).astype(int), max(size - 2, 0))
    part = positions - left
    weights = np.zeros((len(positions), size), dtype=np.float32)
    places = np.arange(len(positions))
    weights[places, left] = 1 - part
    weights[places, np.minimum(left + 1, size - 1)] += part
    return weights


def box_matrix(new: int, old: int) -> Array:
    """Return (new, old) weights of a resize by averaging the pixels whose centers fall into each new pixel."""
    ratio = old / new
    window = max(ratio, 1.0)
    centers = (np.arange(new) + 0.5) * ratio
    distance = (np.arange(old) + 0.5)[None] - centers[:, None]
    inside = ((distance > -0.5 * window) & (distance <= 0.5 * window)).astype(np.float32)
    return inside / inside.sum(1, keepdims=True)


def separable(images: Array, rows: Array, columns: Array) -> Array:
    """Return images with their lines mixed by `rows` (new height, height) and `columns` (new width, width)."""
    planes = np.ascontiguousarray(np.moveaxis(images, -1, 1))  # small matrix products are fastest on whole planes
    return np.moveaxis(rows @ planes @ columns.T, 1, -1)


def zoom_center(images: Array, factor: float) -> Array:
    """Return the images enlarged about their center by a factor, bilinear, same size."""
    matrices = []
    for size in images.shape[1:3]:
        center = 0.5 * (size - 1)
        matrices.append(linear_matrix((np.arange(size) - center) / factor + center, size))
    return separable(images, *matrices)


def enlarge(layers: Array, height: int, width: int) -> Array:
    """Return layers (row, small height, small width) stretched to (row, height, width), bilinear."""
    if layers.shape[1:] == (height, width):
        return layers
    rows, columns = (
        linear_matrix((np.arange(new) + 0.5) * old / new - 0.5, old)
        for new, old in zip((height, width), layers.shape[1:])
    )
    return separable(layers[..., None], rows, columns)[..., 0]


def warp(images: Array, y: Array, x: Array) -> Array:
    """Return the images read at real positions y, x (row, height, width), bilinear, reflected at the borders."""
    from scipy.ndimage import map_coordinates

    rows, channels = np.arange(len(images))[:, None, None, None], np.arange(images.shape[-1])
    places = np.broadcast_arrays(rows, y[..., None], x[..., None], channels)
    return np.asarray(map_coordinates(images, places, order=1, mode="reflect"))


def line_blur(images: Array, angles: Array, *, radius: float, sigma: float) -> Array:
    """Return each image smeared along its own direction (row,) in degrees: a one-sided Gaussian of pixels behind each pixel.

    The line is 2 radius + 1 pixels long, and sigma the standard deviation along it in pixels.
    """
    taps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    weights /= weights.sum()
    height, width = images.shape[1:3]
    turn = np.deg2rad(angles.astype(np.float64))
    out = np.zeros_like(images)
    rows = np.arange(len(images))[:, None, None]
    for tap, weight in zip(taps, weights):
        if weight < 1e-4:
            break
        dy, dx = np.rint(tap * np.sin(turn)).astype(int), np.rint(tap * np.cos(turn)).astype(int)
        y = np.clip(np.arange(height)[None] + dy[:, None], 0, height - 1)
        x = np.clip(np.arange(width)[None] + dx[:, None], 0, width - 1)
        out += np.float32(weight) * images[rows, y[:, :, None], x[:, None, :]]
    return out
