"""The anchored penalty: parameters are pulled to a random anchor instead of to zero."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params, Slots
from choral.bayes.priors import scale
from choral.objectives.penalties import Penalty


@dataclass(frozen=True, kw_only=True)
class Anchored(Penalty):
    """Squared distance to the anchor in units of the prior: sum (theta - anchor)^2 / (2 prior_std^2).

    With anchors drawn from the prior N(0, prior_std^2), the minima of likelihood + penalty spread around the posterior.
    For linear regression with prior precision P and posterior precision A, their mean is the posterior's and their
    covariance is A^-1 P A^-1: too narrow along directions the data decide. It becomes exactly A^-1 once every member
    also sees its own targets, y + noise of the likelihood. Only the parameters named in the slot `anchor` are pulled.

    Args:
        prior_std: the standard deviation of the Gaussian prior, above 0.
        scaled: divide it by the root of a weight's inputs (`choral.bayes.priors.scale`).

    Reference: Pearce et al., "Uncertainty in Neural Networks: Approximately Bayesian Ensembling", 2020,
        arXiv:1810.05546; Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649.

    >>> penalty = Anchored(prior_std=0.5)
    >>> penalty({"w": torch.tensor([1.0, 2.0])}, {"anchor": {"w": torch.tensor([0.0, 2.0])}}, 0.0).item()
    2.0
    """

    slots: ClassVar[tuple[str, ...]] = ("anchor",)
    prior_std: float = 1.0
    scaled: bool = False

    def __post_init__(self) -> None:
        if not self.prior_std > 0:
            raise InputError(f"Anchored: prior_std={self.prior_std!r}, but a standard deviation is above 0.")

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        """Return the penalty of the parameters around the slot `anchor`."""
        anchor = slots["anchor"]
        if not anchor.keys() <= params.keys():
            missing = ", ".join(sorted(anchor.keys() - params.keys()))
            raise InputError(f"The anchor names parameters the network does not have: {missing}; start a new anchor.")
        squares = [
            (params[name] - target).square().sum() / (scale(target.shape) ** 2 if self.scaled else 1.0)
            for name, target in anchor.items()
        ]
        return torch.stack(squares).sum() / (2 * self.prior_std**2) if squares else torch.zeros(())
