"""Optimizers as values: what updates the weights, with weight-decay groups and clipping by member.

The rate comes from the schedule. Every optimizer here is elementwise, so the same object also updates the stacked
parameters of many members at once.

Muon: momentum whose matrices are made orthogonal before each step; AdamW for everything that is no matrix.

Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; the arithmetic of `torch.optim.Muon`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

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


_QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of the iteration, as in torch
_TINY = 1e-7


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Muon for matrices (linear maps), AdamW for vectors and convolutions.

    Stacked members are made orthogonal each by itself, in one batched product.

    Args:
        weight_decay: decoupled, of both parts.
        matrix_rate: times the rate of the schedule, for matrices.
        momentum: of matrices.
        nesterov: whether matrices step by Nesterov's momentum.
        steps: of the iteration that makes a matrix orthogonal.
        adjust: 'original' multiplies the rate of tall matrices by sqrt(rows / columns), 'match_rms_adamw' all by 0.2 sqrt(longer side).
        betas, eps: of AdamW.
    """

    weight_decay: float = 0.1
    matrix_rate: float = 1.0
    momentum: float = 0.95
    nesterov: bool = True
    steps: int = 5
    adjust: Literal["original", "match_rms_adamw"] = "original"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    direct: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moments(self.betas, self.eps)
        if not 0 <= self.momentum < 1 or not 0 < self.matrix_rate < math.inf:
            raise InputError(
                f"Muon: momentum={self.momentum}, matrix_rate={self.matrix_rate}; give a momentum from 0 to below 1, and a rate above 0."
            )
        if self.adjust not in ("original", "match_rms_adamw") or not 1 <= self.steps < 100:
            raise InputError(
                f"Muon: adjust={self.adjust!r}, steps={self.steps}; give 'original' or 'match_rms_adamw', and 1 to 99 steps."
            )

    @property
    def entries(self) -> tuple[str, ...]:
        """They differ between matrices and others."""
        return ()

    def check_members(self, led: Collection[str]) -> None:
        """Raise InputError where one matrix holds vectors of several members."""
        if led:
            raise InputError(
                "Muon turns each matrix as a whole, but members of this method share tensors, in which vectors of several members make up a matrix; take "
                "AdamW, or Muon with members of their own (deep_ensemble, tabpack)."
            )

    def _make(self, groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
        return _Muon(groups, self, rate)

    def update(
        self, params: list[Tensor], grads: list[Tensor], memory: list[list[Tensor]], *, rate: float, decay: float
    ) -> None:
        """Never called: steps go through the torch optimizer that `make` returns."""
        raise NotImplementedError("Muon has no fused kernel.")


class _Muon(torch.optim.Optimizer):
    """Takes the steps; settings of a group are numbers, or lists with one for each member where stacked members differ.

    What is computed element by element goes by member and in the order of torch's own optimizers: matrices are rounded to bfloat16, so one
    bit of difference would soon be a thousandth.
    """

    def __init__(self, groups: list[dict[str, Any]], value: Muon, rate: float):
        self.value = value
        super().__init__(groups, {"lr": rate, "momentum": value.momentum, "matrix_rate": value.matrix_rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is taken
        """Take one step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    turn = self._orthogonal if p.dim() - group[STACKED] == 2 else self._adaptive
                    turn(p, p.grad, self.state[p], group)

    def _orthogonal(self, p: Tensor, grad: Tensor, memory: dict[str, Tensor], group: dict[str, Any]) -> None:
        if not memory:
            memory["momentum_buffer"] = torch.zeros_like(p)
        kept, settings = memory["momentum_buffer"], _each(group, p)
        turned = torch.empty_like(grad)
        for one, own, to, setting in zip(*_parts(group, grad, kept, turned), settings):
            own.lerp_(one, 1 - setting["momentum"])
            to.copy_(one.lerp(own, setting["momentum"]) if self.value.nesterov else own)
        turned = orthogonal(turned, self.value.steps)
        rows, columns = p.shape[-2:]
        factor = math.sqrt(max(1, rows / columns))
        if self.value.adjust == "match_rms_adamw":
            factor = 0.2 * math.sqrt(max(rows, columns))
        for own, update, setting in zip(*_parts(group, p, turned), settings):
            rate = setting["lr"] * setting["matrix_rate"]
            own.mul_(1 - rate * setting["weight_decay"])
            own.add_(update, alpha=-rate * factor)

    def _adaptive(self, p: Tensor, grad: Tensor, memory: dict[str, Tensor], group: dict[str, Any]) -> None:
        if not memory:
            memory |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p), "step": torch.zeros(())}
        memory["step"] += 1
        count, (first, second) = float(memory["step"]), self.value.betas
        parts = _parts(group, p, grad, memory["exp_avg"], memory["exp_avg_sq"])
        for own, one, mean, square, setting in zip(*parts, _each(group, p)):
            own.mul_(1 - setting["lr"] * setting["weight_decay"])
            mean.lerp_(one, 1 - first)
            square.mul_(second).addcmul_(one, one, value=1 - second)
            scale = (square.sqrt() / math.sqrt(1 - second**count)).add_(self.value.eps)
            own.addcdiv_(mean, scale, value=-setting["lr"] / (1 - first**count))


def _parts(group: dict[str, Any], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the tensors by member, each as views of its parts; a single network's as they are."""
    return [t.unbind() if group[STACKED] else (t,) for t in tensors]


def _each(group: dict[str, Any], p: Tensor) -> list[dict[str, float]]:
    """Return the settings of each member."""
    names, count = ("lr", "weight_decay", "momentum", "matrix_rate"), len(p) if group[STACKED] else 1
    lists = {n: group[n] if isinstance(group[n], list) else [group[n]] * count for n in names}
    return [{n: lists[n][i] for n in names} for i in range(count)]


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return matrices (..., row, column) with singular values brought near 1, by a quintic iteration in bfloat16.

    >>> turned = orthogonal(torch.diag(torch.tensor([3.0, 1.0]))).float()
    >>> bool((torch.linalg.svdvals(turned) - 1).abs().max() < 0.4)
    True
    """
    a, b, c = _QUINTIC
    x = matrices.bfloat16() if matrices.dim() == 3 else matrices.bfloat16().unsqueeze(0)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY)
    for _ in range(steps):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    x = x.mT if tall else x
    return x if matrices.dim() == 3 else x[0]
