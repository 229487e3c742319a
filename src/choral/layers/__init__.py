"""Layers and converters: plain modules usable alone, in anybody's training loop."""

from choral.layers.attention import OpenAttention, open_attention
from choral.layers.convert import by_kind, layers_of, swap
from choral.layers.dropped import DropConnect, Dropped, DroppedOutput
from choral.layers.frn import FilterResponseNorm
from choral.layers.gaussian import GaussianLayer, gaussian_twin
from choral.layers.grouped import GroupedLinear
from choral.layers.joint import Joint, tune
from choral.layers.masked import MaskedLayer, overlapping_masks
from choral.layers.own_statistics import member_norm
from choral.layers.pack import PackedNetwork, pack
from choral.layers.packed import PackedLayer, packed
from choral.layers.patched import FAMILY, Mixture, PatchedLayer, PatchedNetwork, family
from choral.layers.rank_one import RankOneLayer
from choral.layers.rank_one_gaussian import RankOneGaussianLayer, rank_one_gaussian_twin
from choral.layers.sampling import at_means
from choral.layers.spike_slab import SpikeSlabLayer

__all__ = [
    "FAMILY",
    "DropConnect",
    "Dropped",
    "DroppedOutput",
    "FilterResponseNorm",
    "GaussianLayer",
    "GroupedLinear",
    "Joint",
    "MaskedLayer",
    "Mixture",
    "OpenAttention",
    "PackedLayer",
    "PackedNetwork",
    "PatchedLayer",
    "PatchedNetwork",
    "RankOneGaussianLayer",
    "RankOneLayer",
    "SpikeSlabLayer",
    "at_means",
    "by_kind",
    "family",
    "gaussian_twin",
    "layers_of",
    "member_norm",
    "open_attention",
    "overlapping_masks",
    "pack",
    "packed",
    "rank_one_gaussian_twin",
    "swap",
    "tune",
]
