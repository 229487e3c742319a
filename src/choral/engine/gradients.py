"""What the gradient of a joint network is made of: each parameter gets that of the mean loss of the members that use it.

`Likelihood.loss` is the sum over members. A tensor of one member gets from it the gradient it would get alone; a tensor
that all M members use would get M gradients, and learn at M times the rate. So where something is shared the mean is
differentiated, and gradients of the members' own tensors, usually the smaller part, are multiplied by M afterwards. The
penalty is added once and is not touched by this.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from choral.base.types import Params
from choral.structures.base import Structure


@dataclass(frozen=True)
class Sharing:
    """How the members of one joint network share its parameters.

    Args:
        members: how many members.
        owned: names of the parameters that belong to one member (with a member axis, for example), if others are shared.
        averaged: whether anything is shared, so that the mean over members is differentiated instead of the sum.
    """

    members: int = 1
    owned: tuple[str, ...] = ()
    averaged: bool = False

    def likelihood(self, total: Tensor) -> Tensor:
        """Return what is differentiated, from the sum over members of the likelihood's loss."""
        return total / self.members if self.averaged else total

    def for_penalty(self, params: Params) -> Params:
        """Return the same values for the penalty, whose gradient `weigh` would otherwise multiply in owned tensors."""
        if not self.owned:
            return params
        part = 1 / self.members
        return {n: torch.lerp(p.detach(), p, part) if n in self.owned else p for n, p in params.items()}

    def weigh(self, params: Mapping[str, Tensor]) -> None:
        """Bring the gradients of owned tensors to those each member would get alone, in place."""
        grads = [g for n in self.owned if (g := params[n].grad) is not None]
        if grads:
            torch._foreach_mul_(grads, float(self.members))

    def logged(self, loss: Tensor) -> Tensor:
        """Return the loss to be shown: the mean over members, so that it compares with a plain network's."""
        return loss if self.averaged or self.members == 1 else loss / self.members


def sharing_of(structure: Structure, network: nn.Module) -> Sharing:
    """Return how the members of a joint network share it, as its structure declares."""
    shared = structure.shared(network)
    if structure.members == 1 or not (shared or structure.averages):
        return Sharing(structure.members)
    owned = () if structure.averages else tuple(n for n, _ in network.named_parameters() if n not in shared)
    return Sharing(structure.members, owned, True)
