"""Moving pixels: separable resizing, center zooms, free warps, shifted averages. All rows at once."""

import numpy as np

from choral.corruptions.draws import Array


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


def _reflect(index: Array, size: int) -> Array:
    """Return whole positions folded back into 0 ... size - 1 at the edge pixels' outer borders."""
    index = np.mod(index, 2 * size)
    return np.where(index < size, index, 2 * size - 1 - index)


def warp(images: Array, y: Array, x: Array) -> Array:
    """Return the images read at real positions y, x (row, height, width), bilinear, reflected at the borders."""
    height, width = images.shape[1:3]
    top, left = np.floor(y), np.floor(x)
    down, right = (y - top)[..., None].astype(np.float32), (x - left)[..., None].astype(np.float32)
    rows = np.arange(len(images))[:, None, None]
    y0, y1 = (_reflect(top.astype(int) + step, height) for step in (0, 1))
    x0, x1 = (_reflect(left.astype(int) + step, width) for step in (0, 1))
    upper = images[rows, y0, x0] * (1 - right) + images[rows, y0, x1] * right
    lower = images[rows, y1, x0] * (1 - right) + images[rows, y1, x1] * right
    return upper * (1 - down) + lower * down


def line_blur(images: Array, angles: Array, *, radius: float, sigma: float) -> Array:
    """Return each image smeared along its own direction: a one-sided Gaussian of pixels behind each pixel.

    Args:
        images: (row, height, width, channel).
        angles: (row,) in degrees.
        radius: the line is 2 radius + 1 pixels long.
        sigma: standard deviation along the line in pixels.
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
