"""Likelihoods: what a network's outputs mean, how wrong they are, and what they predict.

Which one fits the targets is decided where there is no doubt, and refused with what to write where there is.
"""

from typing import Any

from torch import Tensor

from choral.base.errors import InputError, did_you_mean
from choral.objectives.likelihoods.base import About, Known, Likelihood, Loss
from choral.objectives.likelihoods.classification import (
    Bernoulli,
    Categorical,
    Ordinal,
    is_binary,
    is_one_hot,
    is_whole,
)
from choral.objectives.likelihoods.distilled import SoftClasses, SoftGaussian, SoftLabels
from choral.objectives.likelihoods.regression import (
    Family,
    FixedGaussian,
    Laplace,
    LearnedGaussian,
    NegativeBinomial,
    Poisson,
    Quantiles,
    StudentT,
    TargetScale,
)

__all__ = [
    "NAMES", "About", "Bernoulli", "Categorical", "Family", "FixedGaussian", "Laplace", "LearnedGaussian", "Likelihood",
    "Loss", "NegativeBinomial", "Ordinal", "Poisson", "Quantiles", "SoftClasses", "SoftGaussian", "SoftLabels", "StudentT",
    "TargetScale", "infer", "named", "resolve",
]  # fmt: skip

NAMES: dict[str, type[Likelihood]] = {
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "ordinal": Ordinal,
    "fixed_gaussian": FixedGaussian,
    "learned_gaussian": LearnedGaussian,
    "student_t": StudentT,
    "laplace": Laplace,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "quantiles": Quantiles,
}
"""Likelihoods by the names that `fit` and `--likelihood` take; 'gaussian' is fixed or learned by the network's outputs."""


def named(name: str, targets: Tensor, outputs: tuple[int, ...]) -> Likelihood:
    """Return the likelihood of a name.

    Args:
        name: one of `NAMES`, or 'gaussian'.
        targets: training targets (point, ...).
        outputs: shape of the network's outputs for one point.
    """
    if name == "gaussian":
        return _gaussian(targets, outputs)
    if name not in NAMES:
        known = ("gaussian", *NAMES)
        raise InputError(f"there is no likelihood '{name}'; known: {', '.join(known)}.{did_you_mean(name, known)}")
    return NAMES[name]()


def resolve(given: Any, targets: Tensor, outputs: tuple[int, ...], **known: Any) -> Likelihood:
    """Return the likelihood of a run, checked and settled: the one that was given, by value or by name, or the inferred one.

    Args:
        given: a likelihood, its name, or None.
        targets: training targets (point, ...), all of them or a few.
        outputs: shape of the network's outputs for one point.
        known: more of `Known`.
    """
    found = infer(targets, outputs) if given is None else given
    if isinstance(given, str):
        found = named(given, targets, outputs)
    if not isinstance(found, Likelihood):
        raise InputError(
            f"likelihood is {type(given).__name__}; give a Likelihood, one of the names {', '.join(('gaussian', *NAMES))}, or "
            "choral.objectives.Loss(function) for a loss of your own."
        )
    found.check(targets, outputs)
    return found.settled(Known(targets, outputs, **known))


def infer(targets: Tensor, outputs: tuple[int, ...] | int | None = None) -> Likelihood:
    """Return the likelihood that fits the targets; InputError where two would.

    Args:
        targets: training targets (point, ...).
        outputs: shape of the network's outputs for one point, or their number; None says nothing.
    """
    shape = (outputs,) if isinstance(outputs, int) else outputs or ()
    width = shape[0] if shape else 1
    whole = is_whole(targets)
    if whole and len(shape) > 1 and targets.dim() == len(shape):
        return Categorical()  # dense: labels lack the axis of classes
    if not targets.is_floating_point():
        return _of_integers(targets, width, known=outputs is not None)
    if outputs is None:
        return FixedGaussian()
    each = 1 if targets.dim() == 1 else targets.shape[1]
    binary = whole and is_binary(targets) and float(targets.max() - targets.min()) == 1
    if binary and width == each:
        return Categorical() if is_one_hot(targets) else Bernoulli()
    if binary:
        return _of_binary_reals(targets, width, each)
    if whole and each == 1 and width > 2 and float(targets.min()) >= 0 and float(targets.max()) < width:
        return Categorical()
    return _gaussian(targets, shape)


def _of_integers(targets: Tensor, width: int, *, known: bool) -> Likelihood:
    several = targets.dim() == 2 and targets.shape[1] > 1
    if several and is_binary(targets) and targets.shape[1] == width:
        return Categorical() if is_one_hot(targets) else Bernoulli()
    if several:
        raise InputError(
            f"y holds rows of {targets.shape[1]} whole numbers and the network gives {width} outputs; give one class number a "
            "point, 0 and 1 for several labels at once, likelihood='poisson' for counts, or real numbers for regression."
        )
    if known and width == 1:
        if is_binary(targets):
            return Bernoulli()
        raise InputError(
            "y holds whole numbers but the network gives 1 output; give it one output for each class, make y real numbers for "
            "regression, or say likelihood='poisson' for counts."
        )
    return Categorical()


def _of_binary_reals(targets: Tensor, width: int, each: int) -> Likelihood:
    if each == 1 and width > 2:
        return Categorical()
    raise InputError(
        f"y holds the real numbers 0 and 1 in {each} column(s) and the network gives {width} outputs, which could be classes or a "
        "mean and a variance; say likelihood='categorical' or likelihood='gaussian', or give one output for each column."
    )


def _gaussian(targets: Tensor, outputs: tuple[int, ...]) -> Likelihood:
    each = 1 if targets.dim() == 1 or (len(outputs) > 1 and targets.dim() == len(outputs)) else targets.shape[1]
    width = outputs[0] if outputs else 1
    if width == each:
        return FixedGaussian()
    if width == 2 * each:
        return LearnedGaussian()
    raise InputError(
        f"The network gives {width} outputs for {each} real target(s); a Gaussian likelihood takes {each} (mean) or {2 * each} "
        "(mean and variance), and class labels must be whole numbers from 0 to the number of outputs. Change the last layer or y."
    )
