"""Optimizers as frozen values: settings, weight-decay groups, clipping; steps are taken by `torch.optim`.

The schedule sets the learning rate. Stacked members with different settings are parameter groups of one torch optimizer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.objectives.penalties import matches

FACTORS = "rate_factors"
"""The key of torch's parameter groups that holds the factors of their learning rate."""

_LIMITS = {
    "weight_decay": math.inf,
    "clip": math.inf,
    "momentum": 1,
    "betas": 1,
    "eps": math.inf,
    "matrix_rate": math.inf,
    "steps": 100,
}
_POSITIVE = ("clip", "eps", "matrix_rate", "steps")
Groups = list[dict[str, Any]]


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

    varies: ClassVar[bool] = True  # whether stacked members may differ in its settings
    coupled: ClassVar[bool] = False  # whether updates may mix numbers: gradients of removed weights are then set to 0
    by_matrix: ClassVar[bool] = False  # whether it updates whole matrices: stacked members are then passed one by one
    without_hooks: ClassVar[bool] = False  # whether steps may pass over torch's hooks, because nobody can have set one
    usual_rate: ClassVar[float] = 1e-3  # the peak learning rate where none is given
    adaptive: ClassVar[bool] = (
        False  # whether steps are as long as the learning rate says, whatever the size of gradients
    )

    @property
    def own_rate(self) -> float | None:
        """The learning rate that it brings itself, if any."""
        return None

    @property
    def elementwise(self) -> bool:
        """Whether members can be trained stacked."""
        return True

    def without_decay(self) -> "Optimizer":
        """Return the same optimizer without weight decay."""
        return replace(self, weight_decay=0.0)

    def check_rate(self, rate: float) -> None:
        """Raise InputError if the optimizer has a rate of its own that differs from a schedule's."""
        return

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            given = getattr(self, name, None)
            values = given if isinstance(given, tuple) else (given,)
            if given is not None and not all(0 <= v < limit and (v or name not in _POSITIVE) for v in values):
                least = "more than" if name in _POSITIVE else "at least"
                raise InputError(f"{type(self).__name__}: {name} is {given}; give {least} 0 and less than {limit}.")
        for pattern, factor in self.rates:
            if not 0 <= factor < math.inf:
                raise InputError(f"rates has {factor!r} for {pattern!r}; give a factor of the rate, 0 or more.")

    def groups(
        self,
        params: Mapping[str, Tensor],
        *,
        rate: float = 1.0,
        stacked: bool = False,
        undecayed: tuple[str, ...] = (),
        led: Collection[str] = (),
    ) -> Groups:
        """Return the named parameters as parameter groups of torch, with all settings.

        Args:
            params: leaf tensors by name.
            rate: factor of the schedule's learning rate.
            stacked: whether the first axis runs over members.
            undecayed: name patterns of parameters without weight decay.
            led: names of parameters with an axis more, over the members of one joint network.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, p in params.items():
            vector = p.dim() - stacked - (name in led) < 2
            factor = next((factor for pattern, factor in self.rates if matches(name, (pattern,))), 1.0)
            settings = self._settings(p) | self._decay(vector, matches(name, undecayed)) | {FACTORS: (rate, factor)}
            found.setdefault(repr(settings), settings | {"params": []})["params"].append(p)
        return list(found.values())

    def _settings(self, p: Tensor) -> dict[str, Any]:
        """Return the settings of a parameter's group, by torch's names."""
        return {}

    def _decay(self, vector: bool, spared: bool) -> dict[str, float]:
        """Return the setting of weight decay; without one, torch's optimizer takes its own."""
        return {"weight_decay": 0.0 if spared or (vector and not self.decay_vectors) else self.weight_decay}

    @abstractmethod
    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        """Return the torch optimizers that update the groups."""


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    momentum: float = 0.9
    nesterov: bool = False

    usual_rate: ClassVar[float] = 0.05
    without_hooks: ClassVar[bool] = True

    def _settings(self, p: Tensor) -> dict[str, Any]:
        return {"momentum": self.momentum, "nesterov": self.nesterov}

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        """Return torch's SGD."""
        # torch 2.13: the fused kernel of the CPU leaves parameters of bfloat16 unchanged
        fused = all(p.dtype in (torch.float32, torch.float64) for group in groups for p in group["params"])
        made = torch.optim.SGD(groups, fused=fused)
        for p in (p for group in groups if group["momentum"] for p in group["params"]):
            # the kernel takes the momentum of all parameters or of none, and some may get gradients later; -0.0 + g is g to the bit
            made.state[p]["momentum_buffer"] = torch.full_like(p, -0.0, requires_grad=False)
        return [made]


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam, with coupled weight decay."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    adaptive: ClassVar[bool] = True
    without_hooks: ClassVar[bool] = True

    def _settings(self, p: Tensor) -> dict[str, Any]:
        return {"betas": self.betas, "eps": self.eps}

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        """Return torch's Adam."""
        return [torch.optim.Adam(groups, fused=True)]


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay."""

    weight_decay: float = 0.01

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        """Return torch's AdamW."""
        return [torch.optim.AdamW(groups, fused=True)]


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Muon for matrices (linear maps), AdamW for vectors and convolutions.

    Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.

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

    coupled: ClassVar[bool] = True
    by_matrix: ClassVar[bool] = True

    def groups(self, params: Mapping[str, Tensor], *, led: Collection[str] = (), **how: Any) -> Groups:
        """Return the groups of matrices and of all others; raise InputError where one matrix holds vectors of several members."""
        if led:
            raise InputError(
                "Muon turns each matrix as a whole, but members of this method share tensors, in which vectors of several members make up a matrix; take "
                "AdamW, or Muon with members of their own (deep_ensemble, tabpack)."
            )
        return super().groups(params, **how)

    def _settings(self, p: Tensor) -> dict[str, Any]:
        if p.dim() != 2:
            return {"betas": self.betas, "eps": self.eps}
        own = {"momentum": self.momentum, "nesterov": self.nesterov, "matrix_rate": self.matrix_rate}
        return own | {"ns_steps": self.steps, "adjust_lr_fn": self.adjust}

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        """Return torch's Muon and AdamW, as far as each has parameters."""
        matrices, others = ([g for g in groups if ("matrix_rate" in g) == matrix] for matrix in (True, False))
        for group in matrices:
            group[FACTORS] = (*group[FACTORS], group["matrix_rate"])
        both = ((torch.optim.Muon, matrices), (torch.optim.AdamW, others))
        return [kind(own) for kind, own in both if own]
