"""Optimisers as values: what updates the weights, with weight-decay groups and clipping by member.

The rate comes from the schedule. Every optimiser here is elementwise, so the same object also updates the stacked
parameters of many members at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from choral.objectives.penalties import matches
from choral.values import Value


@dataclass(frozen=True, kw_only=True)
class Optimiser(Value, ABC):
    """What updates the weights.

    Args:
        weight_decay: decay of every decayed parameter (coupled for SGD and Adam, decoupled for AdamW).
        decay_vectors: whether parameters with fewer than two axes (biases, norm scales and shifts) decay too.
        clip: largest gradient norm of one network; None leaves gradients as they are.
    """

    weight_decay: float = 0.0
    decay_vectors: bool = True
    clip: float | None = None

    @abstractmethod
    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer: ...

    def make(
        self, params: Mapping[str, Tensor], *, stacked: bool = False, undecayed: tuple[str, ...] = ()
    ) -> torch.optim.Optimizer:
        """Return a torch optimiser over the named parameters.

        Args:
            params: leaf tensors by name.
            stacked: whether the first axis runs over members.
            undecayed: name patterns of parameters without weight decay.
        """
        groups: dict[float, list[Tensor]] = {}
        for name, p in params.items():
            vector = p.dim() - stacked < 2 and not self.decay_vectors
            decay = 0.0 if vector or matches(name, undecayed) else self.weight_decay
            groups.setdefault(decay, []).append(p)
        listed = [{"params": tensors, "weight_decay": decay} for decay, tensors in groups.items()]
        return self._make(listed, 1e-3)  # the schedule sets the rate before every step


@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """Stochastic gradient descent with momentum."""

    momentum: float = 0.9
    nesterov: bool = False

    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=rate, momentum=self.momentum, nesterov=self.nesterov, fused=True)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Adam, with coupled weight decay."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, lr=rate, betas=self.betas, eps=self.eps, fused=True)


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimiser):
    """Adam with decoupled weight decay."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=rate, betas=self.betas, eps=self.eps, fused=True)


def clip_gradients(params: Mapping[str, Tensor], limit: float, *, stacked: bool = False) -> None:
    """Scale gradients in place so that each network's gradient norm is at most `limit`."""
    grads = [p.grad for p in params.values() if p.grad is not None]
    first = 1 if stacked else 0
    squares = [g.square().flatten(first).sum(-1) if g.dim() > first else g.square() for g in grads]
    scale = (limit / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale.view(scale.shape + (1,) * (g.dim() - first)))


def memory_of(optimiser: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimiser's memory as a flat dict 'entry/parameter name' -> tensor."""
    memory: dict[str, Tensor] = {}
    for name, p in params.items():
        for entry, value in optimiser.state.get(p, {}).items():
            if isinstance(value, Tensor):
                memory[f"{entry}/{name}"] = value.detach().clone()
    return memory


def restore_memory(
    optimiser: torch.optim.Optimizer, params: Mapping[str, Tensor], memory: Mapping[str, Tensor]
) -> None:
    """Put a memory taken by `memory_of` into a new optimiser over the same parameters."""
    for full, value in memory.items():
        entry, name = full.split("/", 1)
        p = params[name]
        held = value.detach().clone()
        optimiser.state[p][entry] = held.to(p.device) if held.dim() else held
