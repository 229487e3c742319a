"""Likelihoods: the meaning of a network's outputs, their loss, and their predictive distribution.

The likelihood is inferred from the targets if they are unambiguous; otherwise an error lists the choices.
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
from choral.objectives.likelihoods.distilled import SoftClasses, SoftGaussian
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
    "Loss", "NegativeBinomial", "Ordinal", "Poisson", "Quantiles", "SoftClasses", "SoftGaussian", "StudentT",
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


def named(given: Any) -> Likelihood:
    """Return the likelihood of a name with default settings; 'gaussian' learns its variance. A likelihood is returned as it is."""
    known: dict[str, type[Likelihood]] = {"gaussian": LearnedGaussian, **NAMES}
    match given:
        case Likelihood():
            return given
        case str() if given in known:
            return known[given]()
    raise InputError(
        f"likelihood is {given!r}; give one of {', '.join(known)}, a Likelihood or choral.objectives.Loss(function).{did_you_mean(str(given), known)}"
    )


def resolve(given: Any, targets: Tensor, outputs: tuple[int, ...], **known: Any) -> Likelihood:
    """Return the likelihood of a run: the given one, by value or by name, or the inferred one.

    Args:
        given: a likelihood, its name, or None.
        targets: training targets (row, ...), all of them or a few.
        outputs: shape of the network's outputs for one row.
        known: more of `Known`.
    """
    if given is None:
        found = infer(targets, outputs)
    else:
        found = _gaussian(targets, outputs) if given == "gaussian" else named(given)
    found.check(targets, outputs)
    return found.settled(Known(targets, outputs, **known))


def infer(targets: Tensor, outputs: tuple[int, ...]) -> Likelihood:
    """Return the likelihood that fits the targets; InputError if two would.

    Args:
        targets: training targets (row, ...).
        outputs: shape of the network's outputs for one row.
    """
    real, whole = targets.is_floating_point(), is_whole(targets)
    if whole and len(outputs) > 1 and targets.dim() == len(outputs):
        return Categorical()  # dense: labels lack the axis of classes
    width, each = outputs[0] if outputs else 1, 1 if targets.dim() == 1 else targets.shape[1]
    binary = is_binary(targets) and not (real and bool(targets.min() == targets.max()))
    if binary and width == each:
        return Categorical() if is_one_hot(targets) else Bernoulli()
    if each == 1 and width > 1 and not real:
        return Categorical()
    if each == 1 and width > 2 and whole and 0 <= float(targets.min()) <= float(targets.max()) < width:
        return Categorical()
    if real and not binary:
        return _gaussian(targets, outputs)
    raise InputError(
        f"y holds {'the real numbers 0 and 1' if real else 'whole numbers'} in {each} column(s) and the network gives {width} output(s), "
        "which does not say what they mean; give one output for each class or for each column of 0 and 1, or say "
        "likelihood='categorical' or likelihood='gaussian', or likelihood='poisson' for counts."
    )


def _gaussian(targets: Tensor, outputs: tuple[int, ...]) -> Likelihood:
    each = 1 if targets.dim() == 1 or (len(outputs) > 1 and targets.dim() == len(outputs)) else targets.shape[1]
    width = outputs[0] if outputs else 1
    if width == each:
        return FixedGaussian()
    if width == 2 * each:
        return LearnedGaussian()
    raise InputError(
        f"The network gives {width} outputs for {each} real target(s); a Gaussian likelihood takes {each} (mean) or {2 * each} (mean and variance)."
    )
