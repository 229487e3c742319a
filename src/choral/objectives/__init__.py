"""Objectives: likelihoods and penalties."""

from choral.objectives.kl import GaussianKL, SpikeSlabKL
from choral.objectives.likelihoods import (
    Bernoulli,
    Categorical,
    Family,
    FixedGaussian,
    Laplace,
    LearnedGaussian,
    Likelihood,
    Loss,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantiles,
    StudentT,
    infer,
)
from choral.objectives.penalties import L2, Anchored, Objective, Penalty

__all__ = [
    "L2", "Anchored", "Bernoulli", "Categorical", "Family", "FixedGaussian", "GaussianKL", "Laplace", "LearnedGaussian",
    "Likelihood", "Loss", "NegativeBinomial", "Objective", "Ordinal", "Penalty", "Poisson", "Quantiles",
    "SpikeSlabKL", "StudentT", "infer",
]  # fmt: skip
