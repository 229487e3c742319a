"""BatchEnsemble: members share every weight and own two vectors for each layer (`choral.layers.joint.layers.RankOneLayer`)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from choral.layers.attention import open_attention
from choral.layers.convert import convert, swap
from choral.layers.functional import WEIGHTED, own_kind
from choral.layers.joint.layers import RankOneLayer
from choral.layers.joint.network import Joint
from choral.layers.packed.layers import member_norm
from choral.structures.base import JointStructure, Selective


@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(Selective, JointStructure):
    """Member m has the weights W * (r_m s_m^T), elementwise, and its own biases.

    The shared weights start at those of the given network, so a trained one can become an ensemble. Linear maps and (transposed)
    convolutions get vectors, also inside attention. Embeddings, recurrent layers, other layers and bare parameters are shared, as are layers
    with frozen or tied parameters; normalization statistics are separate.

    Args:
        start: 'normal' draws r and s from N(1, spread^2), 'signs' from {-1, 1}.
        spread: standard deviation of the normal start.
        own_norms: whether every member has its own scale and shift in normalization layers.

    Differs from the paper: BatchNorm statistics are separate, so that members do not influence each other, and every member reads the whole
    batch instead of its part of it.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("*.r", "*.s")
    converts_all: ClassVar[bool] = True
    start: Literal["normal", "signs"] = "normal"
    spread: float = 0.5
    own_norms: bool = False

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:

        def vectors(name: str, layer: nn.Module) -> nn.Module | None:
            if own_kind(layer, WEIGHTED) is None:
                return None
            return RankOneLayer(layer, members=self.members, start=self.start, spread=self.spread, generator=generator)

        tree = open_attention(network, include=self.include, exclude=self.exclude)
        tree = convert(tree, vectors, self, include=self.include, exclude=self.exclude)
        tree = swap(tree, lambda _, m: member_norm(m, members=self.members, own_affine=self.own_norms))
        return Joint(tree, members=self.members, kernel=self.kernel).train(network.training)
