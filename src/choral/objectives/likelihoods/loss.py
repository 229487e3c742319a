"""A loss of the user's own: it trains anything, and predicts raw outputs with their mean and spread."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.portrait import Function
from choral.objectives.likelihoods.base import About, Likelihood
from choral.predictions import Outputs, Predictive


@dataclass(frozen=True)
class Loss(Likelihood):
    """Any function of outputs and targets as an objective.

    What it means is unknown, so predictions are raw: each member's outputs, their mean and their spread. Targets are given to
    it as they are in y.

    Args:
        function: called with the outputs (batch, ...) and targets (batch, ...) of one member; returns the loss of each point
            (batch,) or of each of its numbers (batch, ...), or one number, the mean over the batch. Only losses of points can
            be weighted.
        output: what of raw outputs predictions show, a function such as torch.sigmoid; the outputs themselves if None.

    >>> loss = Loss(torch.nn.functional.l1_loss)
    >>> loss.loss(torch.zeros(2, 3, 1), torch.ones(2, 3, 1)).item()
    2.0
    """

    prediction: ClassVar[type[Predictive]] = Outputs

    function: Function
    output: Function | None = None

    def __init__(self, function: Any, output: Any = None):
        """Take functions, or what a file says of them."""
        for name, given in (("function", function), ("output", output)):
            if not callable(given) and not (given is None and name == "output"):
                raise InputError(f"{name} is {given!r}; give a function of outputs and targets that returns a loss.")
            kept = given if given is None or isinstance(given, Function) else Function.of(given)
            object.__setattr__(self, name, kept)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what the function makes of each member's points."""
        each = [self.function(o, t.clone()) for o, t in zip(outputs, targets)]  # which it may write into
        if each[0].dim() == 0:
            return torch.stack(each).unsqueeze(1).expand(-1, outputs.shape[1])
        return torch.stack([e.flatten(1).mean(1) if e.dim() > 1 else e for e in each])

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        """Call the function once; what it raises, or returns, is said before training."""
        few = targets[:2].clone()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size")  # torch's word for a broadcast
                found = self.function(torch.zeros(len(few), *outputs), few)
        except (RuntimeError, ValueError, TypeError, IndexError, UserWarning) as error:
            raise InputError(
                f"the loss {self.function.name} cannot take outputs of shape {(len(few), *outputs)} and targets of shape "
                f"{tuple(few.shape)} ({few.dtype}): {str(error).splitlines()[0]}"
            ) from error
        if not isinstance(found, Tensor) or (
            found.dim() and tuple(found.shape) not in ((len(few),), (len(few), *outputs))
        ):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"the loss {self.function.name} returned {shape} for a batch of {len(few)}; return one number, or one for each "
                "point of the batch."
            )

    def settled(
        self,
        targets: Tensor,
        outputs: tuple[int, ...],
        *,
        standardize: bool | None = None,
        weights: Tensor | None = None,
        whole: bool = True,
    ) -> Self:
        """Return itself; refuse weights of points for a function that gives one mean for all of them."""
        if weights is not None and not self.function(torch.zeros(1, *outputs), targets[:1].clone()).dim():
            raise InputError(
                f"the loss {self.function.name} returns one number for a batch, so weights of points cannot be honored; return the "
                "loss of each point, for example with reduction='none'."
            )
        return self

    def with_functions_of(self, given: Self) -> Self:
        """Return the given one, whose functions must have the names of these."""
        names = [[f and f.name for f in (loss.function, loss.output)] for loss in (self, given)]
        if names[0] != names[1]:
            raise InputError(
                f"it was fitted with the functions {names[0]}, but likelihood holds {names[1]}; give its own."
            )
        return given

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        """Return the outputs as they are."""
        return Outputs(outputs, self.function, self.output, learners=about.learners)
