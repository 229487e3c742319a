"""Optimizers as frozen values, torch.optim's or your own, and their steps for one network or a stack.

The schedule sets the learning rate. Stacked members with different settings are parameter groups of one torch optimizer.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.text import matches
from choral.base.values import BelowOne, Count, Function, NotNegative, Positive, Value

FACTORS = "rate_factors"
"""The key of torch's parameter groups that holds the factors of their learning rate."""

Groups = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Optimizer(Value, ABC):
    """An optimizer.

    Args:
        weight_decay: decay of every decayed parameter (coupled for SGD and Adam, decoupled for AdamW).
        decay_vectors: whether parameters with fewer than two axes (biases, norm scales and shifts) decay too.
        clip: largest gradient norm of one network; None does not clip.
        apart: name patterns; parameters that match are clipped by their own norm.
        rates: pairs of a name pattern and a factor of 0 or more; the first pattern that a parameter matches multiplies its learning rate.
    """

    weight_decay: NotNegative = 0.0
    decay_vectors: bool = True
    clip: Positive | None = None
    apart: tuple[str, ...] = ()
    rates: tuple[tuple[str, NotNegative], ...] = ()

    varies: ClassVar[bool] = True  # whether stacked members may differ in its settings
    coupled: ClassVar[bool] = False  # whether updates may mix numbers: gradients of removed weights are then set to 0
    by_matrix: ClassVar[bool] = False  # whether it updates whole matrices: stacked members are then passed one by one
    usual_rate: ClassVar[float] = 1e-3  # the peak learning rate where none is given
    adaptive: ClassVar[bool] = False  # whether steps are as long as the learning rate says, not as gradients are

    @property
    def own_rate(self) -> float | None:
        """The learning rate that it sets itself, if any."""
        return None

    @property
    def elementwise(self) -> bool:
        """Whether members can be trained stacked."""
        return True

    def without_decay(self) -> "Optimizer":
        """Return the same optimizer without weight decay."""
        return replace(self, weight_decay=0.0)

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
            stacked: whether the first axis is that of members.
            undecayed: name patterns of parameters without weight decay.
            led: names of parameters with an additional axis over the members of one joint network.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, p in params.items():
            vector = p.dim() - stacked - (name in led) < 2
            factor = next((factor for pattern, factor in self.rates if matches(name, (pattern,))), 1.0)
            settings = self._settings(p) | self._decay(vector, matches(name, undecayed)) | {FACTORS: (rate, factor)}
            found.setdefault(repr(settings), settings | {"params": []})["params"].append(p)
        return list(found.values())

    def _settings(self, p: Tensor) -> dict[str, Any]:
        return {}

    def _decay(self, vector: bool, spared: bool) -> dict[str, float]:
        return {"weight_decay": 0.0 if spared or (vector and not self.decay_vectors) else self.weight_decay}

    @abstractmethod
    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        """Return the torch optimizers that update the groups."""


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    momentum: BelowOne = 0.9
    nesterov: bool = False

    usual_rate: ClassVar[float] = 0.05

    def _settings(self, p: Tensor) -> dict[str, Any]:
        return {"momentum": self.momentum, "nesterov": self.nesterov}

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
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

    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    eps: Positive = 1e-8

    adaptive: ClassVar[bool] = True

    def _settings(self, p: Tensor) -> dict[str, Any]:
        return {"betas": self.betas, "eps": self.eps}

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(groups, fused=True)]


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay."""

    weight_decay: NotNegative = 0.01

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(groups, fused=True)]


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Muon for matrices (linear maps), AdamW for vectors and convolutions.

    Reference: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.

    Args:
        weight_decay: decoupled weight decay of both parts.
        matrix_rate: factor of the learning rate for matrices.
        momentum: momentum of matrices.
        nesterov: whether matrices use Nesterov's momentum.
        steps: iterations of the orthogonalization.
        adjust: 'original' multiplies the rate of tall matrices by sqrt(rows / columns), 'match_rms_adamw' all by 0.2 sqrt(longer side).
        betas, eps: those of AdamW.
    """

    weight_decay: NotNegative = 0.1
    matrix_rate: Positive = 1.0
    momentum: BelowOne = 0.95
    nesterov: bool = True
    steps: Count = 5
    adjust: Literal["original", "match_rms_adamw"] = "original"
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    eps: Positive = 1e-8

    coupled: ClassVar[bool] = True
    by_matrix: ClassVar[bool] = True

    def groups(self, params: Mapping[str, Tensor], *, led: Collection[str] = (), **how: Any) -> Groups:
        if led:
            raise InputError(
                "Muon orthogonalizes whole matrices, but members share tensors here; use AdamW, or separate members (deep_ensemble, tabpack)."
            )
        return super().groups(params, **how)

    def _settings(self, p: Tensor) -> dict[str, Any]:
        if p.dim() != 2:
            return {"betas": self.betas, "eps": self.eps}
        own = {"momentum": self.momentum, "nesterov": self.nesterov, "matrix_rate": self.matrix_rate}
        return own | {"ns_steps": self.steps, "adjust_lr_fn": self.adjust}

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        matrices, others = ([g for g in groups if ("matrix_rate" in g) == matrix] for matrix in (True, False))
        for group in matrices:
            group[FACTORS] = (*group[FACTORS], group["matrix_rate"])
        both = ((torch.optim.Muon, matrices), (torch.optim.AdamW, others))
        return [kind(own) for kind, own in both if own]


_ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")
"""Classes of torch.optim whose update of a number depends on that number alone (and on the count of steps)."""


@dataclass(frozen=True, kw_only=True)
class OwnOptimizer(Optimizer):
    """An optimizer made by your own class or factory.

    The schedule sets the rate before every step. Weight decay is the factory's own, and none for objectives that contain the prior.

    >>> OwnOptimizer.of(torch.optim.RMSprop).elementwise
    True

    Args:
        factory: called with a list of torch's parameter groups.
        apiece: whether members are trained one at a time, because the update of one entry depends on others.
        own_decay: whether to use the factory's weight decay instead of `weight_decay`.
    """

    factory: Function
    apiece: bool = True
    own_decay: bool = True
    varies: ClassVar[bool] = False
    coupled: ClassVar[bool] = True

    @property
    def elementwise(self) -> bool:
        return not self.apiece

    @staticmethod
    def of(factory: Callable[..., torch.optim.Optimizer], *, elementwise: bool | None = None) -> "OwnOptimizer":
        """Return a class or factory as an optimizer, after a test on one weight.

        Args:
            factory: a class such as `torch.optim.NAdam`, or a function of the parameters that returns an optimizer.
            elementwise: whether updates are elementwise, for classes outside of torch.optim.
        """
        made = _tried(factory)
        if elementwise is None:
            elementwise = type(made).__module__.startswith("torch.optim") and type(made).__name__ in _ELEMENTWISE
        return OwnOptimizer(factory=Function.of(factory), apiece=not elementwise)

    def without_decay(self) -> "OwnOptimizer":
        """Return the same optimizer with a weight decay of 0 in every group."""
        return replace(self, weight_decay=0.0, own_decay=False)

    @property
    def own_rate(self) -> float | None:
        return None if self.factory.call is None else float(_tried(self.factory).param_groups[0]["lr"])

    def _decay(self, vector: bool, spared: bool) -> dict[str, float]:
        return {} if self.own_decay and not spared else super()._decay(vector, spared)

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        return [self.factory(groups)]


def _tried(factory: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return a factory's optimizer for one weight, after one step."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    name = getattr(factory, "__qualname__", repr(factory))
    try:
        made = factory([{"params": [weight]}])
        before = _held(made)
        made.step()
    except Exception as error:  # the user's code can fail in any way
        raise InputError(
            f"optimizer: {name} was tried on one weight and failed with {error!r}; give a class of torch.optim, or a function of parameter groups."
        ) from error
    after = _held(made)
    lost = [k for k, v in after.items() if v != before.get(k) or ("tensor(" in v and not k.startswith("param_groups"))]
    lost += [f"state[...][{entry!r}]" for entry, v in made.state[weight].items() if not isinstance(v, Tensor)]
    if lost:
        raise InputError(
            f"optimizer: {name} remembers {lost[0]}, which checkpoints do not store; keep it as a tensor in state[parameter], so that runs can be resumed exactly."
        )
    return made


def _held(made: torch.optim.Optimizer) -> dict[str, str]:
    """Return the attributes and parameter groups of an optimizer as text; only tensors of private attributes."""
    groups = [
        (f"param_groups[{i}][{k!r}]", v) for i, g in enumerate(made.param_groups) for k, v in g.items() if k != "params"
    ]
    own = [(k, v) for k, v in vars(made).items() if k not in ("state", "param_groups", "defaults")]
    found = {k: repr(v) for k, v in (*groups, *own)}
    return {k: text for k, text in found.items() if not k.startswith("_") or "tensor(" in text}


_COUNTS = ("step", "mu_product", "eta", "mu")


def _is_count(full: str) -> bool:
    """Return whether an entry of the optimizer state depends on the number of steps only; others have the shape of their parameter."""
    return full.split("/", 1)[0] in _COUNTS


def laid_out_like(p: Tensor, value: Tensor) -> Tensor:
    """Return a copy of a value with the memory layout of the parameter: fused kernels pair entries by address."""
    return torch.empty_like(p, requires_grad=False).copy_(value)


def steps_of(memory: Mapping[str, Tensor]) -> tuple[tuple[str, float], ...]:
    """Return the number of steps of each parameter in an optimizer state."""
    return tuple(sorted((full, float(t)) for full, t in memory.items() if _is_count(full)))


def _stacked(memories: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the stacked optimizer state of networks with equally many steps; zeros for missing states."""
    known = {full: value for memory in memories for full, value in memory.items()}
    rows = {full: [m[full] if full in m else torch.zeros_like(one) for m in memories] for full, one in known.items()}
    return {full: one if _is_count(full) else torch.stack(rows[full]) for full, one in known.items()}


class Member(NamedTuple):
    """The optimizer of one network, and the factor of its learning rate."""

    optimizer: Optimizer
    rate: float = 1.0


class Stepper:
    """Updates one network, or several stacked ones, with torch's optimizers.

    Members stepped `apart` are separate parameter groups, over views of the stack, and get the same updates as alone.

    Args:
        params: leaf tensors by name.
        members: how each network is trained.
        stacked: whether the first axis of the parameters is that of networks.
        apart: whether the settings of stacked networks differ.
        undecayed: name patterns of parameters without weight decay.
        led: names of parameters with an additional axis over the members of one joint network.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        members: Sequence[Member],
        *,
        stacked: bool = False,
        apart: bool = False,
        undecayed: tuple[str, ...] = (),
        led: Collection[str] = (),
    ):
        value, self._count, self._whole = members[0].optimizer, len(members), list(params.values())
        apart = stacked and (apart or value.by_matrix)
        self._together = stacked and not apart
        self._views = [p.detach().unbind() for p in self._whole] if apart else []
        self._parts = [dict(zip(params, own)) for own in zip(*self._views)] or [dict(params)]  # by network, or all
        groups: Groups = []
        for part, (own, rate) in zip(self._parts, members):
            groups += own.groups(part, rate=rate, stacked=self._together, undecayed=undecayed, led=led)
        self.optimizers = value.make(groups)

    def step(self, rate: float) -> None:
        """Update all parameters that have gradients, at the schedule's learning rate."""
        for p in self._whole:
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = laid_out_like(p, p.grad)
        for p, views in zip(self._whole, self._views):
            for view, grad in zip(views, [None] * self._count if p.grad is None else p.grad.unbind()):
                view.grad = grad
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = math.prod((rate, *group[FACTORS]))
            optimizer.step()

    def memories(self) -> list[dict[str, Tensor]]:
        """Return the optimizer state of each network as a flat dict 'entry/parameter name' -> tensor."""
        found: list[dict[str, Tensor]] = [{} for _ in self._parts]
        for part, memory in zip(self._parts, found):
            for (name, p), optimizer in itertools.product(part.items(), self.optimizers):
                entries = optimizer.state.get(p, {}).items()
                memory |= {f"{entry}/{name}": t.detach() for entry, t in entries if isinstance(t, Tensor)}
        if self._together:
            found = [{k: t if _is_count(k) else t[i] for k, t in found[0].items()} for i in range(self._count)]
        return [{full: value.clone() for full, value in memory.items()} for memory in found]

    def restore(self, memories: Sequence[Mapping[str, Tensor]]) -> None:
        """Restore the result of `memories` for the same networks."""
        homes = {p: own for own in self.optimizers for group in own.param_groups for p in group["params"]}
        for part, memory in zip(self._parts, [_stacked(memories)] if self._together else memories):
            for full, value in memory.items():
                entry, name = full.split("/", 1)
                if name not in part:  # frozen since the memory was made
                    continue
                p, optimizer = part[name], homes[part[name]]
                if entry in _COUNTS:  # kernels of a device read them there
                    on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
                    optimizer.state[p][entry] = value.detach().clone().to(p.device if on_device else "cpu")
                else:
                    optimizer.state[p][entry] = laid_out_like(p, value.detach())


def clip_gradients(
    params: Mapping[str, Tensor], limit: float, *, apart: tuple[str, ...] = (), stacked: bool = False
) -> None:
    """Scale gradients in place so that each network's gradient norm is at most `limit`, without synchronizing the device.

    Parameters that match a pattern of `apart` (the first that matches) are clipped separately.
    """
    groups: dict[str | None, list[Tensor]] = {}
    for name, p in params.items():
        if p.grad is not None:
            fitting = next((pattern for pattern in apart if matches(name, (pattern,))), None)
            groups.setdefault(fitting, []).append(p)
    for found in groups.values():
        if not stacked:
            torch.nn.utils.clip_grad_norm_(found, limit)
            continue
        grads = [p.grad for p in found if p.grad is not None]
        each = [torch.linalg.vector_norm(g.flatten(1), dim=1) if g.dim() > 1 else g.abs() for g in grads]
        scale = (limit / (torch.linalg.vector_norm(torch.stack(each), dim=0) + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(scale.view(-1, *(1,) * (g.dim() - 1)))
