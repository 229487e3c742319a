"""Digital: contrast, saturation, elastic warps, pixelation, JPEG."""

import io

import numpy as np

from choral.base.errors import InputError
from choral.corruptions.color import with_saturation
from choral.corruptions.draws import Array, RowDraws
from choral.corruptions.resample import box_matrix, pixel_scale, separable, warp

_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
_SATURATE = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))  # multiply, add
_ELASTIC = (  # displacement, its smoothness, corner jitter, all as shares of the shorter side
    (0.0, 0.0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
)
_PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)
_QUALITY = (80, 65, 58, 50, 40)


def contrast(images: Array, severity: int, draws: RowDraws) -> Array:
    """Pull every value towards the mean of its channel in its image."""
    means = images.mean((1, 2), keepdims=True)
    return (images - means) * _CONTRAST[severity - 1] + means


def saturate(images: Array, severity: int, draws: RowDraws) -> Array:
    """Drain or deepen the colors; for RGB images only."""
    if images.shape[-1] != 3:
        raise InputError(
            f"images have {images.shape[-1]} channels; saturate needs 3 (RGB), as other images have no saturation. "
            "Leave it out."
        )
    return with_saturation(images, *_SATURATE[severity - 1])


def elastic_transform(images: Array, severity: int, draws: RowDraws) -> Array:
    """Shear and shift the image a little, then let every pixel wander by a smooth random displacement."""
    reach, smoothness, jitter = _ELASTIC[severity - 1]
    height, width = images.shape[1:3]
    side = min(height, width)
    out = _random_affine(images, draws.uniform(3, 2, low=-1, high=1) * jitter * side)
    noise = draws.uniform(2, height, width, low=-1, high=1)
    if not reach:
        return out
    dy, dx = np.moveaxis(reach * side * _smooth_cut(noise, smoothness * side), 1, 0)
    y, x = np.mgrid[:height, :width]
    return warp(out, y + dy, x + dx)


def _smooth_cut(noise: Array, sigma: float) -> Array:
    """Return (row, 2, height, width) noise smoothed within each image, the Gaussian cut at three deviations."""
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(noise, (0, 0, sigma, sigma), mode="reflect", truncate=3)


def _random_affine(images: Array, moves: Array) -> Array:
    """Return the images under the affine map that moves three points about the center by `moves` (row, 3, 2)."""
    height, width = images.shape[1:3]
    center, third = np.array([height // 2, width // 2]), max(1, min(height, width) // 3)
    points = center + third * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = points + moves.astype(np.float64)  # (row, 3, 2)
    # Where does each pixel come from: the affine map that takes the moved points back, as [y, x, 1] @ back.
    homogeneous = np.concatenate([moved, np.ones((len(images), 3, 1))], -1)
    back = np.linalg.solve(homogeneous, np.broadcast_to(points.astype(np.float64), moved.shape))
    grid = np.stack([*np.mgrid[:height, :width], np.ones((height, width))], -1)
    source = np.einsum("hwk,nkj->nhwj", grid, back)
    return warp(images, source[..., 0], source[..., 1])


def pixelate(images: Array, severity: int, draws: RowDraws) -> Array:
    """Shrink by averaging boxes and blow up again without smoothing."""
    # What a block measures beyond one pixel grows with the image; for 32 x 32 this is the published factor.
    factor = 1 / (1 + (1 / _PIXELATE[severity - 1] - 1) * pixel_scale(images))
    height, width = images.shape[1:3]
    small_height, small_width = max(1, int(height * factor + 1e-9)), max(1, int(width * factor + 1e-9))
    small = separable(images, box_matrix(small_height, height), box_matrix(small_width, width))
    return separable(small, box_matrix(height, small_height), box_matrix(width, small_width))


def jpeg_compression(images: Array, severity: int, draws: RowDraws) -> Array:
    """Save as JPEG and load again; images with neither 1 nor 3 channels are saved channel by channel."""
    quality = _QUALITY[severity - 1]
    levels = np.rint(255 * images).astype(np.uint8)
    if images.shape[-1] == 3:
        return np.stack([_jpeg(image, quality) for image in levels]) / np.float32(255)
    planes = np.moveaxis(levels, -1, 1)
    saved = np.stack([[_jpeg(plane, quality) for plane in image] for image in planes])
    return np.moveaxis(saved, 1, -1) / np.float32(255)


def _jpeg(image: Array, quality: int) -> Array:
    from PIL import Image

    memory = io.BytesIO()
    Image.fromarray(image).save(memory, "JPEG", quality=quality)
    return np.asarray(Image.open(memory))
