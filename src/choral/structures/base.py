"""The contract of a structure: how members share weights and how they read a batch.

A structure turns a plain network into a *joint* network holding `members` members, lays out every batch for it and
gives member outputs back with the member axis first. The engine knows this contract and no method.
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

    Facts of the class are `members` and `draws` (fields only where a user chooses them), and:

    - `undecayed`: name patterns of parameters that take no weight decay;
    - `widens_input`: the first layer that learns must read the input itself, because members' inputs are laid side by side;
    - `folds_members`: `feed` lays members one after the other on the batch axis;
    - `converts`: networks are changed; False if a member is the plain network itself;
    - `converts_all`: every layer with weights is meant to be converted, so that those which are not are named in a line;
    - `draws_anew`: weights of the given network cannot be kept, because members have layers of other sizes;
    - `averages`: a member's own parameters too get the gradient of the mean over members, 1/M of what their member would give alone.
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
        """Whether every member reads a batch row by row, so that a part of the batch is a part of what it reads."""
        return True

    @property
    def own_batches(self) -> bool:
        """Whether each member is trained on batches of its own: `feed` then reads inputs and targets (member, batch, ...)."""
        return False

    @abstractmethod
    def convert(self, network: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return a new joint network; the given plain network is never changed.

        The generator feeds every draw the conversion needs (fresh rank-one vectors, masks, member weights).
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
        """Return the names of the joint network's parameters that all members use; every other one belongs to a member.

        Shared parameters get the mean of the members' gradients, the others the gradient their member would give alone (unless the
        structure `averages`).
        """
        return frozenset()

    def keeping(self) -> "Structure":
        """Return the structure that starts at the weights of the network it converts, where this one draws others by the paper's rule."""
        return self

    def learn(self, network: nn.Module, run: Callable[[int], object]) -> None:
        """Let the layers of a joint network find out what they need to know of the network from passes over so many made-up rows."""

    def remaining(self, params: Params, buffers: Params) -> dict[str, float] | None:
        """Return the share of its nodes that each layer still uses, by name, or None if nodes never leave."""
        return None

    def owners(self, networks: int) -> tuple[int, ...] | None:
        """Return the member that each row of the outputs of some joint networks belongs to; None if rows are members."""
        if self.draws == 1:
            return None
        each = [member for _ in range(self.draws) for member in range(self.members)]
        return tuple(n * self.members + member for n in range(networks) for member in each)

    @abstractmethod
    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return member `index` of a joint network as a plain network of its own, in evaluation the same function."""


@dataclass(frozen=True, kw_only=True)
class Selective(Structure, ABC):
    """A structure that converts some layers of a network.

    Args:
        include: patterns of the layers to convert; all of the kinds that it converts when empty.
        exclude: patterns of layers that stay as they are, with everything inside them.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OneMember(Structure, ABC):
    """A network that is one member, and reads a batch as it comes."""

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        return x, None if y is None else y.unsqueeze(0)

    def unfold(self, outputs: Tensor) -> Tensor:
        return outputs.unsqueeze(0)

    def member(self, network: nn.Module, index: int) -> nn.Module:
        """Return the network with plain layers, at the mean of their draws."""
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
        members: how many members.
        kernel: how they are run: 'loop', 'grouped', 'matmul', or 'auto' for what is usually fastest.
    """

    members: Count = 4
    kernel: Kernel = "auto"

    @property
    def by_row(self) -> bool:
        """Not where there is a batch for each member."""
        return not self.own_batches

    def feed(self, x: Batch, y: Tensor | None) -> tuple[Batch, Tensor | None]:
        """Give the batch and its targets to all members, or in training each its own batch where it has one."""
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
