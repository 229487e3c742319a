"""The corruptions: noise, blur, weather and digital ones. Lengths are for 32 x 32 images and grow with the image."""

import io
from functools import lru_cache

import numpy as np

from choral.base.errors import InputError
from choral.base.rng import key
from choral.corruptions.pixels import (
    Array,
    RowDraws,
    box_matrix,
    enlarge,
    grey_of,
    in_channels,
    line_blur,
    pixel_scale,
    separable,
    warp,
    with_saturation,
    with_value_added,
    zoom_center,
)  # fmt: skip

_GAUSSIAN = (0.04, 0.06, 0.08, 0.09, 0.10)
_SHOT = (500, 250, 100, 75, 50)
_IMPULSE = (0.01, 0.02, 0.03, 0.05, 0.07)
_SPECKLE = (0.06, 0.1, 0.12, 0.16, 0.2)


def gaussian_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Add normal noise to every value."""
    return images + _GAUSSIAN[severity - 1] * draws.normal(*images.shape[1:])


def shot_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Count photons: Poisson draws at a rate proportional to the brightness."""
    rate = _SHOT[severity - 1]
    return draws.poisson(images * rate) / rate


def impulse_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Set a share of the values to black or white, half each."""
    amount = _IMPULSE[severity - 1]
    hit = draws.uniform(*images.shape[1:])
    return np.where(hit < 0.5 * amount, 0.0, np.where(hit < amount, 1.0, images))


def speckle_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Add normal noise in proportion to the brightness."""
    return images + images * _SPECKLE[severity - 1] * draws.normal(*images.shape[1:])


_GAUSSIAN_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)
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
    return smooth(images, _GAUSSIAN_BLUR[severity - 1] * pixel_scale(images))


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


def plasma(noise: Array, decay: float) -> Array:
    """Return cloudy height maps in [0, 1] by the diamond-square rule on a torus.

    Every new point is the mean of four older neighbors plus its own noise; the noise's size falls by decay² with each
    halving of the grid (the published clouds square it by multiplying twice).

    Args:
        noise: (row, size, size) uniform in [-1, 1], size a power of two.
        decay: larger is smoother.
    """
    size = noise.shape[-1]
    heights = np.zeros_like(noise)
    step, strength = size, 1.0
    while step >= 2:
        half = step // 2
        for y, x, offsets in (
            (half, half, ((half, half), (half, -half), (-half, half), (-half, -half))),  # centers of squares
            (0, half, ((0, half), (0, -half), (half, 0), (-half, 0))),  # then the middles of their sides
            (half, 0, ((0, half), (0, -half), (half, 0), (-half, 0))),
        ):
            rows, columns = np.arange(y, size, step), np.arange(x, size, step)
            around = sum(heights[:, ((rows + dy) % size)[:, None], ((columns + dx) % size)[None]] for dy, dx in offsets)
            heights[:, y::step, x::step] = around / 4 + strength * noise[:, y::step, x::step]
        step, strength = half, strength / decay**2
    low = heights.min((1, 2), keepdims=True)
    span = heights.max((1, 2), keepdims=True) - low
    return (heights - low) / np.maximum(span, 1e-12)


@lru_cache(maxsize=4)
def frost_crystals(size: int) -> tuple[Array, ...]:
    """Return five frost pictures, uint8 (size, size, 3); always the same ones.

    Plates grow from random seeds. Each plate carries needles: ridges that fan out from its seed like the barbs of a
    feather; plates meet in bright seams, and clouds make some of the pane thinner than the rest. Brightness and tint
    are those of photographs of frozen windows.
    """
    side = 1 << max(5, (size - 1).bit_length())
    levels = (0.50, 0.80, 0.72, 0.60, 0.48)
    return tuple(_crystal_picture(size, side, index, brightness) for index, brightness in enumerate(levels))


def _crystal_picture(size: int, side: int, index: int, brightness: float) -> Array:
    from scipy.spatial import cKDTree

    generator = np.random.Generator(np.random.Philox(key=key(0, "frost", index)))
    clouds = plasma(generator.uniform(-1, 1, (2, side, side)), 1.6)[:, :size, :size]
    seeds = generator.random((int(14 + 6 * index), 2)) * size
    y, x = np.mgrid[:size, :size].astype(np.float64)
    wander = 0.06 * size * (clouds - 0.5)  # bends borders and needles
    place = np.stack([y + wander[0], x + wander[1]], -1) % size
    distance, nearest = cKDTree(seeds, boxsize=size).query(place.reshape(-1, 2), k=2)
    distance, nearest = distance.reshape(size, size, 2), nearest.reshape(size, size, 2)[..., 0]
    offset = (place - seeds[nearest] + 0.5 * size) % size - 0.5 * size
    angle = np.arctan2(offset[..., 0], offset[..., 1]) + generator.uniform(0, 2 * np.pi, len(seeds))[nearest]
    cell = size / np.sqrt(len(seeds))
    radius = distance[..., 0] / cell
    arms = np.abs(np.cos(3 * angle)) ** 6 * np.exp(-2 * radius)
    lean = np.abs((3 * angle / np.pi) % 2 - 1)  # barbs leave an arm to both sides
    bends = 14 * clouds[1] + generator.uniform(0, 6, len(seeds))[nearest]
    barbs = np.abs(np.sin(9 * (radius + 0.9 * lean) + bends)) ** 4
    seams = np.exp(-12 * (distance[..., 1] - distance[..., 0]) / cell)
    grain = generator.random((size, size))
    light = 0.9 * arms + 0.6 * barbs * (0.3 + clouds[0]) + 0.7 * seams + 1.2 * clouds[0] + 0.5 * grain
    light = (light - light.mean()) / light.std()
    grey = np.clip(brightness + 0.15 * light, 0, 1)[..., None]
    tint = np.array([-0.05, 0.0, 0.05]) * (1 - grey)
    return np.rint(255 * np.clip(grey + tint, 0, 1)).astype(np.uint8)


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


def frost(images: Array, severity: int, draws: RowDraws) -> Array:
    """Lay a random part of a frost picture (`frost_crystals`) over the image."""
    keep, add = _FROST[severity - 1]
    height, width, channels = images.shape[1:]
    pictures = frost_crystals(max(128, 4 * max(height, width)))
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
        raise InputError(f"images have {images.shape[-1]} channels; saturate needs 3 (RGB): leave it out.")
    return with_saturation(images, *_SATURATE[severity - 1])


def elastic_transform(images: Array, severity: int, draws: RowDraws) -> Array:
    """Shear and shift the image a little, then let every pixel wander by a smooth random displacement."""
    from scipy.ndimage import gaussian_filter

    reach, smoothness, jitter = _ELASTIC[severity - 1]
    height, width = images.shape[1:3]
    side = min(height, width)
    out = _random_affine(images, draws.uniform(3, 2, low=-1, high=1) * jitter * side)
    if not reach:
        return out
    noise = draws.uniform(2, height, width, low=-1, high=1)
    sigma = (0, 0, smoothness * side, smoothness * side)
    dy, dx = np.moveaxis(reach * side * gaussian_filter(noise, sigma, mode="reflect", truncate=3), 1, 0)
    y, x = np.mgrid[:height, :width]
    return warp(out, y + dy, x + dx)


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
