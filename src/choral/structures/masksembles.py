"""Masksembles: members share every weight and differ by fixed binary masks (`choral.layers.joint.layers.overlapping_masks`)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from choral.base import batches
from choral.base.batches import Batch
from choral.base.values import Limit
from choral.layers.convert import convert, ends_of, swap
from choral.layers.functional import WEIGHTED, own_kind
from choral.layers.joint.layers import MaskedLayer
from choral.layers.joint.network import Joint
from choral.layers.packed.layers import member_norm
from choral.structures.base import JointStructure, Selective


@dataclass(frozen=True, kw_only=True)
class Masksembles(Selective, JointStructure):
    """Every linear map and convolution but the output layer and frozen ones has a fixed mask for each member.

    In training the batch is split over the members, or given to each of them (`repetition`, as in the Packed-Ensembles paper, for M times the
    operations); at prediction every member reads all of it. Masks are buffers, so they are saved with the weights. The weights start at
    those of the given network.

    Args:
        scale: at least 1; 1 makes all masks full, a large one makes them nearly disjoint (see `overlapping_masks`).
        repetition: whether every member trains on the whole batch instead of its part.

    Shapes: x (batch, ...) -> (member, ceil(batch / member), ...) in training, where a batch that cannot be split evenly is
    padded with its first rows; (member, batch, ...) with repetition.

    Differs from the paper: BatchNorm statistics are separate, so that members do not influence each other.
    """

    scale: Annotated[float, Limit(lambda scale: scale >= 1, "at least 1")] = 2.0
    repetition: bool = False

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        ends = ends_of(network)
        output = ends[-1][0] if ends and not self.include else None

        def masks(name: str, layer: nn.Module) -> nn.Module | None:
            if name == output or own_kind(layer, WEIGHTED) is None:
                return None
            masked = MaskedLayer(layer, members=self.members, scale=self.scale, generator=generator)
            return masked if masked.outputs > 1 else None  # every mask of one channel is the same

        tree = convert(network, masks, self, include=self.include, exclude=self.exclude)
        tree = swap(tree, lambda _, m: member_norm(m, members=self.members))
        joint = Joint(tree, members=self.members, kernel=self.kernel, own_inputs=True)
        if self.kernel == "auto" and not self.repetition and not joint.obstacle("matmul"):
            joint.kernel = "matmul"  # parts of a batch together: a step of LeNet-S in 0.90 of the time of one member after the other
        return joint.train(network.training)

    @property
    def by_row(self) -> bool:
        """Whether every member reads all rows."""
        return self.repetition

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Split a training batch over the members; give a prediction batch, or with repetition any, to all of them."""
        if y is None or self.repetition:
            to_all = batches.mapped(lambda t: t.expand(self.members, *t.shape), x)
            return to_all, None if y is None else y.expand(self.members, *y.shape)
        points = len(y)
        each = max(-(-points // self.members), min(2, points))  # BatchNorm cannot train on a single point
        if each * self.members > points:
            rows = torch.arange(each * self.members, device=y.device) % points
            x, y = batches.part(x, rows), y[rows]
        return batches.mapped(lambda t: t.unflatten(0, (self.members, each)), x), y.unflatten(0, (self.members, each))
