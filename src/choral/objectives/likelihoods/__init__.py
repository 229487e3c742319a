"""Likelihoods: what a network's outputs mean, how wrong they are, and what they predict."""

from choral.objectives.likelihoods.base import About, Likelihood, Loss
from choral.objectives.likelihoods.classification import Bernoulli, Categorical, Ordinal
from choral.objectives.likelihoods.distilled import SoftClasses, SoftGaussian, SoftLabels
from choral.objectives.likelihoods.inference import NAMES, infer, named, resolve
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
    "NAMES",
    "About",
    "Bernoulli",
    "Categorical",
    "Family",
    "FixedGaussian",
    "Laplace",
    "LearnedGaussian",
    "Likelihood",
    "Loss",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Quantiles",
    "SoftClasses",
    "SoftGaussian",
    "SoftLabels",
    "StudentT",
    "TargetScale",
    "infer",
    "named",
    "resolve",
]
