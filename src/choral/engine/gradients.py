"""Gradients: how those of shared parameters are averaged over members, and loss scaling for half precision.

What the gradient of a joint network is made of: each parameter gets that of the mean loss of the members that use it.

`Likelihood.loss` is the sum over members. A tensor of one member gets from it the gradient it would get alone; a tensor
that all M members use would get M gradients, and learn at M times the rate. So where something is shared the mean is
differentiated, and gradients of the members' own tensors, usually the smaller part, are multiplied by M afterwards. The
penalty is added once and is not touched by this.

Loss scaling: half precision loses small gradients, so losses are multiplied before the backward pass and gradients divided after it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from choral.base.types import Params
from choral.structures.base import Structure

NAME = "loss_scale/"  # in a branch's memory, beside what the optimizer remembers
_FIRST, _LEAST, _PATIENCE = 2.0**16, 2.0**-14, 2000  # the scale doubles after so many steps in which nothing overflowed


class LossScale:
    """The factor of one network's losses; a step whose gradients overflow is left out and halves it.

    Args:
        memory: what a branch remembers; its scale is taken up again.

    >>> scale = LossScale({})
    >>> weight = torch.zeros(1, requires_grad=True)
    >>> (scale.factor * 3 * weight).sum().backward()
    >>> scale.divide([weight]), float(weight.grad)
    (True, 3.0)
    """

    def __init__(self, memory: Mapping[str, Tensor]):
        held: tuple[float, float] = tuple(memory[NAME].tolist()) if NAME in memory else (_FIRST, 0.0)
        self.factor, self._good = held

    def divide(self, params: Iterable[Tensor]) -> bool:
        """Divide the gradients in place; return whether they are finite, so that a step can be taken."""
        grads = [p.grad for p in params if p.grad is not None]
        torch._foreach_mul_(grads, 1 / self.factor)
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(grads, float("inf"))])
        finite = bool(norms.isfinite().all())
        self._good = self._good + 1 if finite else 0.0
        if not finite:
            self.factor = max(self.factor / 2, _LEAST)
        elif self._good >= _PATIENCE:
            self.factor, self._good = self.factor * 2, 0.0
        return finite

    def memory(self) -> dict[str, Tensor]:
        """Return what must be remembered."""
        return {NAME: torch.tensor([self.factor, self._good], dtype=torch.float64)}


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
