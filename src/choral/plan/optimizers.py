"""Optimizers as values: what updates the weights, with weight-decay groups and clipping by member.

The rate comes from the schedule. Every optimizer here is elementwise, so the same object also updates the stacked
parameters of many members at once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.objectives.penalties import matches

COUNTS = ("step", "mu_product", "eta", "mu")
"""Entries of torch's optimizers' memory that depend on the number of steps alone; every other one has the shape of its parameter."""

FACTOR = "rate_factor"
"""The key of torch's parameter groups under which they keep the factor of their rate."""

STACKED = "stacked"
"""The key under which they keep whether the first axis of their parameters runs over members."""

SPARED = "spared"
"""The key under which they keep whether their parameters must not decay, where the optimizer brings a decay of its own."""


MOMENTUM = "momentum_buffer"
FUSED = (torch.float32, torch.float64)
"""Types for which torch's fused kernels are right: SGD's leaves parameters of bfloat16 as they are on the processor (torch 2.13)."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(Value, ABC):
    """What updates the weights.

    Args:
        weight_decay: decay of every decayed parameter (coupled for SGD and Adam, decoupled for AdamW).
        decay_vectors: whether parameters with fewer than two axes (biases, norm scales and shifts) decay too.
        clip: largest gradient norm of one network; None leaves gradients as they are.
        apart: name patterns; the parameters that fit one of them are clipped by a norm of their own, so that a large
            gradient there takes nothing from the rest.
        rates: pairs of a name pattern and a factor, 0 or more: parameters that fit the pattern (the first one that they
            fit) learn at that many times the rate of the schedule.
    """

    weight_decay: float = 0.0
    decay_vectors: bool = True
    clip: float | None = None
    apart: tuple[str, ...] = ()
    rates: tuple[tuple[str, float], ...] = ()

    varies: ClassVar[bool] = True
    """Whether stacked members may differ in its settings."""

    decays_by_itself: ClassVar[bool] = False
    """Whether torch's optimizer brings a weight decay of its own."""

    direct: ClassVar[bool] = True
    """Whether `update` takes the steps of torch's optimizer by its fused kernel."""

    usual_rate: ClassVar[float] = 1e-3
    """The peak learning rate where none is given."""

    adaptive: ClassVar[bool] = False
    """Whether steps are as long as the learning rate says, whatever the size of gradients."""

    @property
    def own_rate(self) -> float | None:
        """The learning rate that it brings itself, if any."""
        return None

    @property
    def elementwise(self) -> bool:
        """Whether each number is updated by itself, so that stacked members stay apart."""
        return True

    def without_decay(self) -> "Optimizer":
        """Return the same optimizer without weight decay."""
        return replace(self, weight_decay=0.0)

    def check_rate(self, rate: float) -> None:
        """Raise InputError if the optimizer has a rate of its own that differs from a schedule's."""
        return

    def __post_init__(self) -> None:
        if not 0 <= self.weight_decay < math.inf or not (self.clip is None or 0 < self.clip < math.inf):
            raise InputError(
                f"weight_decay is {self.weight_decay} and clip {self.clip}; give a decay of 0 or more, and a norm above 0 or None."
            )
        for pattern, factor in self.rates:
            if not 0 <= factor < math.inf:
                raise InputError(f"rates has {factor!r} for {pattern!r}; give a factor of the rate, 0 or more.")

    @property
    @abstractmethod
    def entries(self) -> tuple[str, ...]:
        """Names of what the torch optimizer remembers of every parameter."""

    @abstractmethod
    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer: ...

    @abstractmethod
    def update(
        self, params: list[Tensor], grads: list[Tensor], memory: list[list[Tensor]], *, rate: float, decay: float
    ) -> None:
        """Take one step of some parameters through torch's fused kernel; `memory` has a list for each of `entries`."""

    def check_members(self, led: Collection[str]) -> None:
        """Raise InputError if it cannot train parameters whose first axis runs over the members of one joint network."""
        return

    def make(
        self,
        params: Mapping[str, Tensor],
        *,
        stacked: bool = False,
        undecayed: tuple[str, ...] = (),
        led: Collection[str] = (),
    ) -> torch.optim.Optimizer:
        """Return a torch optimizer over the named parameters.

        Args:
            params: leaf tensors by name.
            stacked: whether the first axis runs over members.
            undecayed: name patterns of parameters without weight decay.
            led: names of parameters with an axis more, over the members of one joint network.
        """
        self.check_members(led)
        groups: dict[tuple[float, float, bool], list[Tensor]] = {}
        for name, p in params.items():
            vector, spared = p.dim() - stacked - (name in led) < 2 and not self.decay_vectors, matches(name, undecayed)
            decay = 0.0 if vector or spared else self.weight_decay
            factor = next((factor for pattern, factor in self.rates if matches(name, (pattern,))), 1.0)
            groups.setdefault((decay, factor, spared and self.decays_by_itself), []).append(p)
        listed = [
            {"params": ps, "weight_decay": decay, FACTOR: factor, STACKED: stacked, SPARED: spared}
            for (decay, factor, spared), ps in groups.items()
        ]
        return self._make(listed, 1e-3)  # the schedule sets the rate before every step


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    momentum: float = 0.9
    nesterov: bool = False

    usual_rate: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum is {self.momentum}; give a number from 0 to below 1.")

    @property
    def entries(self) -> tuple[str, ...]:
        """The running sum of gradients, if there is momentum."""
        return (MOMENTUM,) if self.momentum else ()

    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        whole = all(p.dtype in FUSED for group in groups for p in group["params"])
        return torch.optim.SGD(groups, lr=rate, momentum=self.momentum, nesterov=self.nesterov, fused=whole)

    def update(
        self, params: list[Tensor], grads: list[Tensor], memory: list[list[Tensor]], *, rate: float, decay: float
    ) -> None:
        """Take one step."""
        torch._fused_sgd_(
            params,
            grads,
            memory[0] if memory else [],
            weight_decay=decay,
            momentum=self.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )


def check_moments(betas: tuple[float, float], eps: float) -> None:
    """Raise InputError for decays of moments, and what is added to their root, that are none."""
    if not all(0 <= beta < 1 for beta in betas) or not 0 < eps < math.inf:
        raise InputError(f"betas are {betas} and eps {eps}; give betas from 0 to below 1, and eps above 0.")


@dataclass(frozen=True, kw_only=True)
class _Adam(Optimizer, ABC):
    """What both kinds of Adam have in common."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moments(self.betas, self.eps)

    @property
    def entries(self) -> tuple[str, ...]:
        """Both moments and the number of steps."""
        return ("exp_avg", "exp_avg_sq", "step")

    def _kernel(self) -> Callable[..., Any]:
        return torch._fused_adam_

    def update(
        self, params: list[Tensor], grads: list[Tensor], memory: list[list[Tensor]], *, rate: float, decay: float
    ) -> None:
        """Take one step."""
        means, squares, steps = memory
        torch._foreach_add_(steps, 1)
        self._kernel()(
            params,
            grads,
            means,
            squares,
            [],
            steps,
            amsgrad=False,
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=decay,
            eps=self.eps,
            maximize=False,
        )


@dataclass(frozen=True, kw_only=True)
class Adam(_Adam):
    """Adam, with coupled weight decay."""

    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, lr=rate, betas=self.betas, eps=self.eps, fused=True)


@dataclass(frozen=True, kw_only=True)
class AdamW(_Adam):
    """Adam with decoupled weight decay."""

    weight_decay: float = 0.01

    def _kernel(self) -> Callable[..., Any]:
        return torch._fused_adamw_

    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=rate, betas=self.betas, eps=self.eps, fused=True)
