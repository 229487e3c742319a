"""The corruptions by name, their common parts (resampling, color, random numbers for each row), and `corrupt`.

Lengths are for 32 x 32 images and grow with the image.
"""

import io
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from choral.base.errors import InputError, did_you_mean
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
    """Return the grey value of each pixel, (..., 1): luma of three channels, else their mean."""
    if images.shape[-1] == 3:
        return (images @ _LUMA)[..., None]
    return images.mean(-1, keepdims=True)


def in_channels(rgb: Array, channels: int) -> Array:
    """Return RGB values (..., 3) for images of `channels` channels: unchanged for three, else their grey value."""
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
    """Return the factor of lengths for 32 x 32 images: the shorter side / 32, at least 1.

    Shorter lengths would leave tiny images unchanged.
    """
    return max(1.0, min(images.shape[1:3]) / 32.0)


def linear_matrix(positions: Array, size: int) -> Array:
    """Return (position, size) weights that interpolate a line of `size` pixels at real positions, with edge values outside."""
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
    """Return each image blurred along its own direction (row,) in degrees by a one-sided Gaussian.

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
    """Return (row, height, width, ...) smoothed by a Gaussian within each image, with edge values outside."""
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
    """Smooth, replace every pixel by a random neighbor, smooth again: frosted glass.

    The published code means to swap neighbors, but its swap of array views only copies, from up to `reach` pixels before and `reach` - 1 after;
    this function does the same.
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

    Plates grow from random seeds. Each plate has needles, ridges that fan out from its seed; plates meet in bright seams, and clouds make some
    of the ice thinner. Brightness and tint are those of photographs of frozen windows.
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
    scale = pixel_scale(images)
    return draws.normal(*(max(1, round(size / scale)) for size in images.shape[1:3]))


def snow(images: Array, severity: int, draws: RowDraws) -> Array:
    """Whiten the image and add flakes, blurred in the direction of falling, twice (once turned by 180 degrees)."""
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
    """Add drops of water (a pale tint, brighter in the middle of a drop) or mud.

    Differs from the published code, which lights water drops by edge detection and embossing.
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
    """Move every value towards the mean of its channel in its image."""
    means = images.mean((1, 2), keepdims=True)
    return (images - means) * _CONTRAST[severity - 1] + means


def saturate(images: Array, severity: int, draws: RowDraws) -> Array:
    """Reduce or increase saturation; for RGB images only."""
    if images.shape[-1] != 3:
        raise InputError(f"images have {images.shape[-1]} channels; saturate needs 3 (RGB): leave it out.")
    return with_saturation(images, *_SATURATE[severity - 1])


def elastic_transform(images: Array, severity: int, draws: RowDraws) -> Array:
    """Shear and shift the image a little, then displace every pixel by a smooth random field."""
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
    """Downsample by averaging boxes and upsample without smoothing."""
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

_CORRUPTIONS: dict[str, Corruption] = {name: globals()[name] for name in COMMON + EXTRA}
_BLOCK = 1 << 20  # values of one block of rows


def corrupt(images: Array, name: str, *, severity: int, seed: int = 0, first_row: int = 0) -> Array:
    """Return corrupted copies of the images.

    Each row has its own random numbers, determined by (seed, name, row): corrupting rows 100 to 199 with `first_row=100` gives rows 100 to 199
    of the whole, and a higher severity strengthens the same pattern.

    Args:
        images: uint8 (row, height, width, channel) of any size and number of channels.
        name: one of `COMMON` or `EXTRA`.
        severity: 1 (mild) to 5 (strong), the published settings in the published order. The mean absolute change rises at
            every step for most; spatter changes from water to mud at 4, saturate from reducing to increasing at 3, frost
            and elastic_transform grow by hiding and by local warps instead, glass_blur smooths again at 3 and 5.
        seed: the seed.
        first_row: number of the first row in the whole data set.

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
