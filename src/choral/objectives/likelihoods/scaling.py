"""Real targets in the units of training: columns of mean 0 and deviation 1, and the way back."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from choral.base import devices
from choral.base.errors import InputError
from choral.base.values import Value

_FAR = 1e4  # deviations that a mean may be from 0 for predictions in float32, at most
_LARGE = 1e16  # deviation of targets whose predictions are float32, at most; one over it, at least
_WIDEST = 1e140  # deviation of targets at all


@dataclass(frozen=True, kw_only=True)
class TargetScale(Value):
    """What each target loses and is divided by before training.

    Args:
        mean: one for each target (the last axis).
        std: one for each target, above 0.

    >>> scale = TargetScale.of(torch.tensor([[1.0], [3.0]]))
    >>> scale.std, scale.apply(torch.tensor([[5.0]])), scale.undo(torch.tensor([[3.0]]))
    ((1.0,), tensor([[3.]]), tensor([[5.]]))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.mean)) or not all(0 < s < math.inf for s in self.std) or not self.std:
            raise InputError(
                f"targets have mean {self.mean} and deviation {self.std}; give finite numbers, std above 0."
            )

    @classmethod
    def of(cls, targets: Tensor, weights: Tensor | None = None) -> Self:
        """Return the scale of some targets (point, target), by the weights of points; columns of equal values keep theirs."""
        columns = targets.double().reshape(-1, targets.shape[-1])
        shares = torch.ones(len(columns)) if weights is None else weights
        shares = (shares.double() / shares.double().sum()).unsqueeze(1)
        mean = (shares * columns).sum(0)
        std = (shares * (columns - mean).square()).sum(0).sqrt()
        largest = columns.abs().max(0).values
        if bool((std <= 1e-9 * largest).any()):  # which the rounding of such a mean comes near to
            apart = columns - columns[0]
            middle = (shares * apart).sum(0)
            mean = torch.where(std <= 1e-9 * largest, columns[0] + middle, mean)
            std = torch.where(std <= 1e-9 * largest, (shares * (apart - middle).square()).sum(0).sqrt(), std)
        flat = std <= 1e-15 * largest
        odd = ~flat & ((std > _WIDEST) | (std < 1 / _WIDEST) | ~std.isfinite()) | (
            (columns != mean).any(0) & (std == 0)
        )
        if bool(odd.any()):
            raise InputError(
                f"y runs from {float(columns.min()):.3g} to {float(columns.max()):.3g}, and the square of its deviation is beyond float64; "
                "rescale y."
            )
        return cls(mean=tuple(mean.tolist()), std=tuple(torch.where(flat, 1.0, std).tolist()))

    @property
    def is_narrow(self) -> bool:
        """Whether float32 would round away what predictions differ by, or cannot hold their variance."""
        return any(abs(m) > _FAR * s or not 1 / _LARGE < s < _LARGE for m, s in zip(self.mean, self.std))

    def apply(self, targets: Tensor) -> Tensor:
        """Return targets (..., target) in units of training."""
        mean, std = self._as(targets)
        return ((targets.double() - mean.double()) / std.double()).to(targets.dtype)

    def undo(self, values: Tensor) -> Tensor:
        """Return values (..., target) in units of the data, in float64 where float32 is too coarse for them."""
        mean, std = self._as(values)
        return values * std + mean

    def widen(self, spreads: Tensor) -> Tensor:
        """Return deviations (..., target) in units of the data."""
        return spreads * self._as(spreads)[1]

    def _as(self, values: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if self.is_narrow else torch.promote_types(values.dtype, torch.float32)
        mean, std = (devices.constant(v, dtype, values.device) for v in (self.mean, self.std))
        return mean, std
