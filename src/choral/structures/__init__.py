"""Structures: how members share weights and read a batch."""

from choral.structures.base import Independent, Structure
from choral.structures.gaussian import Gaussian
from choral.structures.rank_one_gaussian import RankOneGaussian
from choral.structures.spike_slab import SpikeSlab

__all__ = ["Gaussian", "Independent", "RankOneGaussian", "SpikeSlab", "Structure"]
