"""Conversion of inputs to uint8 images and back, and an out-of-distribution version of a test set."""

from typing import Any

import numpy as np

from choral.base import batches
from choral.base.errors import InputError


def to_images(x: np.ndarray, *, shape: tuple[int, int] | None = None) -> np.ndarray:
    """Return inputs as uint8 images (batch, height, width, channel).

    Args:
        x: bytes, or numbers from 0 to 1: (batch, channel, height, width), or (batch, height * width) with a shape.
        shape: height and width of flat inputs.

    >>> to_images(np.array([[0.0, 0.5, 1.0, 0.2]]), shape=(2, 2))[0, :, :, 0].tolist()
    [[0, 128], [255, 51]]
    """
    x = np.asarray(x)
    why = _why_no_images(x, shape)
    if why:
        raise InputError(why)
    x = x.reshape(len(x), 1, *shape) if x.ndim == 2 and shape is not None else x
    x = x if x.dtype == np.uint8 else np.rint(x.clip(0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def _why_no_images(x: np.ndarray, shape: tuple[int, int] | None) -> str:
    flat = x.ndim == 2 and shape is not None and x.shape[1] == shape[0] * shape[1]
    if not flat and (x.ndim != 4 or x.shape[1] not in (1, 3)):
        return (
            f"x has shape {x.shape}; images are (batch, channel, height, width) with 1 or 3 channels, or flat rows whose "
            "height and width are given."
        )
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if x.dtype == np.uint8 or (x.dtype.kind == "f" and low >= -1e-6 and high <= 1 + 1e-6):
        return ""
    return (
        f"x runs from {low:.4g} to {high:.4g} ({x.dtype}); images must be bytes or numbers from 0 to 1. Normalize "
        "with choral.data.Normalize inside the ensemble instead of beforehand."
    )


def from_images(images: np.ndarray, *, like: np.ndarray) -> np.ndarray:
    """Return uint8 images in the layout and dtype of the inputs they were made from.

    >>> x = np.array([[0.0, 0.6, 1.0, 0.2]], dtype=np.float32)
    >>> bool(np.allclose(from_images(to_images(x, shape=(2, 2)), like=x), x))
    True
    """
    like = np.asarray(like)
    x = images.transpose(0, 3, 1, 2).reshape(len(images), *like.shape[1:])
    return np.ascontiguousarray(x) if like.dtype == np.uint8 else (x / 255).astype(like.dtype)


def holds_images(x: np.ndarray, *, shape: tuple[int, int] | None = None) -> bool:
    """Return whether `to_images` would accept the inputs."""
    return not _why_no_images(np.asarray(x)[:64], shape)


def strange(x: Any, *, shape: tuple[int, int] | None = None, seed: int = 0) -> tuple[Any, str]:
    """Return out-of-distribution inputs made from these, and a description.

    Images are in turn inverted, cut into a grid of shuffled patches, or covered by noise. The columns of tables, and each of several inputs,
    are shuffled separately: values are usual, but their combination is not.

    Args:
        x: inputs of any kind.
        shape: height and width of images stored flat.
        seed: seed of the draws.
    """
    draw = np.random.default_rng(seed)
    if isinstance(x, dict | tuple | list):
        apart = batches.mapped(lambda t: t[draw.permutation(len(t))], x)
        return apart, "the same inputs, each of them shuffled by itself"
    x = np.asarray(x)
    if not holds_images(x, shape=shape):
        columns = x.reshape(len(x), -1)
        mixed = np.stack([draw.permutation(column) for column in columns.T], 1)
        return mixed.reshape(x.shape), "the same rows with every column shuffled by itself"
    images = to_images(x, shape=shape)
    made = images.copy()
    made[0::3] = 255 - images[0::3]
    made[1::3] = _shuffled_patches(images[1::3], draw)
    noise = draw.integers(0, 256, images[2::3].shape)
    made[2::3] = np.where(draw.random(noise.shape) < 0.6, noise, images[2::3])
    return from_images(made, like=x), "the same images inverted, cut into shuffled patches, or drowned in noise"


def _shuffled_patches(images: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    rows, height, width, channels = images.shape
    down, across = (next(n for n in (4, 3, 2, 1) if size % n == 0) for size in (height, width))
    cut = images.reshape(rows, down, height // down, across, width // across, channels).swapaxes(2, 3)
    flat = cut.reshape(rows, down * across, *cut.shape[3:])
    order = draw.permuted(np.tile(np.arange(down * across), (rows, 1)), axis=1)
    mixed = flat[np.arange(rows)[:, None], order].reshape(cut.shape)
    return mixed.swapaxes(2, 3).reshape(images.shape)
