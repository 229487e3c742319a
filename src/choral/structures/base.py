"""The interface of structures: how members share weights and how they read a batch.

A structure converts a plain network to a *joint* network with `members` members, lays out every batch for it, and returns member outputs
with the member axis first. The engine uses this interface and knows no method.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from choral.base import batches
from choral.base.batches import Batch
from choral.base.types import Params
from choral.base.values import Count, Value
from choral.layers.convert import plain_network
from choral.layers.joint.network import Joint, Kernel


@dataclass(frozen=True, kw_only=True)
class Structure(Value, ABC):
    """How members share weights and read a batch.

    Class attributes are `members` and `draws` (fields only if users choose them), and:

    - `undecayed`: name patterns of parameters without weight decay;
    - `widens_input`: the first layer with weights must read the input itself, because members' inputs are concatenated;
    - `folds_members`: `feed` concatenates members on the batch axis;
    - `converts`: networks are changed; False if a member is the plain network itself;
    - `converts_all`: every layer with weights should be converted; a message names those that are not;
    - `draws_anew`: trained weights cannot be kept, because members have layers of other sizes;
    - `averages`: a member's own parameters also get the gradient of the mean over members, 1/M of that of their member alone.
    """

    undecayed: ClassVar[tuple[str, ...]] = ()
    widens_input: ClassVar[bool] = False
    folds_members: ClassVar[bool] = False
    converts: ClassVar[bool] = True
    converts_all: ClassVar[bool] = False
    draws_anew: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    @property
    def members(self) -> int:
        """Members in one joint network."""
        return 1

    @property
    def draws(self) -> int:
        """Stochastic passes for each member at prediction; 1 means deterministic."""
        return 1

    @property
    def by_row(self) -> bool:
        """Whether every member reads a batch row by row, so that a part of the batch can be fed alone."""
        return True

    @property
    def own_batches(self) -> bool:
        """Whether each member is trained on its own batches: `feed` then reads inputs and targets (member, batch, ...)."""
        return False

    @abstractmethod
    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return a new joint network; the given plain network is not changed.

        The generator is used for all draws of the conversion (rank-one vectors, masks, member weights).
        """

    @abstractmethod
    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Lay out one batch: inputs as the joint network reads them, targets with the member axis first.

        With targets it is a training batch, without them a prediction batch. Random layouts draw from `choral.base.draws`.

        Shapes: x (batch, ...) or a tree of such tensors, y (batch, ...) -> joint inputs, targets (member, batch, ...).
        """

    @abstractmethod
    def unfold(self, outputs: Tensor) -> Tensor:
        """Return the joint network's outputs as (member, batch, ...)."""

    def shared(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the joint network's parameters that all members use; all others belong to one member.

        Shared parameters get the mean of the members' gradients, the others the gradient of their member alone (unless the structure `averages`).
        """
        return frozenset()

    def keeping(self) -> "Structure":
        """Return the structure that starts at the weights of the converted network instead of drawing them by the paper's rule."""
        return self

    def learn(self, network: nn.Module, run: Callable[[int], object]) -> None:
        """Let layers of a joint network gather what they need from passes over this many synthetic rows."""

    def remaining(self, params: Params, buffers: Params) -> dict[str, float] | None:
        """Return the share of nodes still used in each layer, by name, or None if nodes are never removed."""
        return None

    def owners(self, networks: int) -> tuple[int, ...] | None:
        """Return the member of each row of the outputs of some joint networks; None if rows are members."""
        if self.draws == 1:
            return None
        each = [member for _ in range(self.draws) for member in range(self.members)]
        return tuple(n * self.members + member for n in range(networks) for member in each)

    @abstractmethod
    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return member `index` of a joint network as a separate plain network, the same function in evaluation."""


@dataclass(frozen=True, kw_only=True)
class Selective(Structure, ABC):
    """A structure that converts some layers of a network.

    Args:
        include: name patterns of the layers to convert; empty for all suitable ones.
        exclude: name patterns of layers that are not converted, with everything inside them.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OneMember(Structure, ABC):
    """A network that is one member and reads a batch as it is."""

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        return x, None if y is None else y.unsqueeze(0)

    def unfold(self, outputs: Tensor) -> Tensor:
        return outputs.unsqueeze(0)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return the network with plain layers, at the means of their posteriors."""
        return plain_network(network)


@dataclass(frozen=True, kw_only=True)
class Independent(OneMember):
    """One member for each network: the plain network itself."""

    converts = False

    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the network as it is; nothing is changed, so nothing is copied."""
        return network

    def member(self, network: nn.Module, index: int) -> nn.Module:
        return network


@dataclass(frozen=True, kw_only=True)
class JointStructure(Structure, ABC):
    """Members in one module tree, each reading the same batch; see `choral.layers.joint.network.Joint`.

    Args:
        members: number of members.
        kernel: how members are run: 'loop', 'grouped', 'matmul', or 'auto' for the usually fastest.
    """

    members: Count = 4
    kernel: Kernel = "auto"

    @property
    def by_row(self) -> bool:
        """Whether members read the same batch."""
        return not self.own_batches

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Pass the batch and its targets to all members, or in training each its own batch."""
        if not self.own_batches:
            return x, None if y is None else y.expand(self.members, *y.shape)
        return (batches.mapped(lambda t: t.expand(self.members, *t.shape), x), None) if y is None else (x, y)

    def unfold(self, outputs: Tensor) -> Tensor:
        return outputs

    def shared(self, network: nn.Module) -> frozenset[str]:
        """Return the parameters without a member axis."""
        stacked = cast(Joint, network).stacked
        return frozenset(n for n, _ in network.named_parameters() if n.removeprefix("network.") not in stacked)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        return cast(Joint, network).member(index)
