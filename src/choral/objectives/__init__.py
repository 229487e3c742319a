"""Objectives: likelihoods and penalties."""

from choral.objectives.anchored import Anchored
from choral.objectives.combine import Objective
from choral.objectives.kl import GaussianKL, SpikeSlabKL
from choral.objectives.likelihoods import Categorical, FixedGaussian, LearnedGaussian, Likelihood, infer
from choral.objectives.patching import PatchedL2
from choral.objectives.penalties import L2, Penalty

__all__ = [
    "L2",
    "Anchored",
    "Categorical",
    "FixedGaussian",
    "GaussianKL",
    "LearnedGaussian",
    "Likelihood",
    "Objective",
    "PatchedL2",
    "Penalty",
    "SpikeSlabKL",
    "infer",
]
