"""Input transforms: scaling of bytes, normalization, augmentation.

Transforms are values and are saved with the ensemble. Augmentations draw from `choral.base.draws`, keyed by their place in the plan.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base import devices, draws
from choral.base.batches import Batch, in_words
from choral.base.errors import InputError, did_you_mean
from choral.base.values import Finite, Positive, Value, fits


@dataclass(frozen=True, kw_only=True)
class Transform(Value, ABC):
    """A function of a batch of inputs."""

    only_training: ClassVar[bool] = False
    """Whether it is an augmentation, which predictions go without."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Return the changed batch (batch, ...)."""


@dataclass(frozen=True, kw_only=True)
class Normalize(Transform):
    """Subtract a mean and divide by a standard deviation for each channel or feature (axis 1).

    >>> Normalize(mean=(1.0, 2.0), std=(1.0, 2.0))(torch.tensor([[2.0, 4.0]])).tolist()
    [[1.0, 1.0]]
    """

    mean: tuple[Finite, ...]
    std: tuple[Positive, ...]

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) > 0:
            raise InputError(f"mean is {self.mean} and std {self.std}; give as many of both.")

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() > 1 and len(self.mean) not in (1, x.shape[1]):
            raise InputError(
                f"Normalize has {len(self.mean)} means, but a batch {tuple(x.shape)} has {x.shape[1]} channels; give one for each, or one for all."
            )
        shape = (-1,) + (1,) * (x.dim() - 2)
        mean, std = (devices.constant(v, x.dtype, x.device).view(shape) for v in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True, kw_only=True)
class PadCrop(Transform):
    """Pad images with zeros and crop them at a random place."""

    pixels: int = 4
    only_training: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        corners = draws.integers(2 * self.pixels + 1, (2, batch), device=x.device, rows=1)
        rows = corners[0].unsqueeze(1) + torch.arange(height, device=x.device)
        columns = corners[1].unsqueeze(1) + torch.arange(width, device=x.device)
        padded = F.pad(x, (self.pixels,) * 4).movedim(1, -1)
        which = torch.arange(batch, device=x.device)
        return padded[which[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


@dataclass(frozen=True, kw_only=True)
class HorizontalFlip(Transform):
    """Mirror each image horizontally with probability one half."""

    only_training: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        keep = draws.keep_mask((x.shape[0],), 0.5, device=x.device, rows=0)
        return torch.where(keep.view(-1, *(1,) * (x.dim() - 1)), x, x.flip(-1))


@dataclass(frozen=True, kw_only=True)
class RandAugment(Transform):
    """Apply random operations out of fourteen to each image, all at one strength; must come before `Normalize`.

    Args:
        count: number of operations.
        magnitude: strength, from 0 to 1; 0.3 is 9 of 30.

    Reference: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2020,
    arXiv:1909.13719.

    Differs from the paper: pixels from outside the image are black, and pixels are not interpolated.
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
    own, amount = which.view(-1, 1, 1, 1), strength.view(-1, 1, 1, 1)
    made = _moved(x, which - len(_COLORS), strength)
    for number, change in enumerate(_COLORS):
        made = torch.where(own == number, change(x, amount).clamp(0, 1), made)
    return made


def _moved(x: Tensor, which: Tensor, strength: Tensor) -> Tensor:
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


@dataclass(frozen=True, kw_only=True)
class Mixing(Transform, ABC):
    """An augmentation that mixes each row with another, its partner; the loss is mixed in the same shares.

    It is applied after all other transforms of training. Only one is allowed, and none if members read different batches.

    Args:
        alpha: shares of a row are drawn from Beta(alpha, alpha), one for each batch.
    """

    alpha: Positive = 1.0
    only_training: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        """Return the batch unchanged: rows are mixed together with their targets, by `mixed`."""
        return x

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mixed rows, the partner of each, and the share of its own target."""
        one = torch.zeros((), device=x.device)
        partners = draws.uniform((len(x),), like=one).argsort()
        quantiles = _beta_quantiles(self.alpha).to(x.device)
        share = quantiles[(draws.uniform((), like=one) * len(quantiles)).long()]
        made, share = self._mix(x, x[partners], share)
        return made, partners, share

    @abstractmethod
    def _mix(self, x: Tensor, other: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of two batches mixed, and the share of the first."""


@functools.cache
def _beta_quantiles(alpha: float, count: int = 4096) -> Tensor:
    from scipy.special import betaincinv

    return torch.from_numpy(betaincinv(alpha, alpha, (np.arange(count) + 0.5) / count)).float()


@dataclass(frozen=True, kw_only=True)
class Mixup(Mixing):
    """Rows become share * row + (1 - share) * partner.

    Reference: Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018, arXiv:1710.09412.
    """

    def _mix(self, x: Tensor, other: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        return share.to(x.dtype) * x + (1 - share.to(x.dtype)) * other, share


@dataclass(frozen=True, kw_only=True)
class CutMix(Mixing):
    """A rectangle of each image, the same in the whole batch, is replaced by that of its partner.

    Reference: Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers", 2019, arXiv:1905.04899.
    """

    def _mix(self, x: Tensor, other: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        center = draws.uniform((2,), like=share)
        inside = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        for axis, size in enumerate(x.shape[-2:]):
            places = torch.arange(size, device=x.device) + 0.5
            within = (places - center[axis] * size).abs() < 0.5 * size * (1 - share).sqrt()
            inside = inside & (within[:, None] if axis == 0 else within[None])
        return torch.where(inside, other, x), 1 - inside.to(share.dtype).mean()


Transforms: TypeAlias = tuple[Transform, ...] | Mapping[str, tuple[Transform, ...]]
"""Transforms of one tensor, or those of some inputs among several, by key."""


def prepare(x: Batch, transforms: Transforms = (), *, training: bool, floats: torch.dtype = torch.float32) -> Batch:
    """Return a batch for the network: bytes scaled to [0, 1], then the transforms; augmentations in training only.

    Transforms are checked by `checked_transforms`. Scaled bytes get the dtype `floats`.
    """
    match x:
        case Tensor():
            if x.dtype == torch.uint8:
                x = x.to(floats).div_(255)
            for transform in transforms:
                if training or not transform.only_training:  # type: ignore[union-attr]  # a tensor has a tuple of them
                    x = transform(x)  # type: ignore[operator]  # as above
            return x
        case dict():
            by_key = transforms if isinstance(transforms, Mapping) else {}
            return {n: prepare(t, by_key.get(n, ()), training=training, floats=floats) for n, t in x.items()}
    return type(x)(prepare(t, training=training, floats=floats) for t in x)


def checked_transforms(inputs: Any, x: Batch) -> Transforms:
    """Return transforms if they fit a batch, else raise InputError."""
    if isinstance(inputs, Mapping):
        tensors = [n for n, t in x.items() if isinstance(t, Tensor)] if isinstance(x, dict) else []
        for name in [n for n in inputs if n not in tensors]:
            raise InputError(
                f"transforms has those for {name!r}, but x is {in_words(x)}; give keys of tensors in a dict.{did_you_mean(str(name), tensors)}"
            )
        return {name: _transforms(own, f"transforms[{name!r}]") for name, own in inputs.items()}
    made = _transforms(inputs, "transforms")
    if made and not isinstance(x, Tensor):
        raise InputError(
            f"transforms has those of one tensor, but x is {in_words(x)}; give them by key, transforms={{'name': (...)}}, with x a dict."
        )
    return made


def _transforms(given: Any, name: str) -> tuple[Transform, ...]:
    made = (given,) if isinstance(given, Transform) else given
    if not fits(made, tuple[Transform, ...]):
        raise InputError(
            f"{name} is {given!r}; give transforms of choral.data, such as (Normalize(mean=..., std=...),)."
        )
    if sum(isinstance(t, Mixing) for t in made) > 1:
        raise InputError(f"{name} has several transforms that mix rows; give one of them.")
    return tuple(made)


def written(transforms: Transforms) -> Any:
    """Return transforms as plain values."""
    if isinstance(transforms, Mapping):
        return {name: [t.to_dict() for t in own] for name, own in transforms.items()}
    return [t.to_dict() for t in transforms]
