"""Color: value and saturation of RGB images without leaving RGB, and colors for any number of channels."""

import numpy as np

from choral.corruptions.draws import Array

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
