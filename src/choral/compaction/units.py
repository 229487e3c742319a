"""Units: the smallest sets of channels that can only be removed together, and what is known of a tensor's channels."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Channels:
    """What is known about the channels along one axis of a tensor.

    Args:
        axis: which axis, from 0.
        units: the unit of every channel, (channel,).
        constants: the value a channel has at every place and for every input, (channel,); NaN where it varies.
    """

    axis: int
    units: Tensor
    constants: Tensor

    def moved(self, axis: int) -> "Channels":
        """Return the same channels along another axis."""
        return Channels(axis, self.units, self.constants)

    def valued(self, constants: Tensor) -> "Channels":
        """Return the same channels with other constants."""
        return Channels(self.axis, self.units, constants.to(self.constants))

    def zero_only(self) -> "Channels":
        """Return the channels with every constant but zero forgotten."""
        return self.valued(self.constants.where(self.constants == 0, torch.nan))


class Units:
    """A growing set of units that can be tied to each other and locked (never to be removed), with the reason."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._locks: list[tuple[Tensor, str]] = []

    def fresh(self, count: int) -> Tensor:
        """Return new units, each on its own."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def _root(self, unit: int) -> int:
        while self._parents[unit] != unit:
            self._parents[unit] = self._parents[self._parents[unit]]
            unit = self._parents[unit]
        return unit

    def tie(self, one: Tensor, other: Tensor) -> None:
        """Tie units place by place."""
        for a, b in torch.stack([one, other], dim=1).unique(dim=0).tolist():
            low, high = sorted((self._root(a), self._root(b)))
            self._parents[high] = low

    def lock(self, units: Tensor, reason: str) -> None:
        """Never remove these units."""
        self._locks.append((units.unique(), reason))

    def roots(self) -> Tensor:
        """Return for every unit the first unit it is tied to, (unit,)."""
        return torch.tensor([self._root(i) for i in range(len(self._parents))], dtype=torch.long)

    def locks(self) -> Iterable[tuple[Tensor, str]]:
        """Return the locked units with their reasons, in the order of execution."""
        return self._locks
