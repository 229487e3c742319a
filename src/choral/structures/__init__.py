"""Structures: how members share weights and read a batch."""

from choral.structures.base import Independent, Structure
from choral.structures.batch_ensemble import BatchEnsemble
from choral.structures.bayesian import Gaussian, RankOneGaussian, SpikeSlab
from choral.structures.dropout import Stochastic
from choral.structures.masksembles import Masksembles
from choral.structures.mimo import Mimo
from choral.structures.packed import Packed
from choral.structures.patched import Patched
from choral.structures.tabm import TabM
from choral.structures.treenet import TreeNet

__all__ = [
    "BatchEnsemble", "Gaussian", "Independent", "Masksembles", "Mimo", "Packed", "Patched", "RankOneGaussian",
    "SpikeSlab", "Stochastic", "Structure", "TabM", "TreeNet",
]  # fmt: skip
