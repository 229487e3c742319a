"""Quantiles: no density, only the values below which given shares of targets lie."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from choral.base import devices
from choral.base.errors import InputError
from choral.objectives.likelihoods.base import About
from choral.objectives.likelihoods.regression import RealLikelihood
from choral.objectives.likelihoods.shapes import aligned, check_real, check_varied
from choral.predictions import Predictive, QuantileRegression


@dataclass(frozen=True, kw_only=True)
class Quantiles(RealLikelihood):
    """Quantiles of real targets by the pinball loss; outputs are (member, batch, target * level), levels side by side.

    Args:
        levels: the shares, rising, between 0 and 1; the middle one is the point prediction.

    Reference: Koenker & Bassett, "Regression Quantiles", 1978, equation 3.1.
    """

    prediction: ClassVar[type[Predictive]] = QuantileRegression
    described: ClassVar[str] = "quantiles"

    levels: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.levels, self.levels[1:]))
        if not self.levels or not rising or not self.levels[0] > 0 or not self.levels[-1] < 1:
            raise InputError(
                f"levels are {self.levels}; give rising shares between 0 and 1, such as (0.05, 0.5, 0.95)."
            )

    def _by_level(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(2, (-1, len(self.levels)))  # (member, batch, target, level)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the pinball loss, averaged over levels and summed over targets."""
        found = self._by_level(outputs)
        errors = aligned(targets, found[..., 0]).unsqueeze(-1) - found
        shares = devices.constant(self.levels, errors.dtype, errors.device)
        return torch.maximum(shares * errors, (shares - 1) * errors).mean(-1).sum(-1)

    def outputs_for(self, targets: Tensor) -> int:
        """Return one for each level of each target."""
        return len(self.levels) * (1 if targets.dim() == 1 else targets.shape[1])

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        """Refuse shapes that do not fit, and targets that are all the same."""
        self.check_judged(targets, outputs)
        check_varied(targets)

    def check_judged(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        """Refuse shapes that do not fit."""
        check_real(targets, outputs, each=len(self.levels), what=f"a likelihood of {len(self.levels)} quantiles")

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        """Return the quantiles in order, in units of the data."""
        found = self._by_level(outputs).sort(-1).values
        if self.scale is not None:
            found = self.scale.undo(found.transpose(-1, -2)).transpose(-1, -2)
        return QuantileRegression(found, self.levels, learners=about.learners)
