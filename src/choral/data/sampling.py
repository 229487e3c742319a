"""How an epoch draws from the points, where each has not one turn: by weights, with replacement, or only some."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.errors import InputError


@dataclass(frozen=True, eq=False)
class Sampling:
    """A rule by which epochs draw points.

    Args:
        weights: of every point, from 0, in float64; they need not sum to 1.
        count: points in an epoch.
        replacement: whether a point can come more than once.
    """

    weights: Tensor
    count: int
    replacement: bool

    def __post_init__(self) -> None:
        usable = int((self.weights > 0).sum())
        if self.count < 1 or not usable or (not self.replacement and self.count > usable):
            raise InputError(
                f"the sampler draws {self.count} points an epoch {'with' if self.replacement else 'without'} replacement, but "
                f"{usable} of its {len(self.weights)} weights are above 0; give weights for the points, or another num_samples."
            )

    def order(self, generator: torch.Generator, subset: Tensor | None = None) -> Tensor:
        """Return the points of one epoch, as positions in the subset if there is one."""
        weights = self.weights if subset is None else self.weights[subset]
        return torch.multinomial(weights, self.count, self.replacement, generator=generator)

    def of_rows(self, rows: Tensor) -> "Sampling":
        """Return the rule for some of the points, which draw their share of the epoch."""
        kept = self.weights[rows]
        share = len(rows) / len(self.weights)
        return Sampling(kept, max(1, min(round(self.count * share), self.count)), self.replacement)

    @property
    def digest(self) -> str:
        """A short text that changes with the rule."""
        state = hashlib.sha256(f"{self.count} {self.replacement}".encode())
        state.update(self.weights.contiguous().numpy().data)
        return state.hexdigest()[:24]
