"""The interface of likelihoods, checks of the shapes of targets and outputs, and user-defined losses.

Outputs and targets have the member axis first, (member, batch, ...). A missing last axis means one target; nothing is broadcast. See
`objectives.penalties` for what is summed and what is averaged. Your own likelihood is a frozen dataclass with `nll` and `predict`, and
`outputs_each` or `check`. If torch has the distribution, derive from `Family` and define `distribution`:

    @dataclass(frozen=True, kw_only=True)
    class Gamma(Family):
        def distribution(self, outputs):
            return torch.distributions.Gamma(*F.softplus(outputs).chunk(2, -1), validate_args=False)
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.text import short
from choral.base.values import Function, Value
from choral.predictions import Outputs, Predictive


def columns(values: Tensor) -> Tensor:
    """Return (member, batch) as (member, batch, 1); other shapes are not changed."""
    return values.unsqueeze(-1) if values.dim() == 2 else values


def summed(each: Tensor) -> Tensor:
    """Return the sum over the targets of a row: (member, batch, target, ...) -> (member, batch, ...)."""
    return each[:, :, 0] if each.shape[2] == 1 else each.sum(2)


def aligned(targets: Tensor, means: Tensor) -> Tensor:
    """Return targets in the shape of predictions, (member, batch, target, ...).

    A missing target axis is added; other differences raise an error, so that no broadcast can hide them.

    >>> aligned(torch.zeros(2, 5), torch.zeros(2, 5, 1)).shape
    torch.Size([2, 5, 1])
    """
    if targets.shape == means.shape:
        return targets
    if targets.dim() == means.dim() - 1 and means.shape[2] == 1:
        targets = targets.unsqueeze(2)
    if targets.shape != means.shape:
        raise InputError(
            f"targets are {tuple(targets.shape[1:])} and the network predicts {tuple(means.shape[1:])}; make the last layer give one mean for each target."
        )
    return targets


def check_real(targets: Tensor, outputs: tuple[int, ...], *, each: int, what: str) -> None:
    """Raise InputError unless targets (row, ...) fit the outputs of one row, `each` of them for a target."""
    shape = tuple(targets.shape[1:]) or (1,)
    given = outputs or (1,)
    if len(shape) < len(given):
        shape = (1, *shape)
    if given[0] != each * shape[0] or given[1:] != shape[1:]:
        wanted = (each * shape[0], *shape[1:])
        raise InputError(
            f"the network gives outputs of shape {given} for one point and y has targets of shape {shape}; {what} takes {wanted}; change the last layer."
        )
    if targets.is_floating_point() and not torch.isfinite(targets).all():
        raise InputError("y holds NaN or infinite values; fill or drop these rows first.")


@dataclass(frozen=True)
class About:
    """What an ensemble knows about its outputs at prediction.

    Args:
        combine: how members are averaged, 'probs' or 'logits'; for classes only.
        names: the class labels in the data, if they are not 0, 1, 2, ...
        learners: the member of each row of the outputs; None if rows are members.
    """

    combine: str = "probs"
    names: tuple[str, ...] | None = None
    learners: tuple[int, ...] | None = None


class Known(NamedTuple):
    """What is known about the training data when a likelihood is resolved.

    Args:
        targets: checked training targets (row, ...).
        outputs: shape of the network's outputs for one row.
        standardize: whether to standardize real targets; None leaves it to the likelihood.
        weights: weights of rows (row,), equal if None.
        whole: whether these are all training targets, or only some.
    """

    targets: Tensor
    outputs: tuple[int, ...]
    standardize: bool | None = None
    weights: Tensor | None = None
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Likelihood(Value, ABC):
    """The meaning of a network's outputs.

    Class attributes: `prediction` is the class of `predict`'s result; `link` is torch's name of the function that maps outputs to
    probabilities, if there is one (a network that ends with it is doubtful).
    """

    prediction: ClassVar[type[Predictive]]
    link: ClassVar[str] = ""

    @property
    def outputs_each(self) -> int:
        """Number of outputs for one target, 0 if unknown."""
        return 0

    @property
    def noise_std(self) -> float | None:
        """Standard deviation of the noise on every target, in training units; None if it is not one known number."""
        return None

    @property
    def target(self) -> tuple[int, ...] | None:
        """The shape of one target in the data, if it differs from that in training, else None."""
        return None

    @abstractmethod
    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log likelihood of each row.

        Shapes: outputs (member, batch, ...), targets (member, batch, ...) from `read` -> (member, batch), or (member, batch, position, ...) for
        dense outputs, whose positions are averaged.
        """

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        """Raise InputError for targets that do not fit the outputs.

        Args:
            targets: training targets (row, ...), all of them or a few.
            outputs: shape of the network's outputs for one row.
        """
        check_real(targets, outputs, each=self.outputs_each, what=type(self).__name__)

    def doubt(self, targets: Tensor) -> str:
        """Return a warning about training targets (row, ...), for example that all are equal; empty for none."""
        read = self.read(targets)
        counted = self.counted(read)
        held = read if counted is None else read[counted]
        if len(read) < 2 or not held.numel() or not bool((held == held[:1]).all()):
            return ""
        return f"all targets are {short(str(held[0].tolist()), 40)}, so there is nothing to learn; check which column y is."

    def check_judged(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        """Raise InputError for targets that predictions cannot be scored on: as `check`, unless training has other targets."""
        self.check(targets, outputs)

    @abstractmethod
    def predict(self, outputs: Tensor, about: About) -> Predictive:
        """Return the predictive distribution of raw outputs (member, batch, ...), in the units of the data."""

    def classes(self, outputs: Tensor) -> int | None:
        """Return the number of classes of raw outputs (member, batch, ...); None if targets are not classes."""
        return None

    def outputs_for(self, targets: Tensor) -> int:
        """Return the number of outputs that a network needs for these training targets (row, ...)."""
        if not self.outputs_each:
            raise InputError(
                f"{type(self).__name__} does not say how many outputs it needs; give the network yourself."
            )
        return self.outputs_each * (1 if targets.dim() == 1 else targets.shape[1])

    def read(self, targets: Tensor) -> Tensor:
        """Return targets for `nll`, in the dtype and the units of training. Shapes: (..., row, ...)."""
        return targets if targets.is_floating_point() else targets.float()

    def settled(self, known: Known) -> Self:
        """Return the likelihood with its values from the training data, such as a scale or an axis."""
        return self

    def with_functions_of(self, given: Self) -> Self:
        """Return the likelihood with the functions of another of its kind, which files do not contain."""
        return self

    @property
    def estimates(self) -> bool:
        """Whether `estimated` estimates something after training."""
        return False

    def estimated(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Self:
        """Return the likelihood with values estimated on rows of training or, better, of validation.

        Shapes: outputs (member, batch, ...), targets (batch, ...) from `read`, weights (batch,).
        """
        return self

    def constant(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> str:
        """Return the name of a constant that predicts rows as well as the members' mixture ('their mean'); empty if members are better.

        Shapes: outputs (member, batch, ...), targets (batch, ...) from `read`, weights (batch,).
        """
        return ""

    def miscalibrated(self, outputs: Tensor, targets: Tensor) -> str:
        """Return how a temperature would improve the probabilities of held-out rows, as text; empty if not by much."""
        return ""

    def counted(self, targets: Tensor) -> Tensor | None:
        """Return which positions of dense targets are not ignored, as booleans in the shape of `nll`; None for all."""
        return None

    def smoothed(self, share: float) -> "Likelihood":
        """Return the likelihood with label smoothing."""
        raise InputError(f"smoothing is a share of class labels, and {type(self).__name__} has none; leave it out.")

    def understood(self) -> dict[str, str]:
        """Return a description by name, for `repr` and the log."""
        return {"likelihood": type(self).__name__}

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the sum over members of the batch mean of `nll`, weighted by rows.

        Weights average 1 over the training data, so that a weight of 2 repeats the row. Ignored positions are left out of the mean.

        Shapes: outputs and targets (member, batch, ...), weights (member, batch) -> ().
        """
        counted = self.counted(targets)
        if counted is not None:
            return _mean_of_counted(self.nll(outputs, targets), counted, weights)
        if weights is None:
            mean = self.mean_nll(outputs, targets)
        else:
            each = self.nll(outputs, targets)
            mean = (each * weights.reshape(*weights.shape, *[1] * (each.dim() - 2))).mean()
        return mean if outputs.shape[0] == 1 else mean * outputs.shape[0]

    def mean_nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of `nll` over members and rows, in fewer operations if possible."""
        return self.nll(outputs, targets).mean()


def _mean_of_counted(each: Tensor, counted: Tensor, weights: Tensor | None) -> Tensor:
    shares = counted.to(each.dtype)
    if weights is not None:
        shares = shares * weights.reshape(*weights.shape, *[1] * (each.dim() - 2))
    total = (each * shares).flatten(1).sum(1) / shares.flatten(1).sum(1).clamp_min(torch.finfo(each.dtype).tiny)
    return total.sum() if weights is None else (total * weights.mean(1)).sum()


@dataclass(frozen=True)
class Loss(Likelihood):
    """Any function of outputs and targets as an objective.

    Predictions are the raw outputs of members, their mean and their spread. Targets are passed as they are in y.

    Args:
        function: called with the outputs (batch, ...) and targets (batch, ...) of one member; returns the loss of each row (batch,), of each
            of its numbers (batch, ...), or the mean over the batch. Only losses of rows can be weighted.
        output: a function of raw outputs that predictions show, such as torch.sigmoid; None shows the outputs themselves.

    >>> loss = Loss(torch.nn.functional.l1_loss)
    >>> loss.loss(torch.zeros(2, 3, 1), torch.ones(2, 3, 1)).item()
    2.0
    """

    prediction: ClassVar[type[Predictive]] = Outputs

    function: Function
    output: Function | None = None

    def __init__(self, function: Any, output: Any = None):
        """Take functions, or their descriptions in a file."""
        for name, given in (("function", function), ("output", output)):
            if not callable(given) and not (given is None and name == "output"):
                raise InputError(f"{name} is {given!r}; give a function of outputs and targets that returns a loss.")
            kept = given if given is None or isinstance(given, Function) else Function.of(given)
            object.__setattr__(self, name, kept)

    def read(self, targets: Tensor) -> Tensor:
        return targets

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = [self.function(o, t.clone()) for o, t in zip(outputs, targets)]  # which it may write into
        if each[0].dim() == 0:
            return torch.stack(each).unsqueeze(1).expand(-1, outputs.shape[1])
        return torch.stack([e.flatten(1).mean(1) if e.dim() > 1 else e for e in each])

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        """Call the function once, so that its errors are raised before training."""
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
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape not in ((), (len(few),), (len(few), *outputs)):
            raise InputError(
                f"the loss {self.function.name} returned {shape} for a batch of {len(few)}; return one number, or one for each point."
            )

    def settled(self, known: Known) -> Self:
        """Return itself; InputError for weights of rows if the function returns one mean for all of them."""
        few = torch.zeros(1, *known.outputs), known.targets[:1].clone()
        if known.weights is not None and not self.function(*few).dim():
            raise InputError(
                f"the loss {self.function.name} returns one number for a batch, so weights of points cannot be honored; use reduction='none'."
            )
        return self

    def with_functions_of(self, given: Self) -> Self:
        """Return the given loss, whose functions must have the same names."""
        names = [[f and f.name for f in (loss.function, loss.output)] for loss in (self, given)]
        if names[0] != names[1]:
            raise InputError(
                f"it was fitted with the functions {names[0]}, but likelihood holds {names[1]}; give its own."
            )
        return given

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        return Outputs(outputs, self.function, self.output, learners=about.learners)
