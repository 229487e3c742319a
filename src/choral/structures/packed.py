"""Packed-Ensembles: members of a fraction of the width, side by side in one network (`choral.layers.packed.networks.pack`)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from choral.base.values import Count, Positive
from choral.layers.convert import ends_of
from choral.layers.packed.networks import pack
from choral.structures.base import JointStructure

SMALL = 256
"""Units of a hidden layer up to which half of them are too few for a member."""


@dataclass(frozen=True, kw_only=True)
class Packed(JointStructure):
    """PE-(alpha, M, gamma): M members, each the plain network with alpha / M times its inner widths.

    All members read the same batch and differ by their initial weights. See `choral.layers.packed.networks.pack` for the conversion;
    `print(network.report())` on the joint network lists every layer's widths and effective gamma.

    Args:
        members: M.
        width: alpha, the width of all members together relative to the plain network. By default members of small MLPs have its full width,
            which costs `members` times its operations, and other networks use 2.
        subgroups: gamma, groups within a member.
        minimum_channels: gamma is lowered in layers whose groups would have fewer input channels.
        whole_block_starts: no subgroups in the first layer of a block (the paper); False is the authors' code for wide ResNets
            (PE-(2, 4, 2) of WRN-28-10: 27,185,608 parameters, and 19,352,008 in their code).
        own_batches: train each member on its own batches.
        equal_starts: start all members at the weights of the first (the paper's ablation, Table 7).
        first: name patterns of the layers that read the input, if not the first one registered.
        last: name patterns of the layers that give the output, if not the last one registered.
    """

    draws_anew: ClassVar[bool] = True
    width: Positive | None = 2.0
    subgroups: Count = 1
    minimum_channels: int = 64
    whole_block_starts: bool = True
    own_batches: bool = False
    equal_starts: bool = False
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        joint = pack(
            network,
            members=self.members,
            width=self.members if self.width is None and is_small_perceptron(network) else self.width or 2.0,
            subgroups=self.subgroups,
            minimum_channels=self.minimum_channels,
            whole_block_starts=self.whole_block_starts,
            kernel=self.kernel,
            first=self.first,
            last=self.last,
            own_inputs=self.own_batches,
            generator=generator,
        )
        if self.equal_starts:
            with torch.no_grad():
                for tensor in (*joint.parameters(), *joint.buffers()):  # (member, ...)
                    tensor.copy_(tensor[:1].clone().expand_as(tensor))
        return joint


def is_small_perceptron(network: nn.Module) -> bool:
    """Return whether all layers with a width are linear maps, and none gives more than a few hundred units.

    >>> is_small_perceptron(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)))
    True
    """
    return all(isinstance(layer, nn.Linear) and layer.out_features <= SMALL for _, layer in ends_of(network))
