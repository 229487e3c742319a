"""Textures made from noise: plasma clouds and frost crystals."""

from functools import lru_cache

import numpy as np

from choral.base.rng import key
from choral.corruptions.draws import Array


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
    return tuple(
        _crystal_picture(size, side, index, brightness)
        for index, brightness in enumerate((0.50, 0.80, 0.72, 0.60, 0.48))
    )


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
