"""Layers and converters: plain modules that also work in your own training loop."""

from choral.base.values import offered
from choral.layers.attention import OpenAttention, open_attention
from choral.layers.bayesian.dropout import DropConnect, Dropped, DroppedOutput
from choral.layers.bayesian.patched import FAMILY, Mixture, PatchedLayer, PatchedNetwork, family
from choral.layers.bayesian.rank_one_gaussian import RankOneGaussianLayer
from choral.layers.bayesian.sampling import GaussianLayer, SpikeSlabLayer, at_means, gaussian_twin
from choral.layers.convert import layers_of, swap
from choral.layers.features import Piecewise, piecewise_embedding, quantile_edges
from choral.layers.frn import FilterResponseNorm
from choral.layers.joint.layers import MaskedLayer, RankOneLayer, overlapping_masks
from choral.layers.joint.network import Joint
from choral.layers.packed.layers import GroupedLinear, PackedLayer, member_norm, packed
from choral.layers.packed.networks import PackedNetwork, pack

__all__ = [
    "FAMILY", "DropConnect", "Dropped", "DroppedOutput", "FilterResponseNorm", "GaussianLayer", "GroupedLinear",
    "Joint", "MaskedLayer", "Mixture", "OpenAttention", "PackedLayer", "PackedNetwork", "PatchedLayer",
    "PatchedNetwork", "Piecewise", "RankOneGaussianLayer", "RankOneLayer", "SpikeSlabLayer", "at_means", "family",
    "gaussian_twin", "layers_of", "member_norm", "open_attention", "overlapping_masks", "pack", "packed",
    "piecewise_embedding", "quantile_edges", "swap",
]  # fmt: skip

globals().update(offered(__all__, globals()))
