"""Blurs: Gaussian, defocus, glass, motion and zoom. Lengths are for 32 x 32 images and grow with the image."""

import numpy as np

from choral.corruptions.draws import Array, RowDraws
from choral.corruptions.resample import line_blur, pixel_scale, zoom_center

_GAUSSIAN = (0.4, 0.6, 0.7, 0.8, 1.0)
_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))  # radius, smoothing of the disk
_GLASS = ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))  # sigma, reach, rounds
_MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))  # radius, sigma
_ZOOM = (1.06, 1.11, 1.16, 1.21, 1.26)  # largest factor, excluded


def smooth(images: Array, sigma: float) -> Array:
    """Return (row, height, width, ...) smoothed by a Gaussian within each image, edges held."""
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(images, (0, sigma, sigma, *[0] * (images.ndim - 3)), mode="nearest")


def gaussian_blur(images: Array, severity: int, draws: RowDraws) -> Array:
    """Smooth by a Gaussian."""
    return smooth(images, _GAUSSIAN[severity - 1] * pixel_scale(images))


def defocus_blur(images: Array, severity: int, draws: RowDraws) -> Array:
    """Average over a disk, as a lens out of focus does."""
    radius, smoothing = _DEFOCUS[severity - 1]
    scale = pixel_scale(images)
    return _convolve(images, _disk(radius * scale, smoothing * scale, reach=max(1, round(scale))))


def _disk(radius: float, sigma: float, *, reach: int) -> Array:
    """Return a disk smoothed by a Gaussian cut off after `reach` pixels, summing to 1."""
    half = int(np.floor(radius)) + reach
    line = np.arange(-half, half + 1)
    disk = (line[:, None] ** 2 + line[None] ** 2 <= radius**2).astype(np.float64)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    for axis in (0, 1):
        disk = np.apply_along_axis(np.convolve, axis, disk, weights, mode="same")
    return (disk / disk.sum()).astype(np.float32)


def _convolve(images: Array, kernel: Array) -> Array:
    from scipy.ndimage import convolve
    from scipy.signal import oaconvolve

    if len(kernel) <= 9:
        return convolve(images, kernel[None, :, :, None], mode="mirror")
    half = len(kernel) // 2
    padded = np.pad(images, ((0, 0), (half, half), (half, half), (0, 0)), mode="reflect")
    return oaconvolve(padded, kernel[None, :, :, None], mode="valid", axes=(1, 2))


def glass_blur(images: Array, severity: int, draws: RowDraws) -> Array:
    """Smooth, take every pixel from a random neighbor, smooth again: frosted glass.

    The published code means to swap neighbors, but its swap of array views only copies, from up to `reach` pixels before and
    `reach` - 1 after; that is what its images show and what is done here.
    """
    sigma, reach, rounds = _GLASS[severity - 1]
    scale = pixel_scale(images)
    reach = max(1, round(reach * scale))
    out = smooth(images, sigma * scale)
    height, width = images.shape[1:3]
    rows, y, x = np.arange(len(images))[:, None, None], np.arange(height)[:, None], np.arange(width)
    offsets = draws.integers(2, height, width, 2, low=-reach, high=reach - 1)
    for moves in np.moveaxis(offsets[:, :rounds], 1, 0):
        out = out[rows, np.clip(y + moves[..., 0], 0, height - 1), np.clip(x + moves[..., 1], 0, width - 1)]
    return smooth(out, sigma * scale)


def motion_blur(images: Array, severity: int, draws: RowDraws) -> Array:
    """Smear along a random direction within 45 degrees of the horizontal."""
    radius, sigma = _MOTION[severity - 1]
    scale = pixel_scale(images)
    return line_blur(images, draws.uniform(low=-45, high=45), radius=radius * scale, sigma=sigma * scale)


def zoom_blur(images: Array, severity: int, draws: RowDraws) -> Array:
    """Average the image and its enlargements by 1.00, 1.01, ... about the center."""
    factors = np.arange(1.0, _ZOOM[severity - 1] - 1e-9, 0.01)
    total = images.copy()
    for factor in factors:
        total += zoom_center(images, float(factor))
    return total / (len(factors) + 1)
