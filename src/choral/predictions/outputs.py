"""Raw outputs: what is predicted where only the user's own loss knows what outputs mean."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from choral import metrics
from choral.base.batches import tensor_of
from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration import MemberSelection, StackingWeights
from choral.calibration.selection import Loss
from choral.predictions.base import Predictive, means_of


@dataclass(frozen=True)
class Outputs(Predictive):
    """Outputs of the members, their mean and their spread; no probabilities.

    Args:
        member_outputs: (member, batch, ...).
        function: the loss, called with outputs and targets (batch, ...).
        shape: what of the outputs is shown; the outputs themselves if None.
    """

    task: ClassVar[str] = "outputs"
    held: ClassVar[tuple[str, ...]] = ("member_outputs",)
    score: ClassVar[str] = "loss"
    shown: ClassVar[tuple[str, ...]] = ("loss", "member_loss", "spread")
    alarm: ClassVar[str] = "spread"
    offers: ClassVar[tuple[str, ...]] = ("mean", "std")
    accepts: ClassVar[tuple[type[Value], ...]] = (MemberSelection, StackingWeights)

    member_outputs: Tensor
    function: Callable[[Tensor, Tensor], Tensor]
    shape: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def member_values(self) -> Tensor:
        """What is shown of each member's outputs (member, batch, ...)."""
        return self.member_outputs if self.shape is None else self.shape(self.member_outputs)

    @cached_property
    def mean(self) -> Tensor:
        """Mean over members (batch, ...)."""
        return self.average(self.member_values)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance over members (batch, ...)."""
        return self.average((self.member_values - self.mean).square())

    @property
    def variance(self) -> Tensor:
        """Variance over members (batch, ...)."""
        return self.epistemic

    @property
    def std(self) -> Tensor:
        """Deviation over members (batch, ...)."""
        return self.variance.sqrt()

    @property
    def aleatoric(self) -> Tensor:
        """Zero: a loss says nothing about noise."""
        return torch.zeros_like(self.mean)

    def check_mixture(self) -> None:
        """Refuse: raw outputs have no log score."""
        raise InputError(
            "raw outputs have no log score by which members could be weighed or selected; leave select and stacking out."
        )

    def targets(self, y: Any) -> Tensor:
        """Return targets as training gave them to the loss."""
        found = tensor_of(y)
        if len(found) != self.member_outputs.shape[1]:
            raise InputError(f"y has {len(found)} rows and the prediction {self.member_outputs.shape[1]}.")
        return found.float() if found.is_floating_point() else found.long()

    def log_scores(self, targets: Tensor) -> Tensor:
        """Refuse: there is no density."""
        self.check_mixture()
        raise AssertionError

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return the members' outputs, and the user's loss of averaged ones."""

        def loss(average: Tensor) -> Tensor:
            return torch.stack([self._rows(one.to(self.member_outputs.dtype), targets) for one in average])

        return self.member_outputs.double(), loss

    def _rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = self.function(outputs, targets.clone())
        if not each.dim():
            return each.double().expand(len(targets))
        return each.double().flatten(1).mean(1) if each.dim() > 1 else each.double()

    def row_weights(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weights; raises InputError for a loss that gives one number for all points."""
        if not self.function(self.member_outputs[0], targets.clone()).dim():
            raise InputError(
                f"the loss {getattr(self.function, 'name', 'given')} returns one number for a batch, so weights of points cannot be honored; return "
                "the loss of each point, for example with reduction='none'."
            )
        return weights

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return the loss of the members' mean outputs, the mean of their losses, and their spread."""
        alone = torch.stack([self._rows(o, targets) for o in self.member_outputs])
        return {
            "loss": self._rows(self.average(self.member_outputs), targets),
            "member_loss": self.average(alone),
            "spread": self._spread,
        }

    @cached_property
    def _spread(self) -> Tensor:
        return self.std.double().reshape(len(self.std), -1).mean(1)

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return the means of `row_scores`."""
        return means_of(self.row_scores(targets))

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return the loss."""
        return {"loss": self.scores(targets)["loss"]}

    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return nothing: what a picture of the task would be is unknown."""
        return {}

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return how alike the members' departures from their mean are."""
        return "correlation of outputs", metrics.correlation_matrix(self.by_member(self.member_values).flatten(1))

    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return the mean deviation over members."""
        return "deviation", self._spread, None

    def alarms(self) -> dict[str, Tensor]:
        """Return the spread."""
        return {"spread": self._spread}

    def columns(self) -> dict[str, list[Any]]:
        """Return mean and deviation of every output."""
        mean, std = (v.reshape(len(v), -1) for v in (self.mean, self.std))
        return {f"{n}_{i}": v[:, i].tolist() for i in range(mean.shape[1]) for n, v in (("mean", mean), ("std", std))}
