"""An objective: a likelihood and the penalties added to it."""

from dataclasses import dataclass

from torch import Tensor

from choral.base.types import Params, Slots
from choral.base.values import Value
from choral.objectives.likelihoods import Likelihood
from choral.objectives.penalties import Penalty


@dataclass(frozen=True, kw_only=True)
class Objective(Value):
    """What one training step minimizes: likelihood + penalties / N.

    Args:
        likelihood: what the outputs mean; None is decided from the data.
        penalties: sums over parameters, divided by the number of training points.
    """

    likelihood: Likelihood | None = None
    penalties: tuple[Penalty, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """All state slots the penalties read."""
        return tuple(dict.fromkeys(s for p in self.penalties for s in p.slots))

    def penalty(self, params: Params, slots: Slots, progress: float, points: float) -> Tensor:
        """Return the summed penalties divided by N; there must be one."""
        total = self.penalties[0](params, slots, progress)
        for p in self.penalties[1:]:
            total = total + p(params, slots, progress)
        return total / points
