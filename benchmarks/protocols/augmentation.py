"""RandAugment, the augmentation of one network of Packed-Ensembles."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base import draws
from choral.data import Transform


@dataclass(frozen=True, kw_only=True)
class RandAugment(Transform):
    """Change each image by some operations drawn from fourteen, all at one strength; stands before `Normalize`.

    Args:
        count: operations one after the other.
        magnitude: strength, from 0 to 1; 0.3 is 9 of 30.

    Reference: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2020,
    arXiv:1909.13719.

    Differs from the paper: what moves in from outside is black, and pixels are not interpolated.
    """

    count: int = 2
    magnitude: float = 0.3
    only_training: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        """Return changed images (batch, channel, height, width) with values from 0 to 1."""
        for _ in range(self.count):
            which = draws.integers(len(_COLORS) + len(_MOVES) + 1, (len(x),), device=x.device, rows=0)
            forth = draws.keep_mask((len(x),), 0.5, device=x.device, rows=0)
            x = _augmented(x, which, torch.where(forth, self.magnitude, -self.magnitude).to(x.dtype))
        return x


def _augmented(x: Tensor, which: Tensor, strength: Tensor) -> Tensor:
    """Return images under one operation each: of color, of place, or (the last number) none."""
    own, amount = which.view(-1, 1, 1, 1), strength.view(-1, 1, 1, 1)
    made = _moved(x, which - len(_COLORS), strength)
    for number, change in enumerate(_COLORS):
        made = torch.where(own == number, change(x, amount).clamp(0, 1), made)
    return made


def _moved(x: Tensor, which: Tensor, strength: Tensor) -> Tensor:
    """Return images turned, sheared or shifted; those with another number as they are."""
    zero = torch.zeros_like(strength)
    picked = {name: torch.where(which == number, size * strength, zero) for number, (name, size) in enumerate(_MOVES)}
    turn = picked["turn"]
    rows = (
        torch.stack([turn.cos(), turn.sin() + picked["shear x"], picked["shift x"]], 1),
        torch.stack([picked["shear y"] - turn.sin(), turn.cos(), picked["shift y"]], 1),
    )
    still = ((which < 0) | (which >= len(_MOVES))).view(-1, 1, 1, 1)
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return torch.where(still, x, F.grid_sample(x, grid, mode="nearest", align_corners=False))


def _gray(x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True)


def _posterized(x: Tensor, amount: Tensor) -> Tensor:
    step = 2 ** (4 * amount.abs()).round()
    return (x * 255 / step).floor() * step / 255


def _stretched(x: Tensor, amount: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)


def _equalized(x: Tensor, amount: Tensor) -> Tensor:
    flat = x.flatten(2).contiguous()
    below = torch.searchsorted(flat.sort(-1).values, flat, right=True)
    return (below.to(x.dtype) / flat.shape[-1]).view(x.shape)


def _sharpened(x: Tensor, amount: Tensor) -> Tensor:
    return x + 0.9 * amount * (x - F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False))


_COLORS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, amount: x * (1 + 0.9 * amount),
    lambda x, amount: torch.lerp(_gray(x).mean((2, 3), keepdim=True).expand_as(x), x, 1 + 0.9 * amount),
    lambda x, amount: torch.lerp(_gray(x).expand_as(x), x, 1 + 0.9 * amount),
    lambda x, amount: torch.where(x < 1 - amount.abs(), x, 1 - x),
    _posterized,
    _stretched,
    _equalized,
    _sharpened,
)
"""Brightness, contrast, color, solarizing, posterizing, contrast stretched to the whole range, equalizing, sharpness."""
_MOVES = (("turn", math.pi / 6), ("shear x", 0.3), ("shear y", 0.3), ("shift x", 0.9), ("shift y", 0.9))
"""Moves and their largest sizes: an angle, and shares of half an image."""
