"""Muon: momentum whose matrices are made orthogonal before each step; AdamW for everything that is no matrix.

Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; the arithmetic of `torch.optim.Muon`.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.plan.optimizers import STACKED, Optimizer, check_moments

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
