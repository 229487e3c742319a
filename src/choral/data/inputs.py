"""What happens to a batch before the network sees it: bytes to numbers, normalisation, augmentation.

All of these are values, so they are saved with the ensemble. Augmentations draw from `choral.base.draws`, so they follow the
place in the plan like everything else.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base import draws
from choral.base.errors import InputError
from choral.base.values import Value


@dataclass(frozen=True, kw_only=True)
class Transform(Value, ABC):
    """A change of a whole batch of inputs.

    `only_training` says whether it is an augmentation (left out when predicting).
    """

    @property
    def only_training(self) -> bool:
        """Whether predictions go without it."""
        return False

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Return the changed batch (batch, ...)."""


@dataclass(frozen=True, kw_only=True)
class Normalise(Transform):
    """Subtract a mean and divide by a standard deviation for each channel or feature (axis 1).

    >>> Normalise(mean=(1.0, 2.0), std=(1.0, 2.0))(torch.tensor([[2.0, 4.0]])).tolist()
    [[1.0, 1.0]]
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.mean)) or not all(0 < s < math.inf for s in self.std):
            raise InputError(f"mean is {self.mean} and std {self.std}; give finite numbers, and deviations above 0.")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised batch."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device).view(shape) for v in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True, kw_only=True)
class PadCrop(Transform):
    """Pad images by some pixels of zeros and crop them back at a random place."""

    pixels: int = 4

    @property
    def only_training(self) -> bool:
        """An augmentation."""
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """Return shifted images (batch, channel, height, width)."""
        batch, _, height, width = x.shape
        corners = draws.integers(2 * self.pixels + 1, (2, batch), device=x.device)
        rows = corners[0].unsqueeze(1) + torch.arange(height, device=x.device)
        columns = corners[1].unsqueeze(1) + torch.arange(width, device=x.device)
        padded = F.pad(x, (self.pixels,) * 4).movedim(1, -1)
        which = torch.arange(batch, device=x.device)
        return padded[which[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


@dataclass(frozen=True, kw_only=True)
class HorizontalFlip(Transform):
    """Mirror each image left to right with probability one half."""

    @property
    def only_training(self) -> bool:
        """An augmentation."""
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """Return images, half of them mirrored."""
        keep = draws.keep_mask((x.shape[0],), 0.5, device=x.device)
        return torch.where(keep.view(-1, *(1,) * (x.dim() - 1)), x, x.flip(-1))


def prepare(x: Tensor, transforms: tuple[Transform, ...], *, training: bool) -> Tensor:
    """Return a batch ready for the network: bytes scaled to [0, 1], then the transforms that apply."""
    if x.dtype == torch.uint8:
        x = x.float().div_(255)
    for transform in transforms:
        if training or not transform.only_training:
            x = transform(x)
    return x
