"""Steps of torch's optimizers for one network or a stack, with their state and with clipped gradients."""

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from choral.objectives.penalties import matches
from choral.plan.optimizers import FACTORS, Groups, Optimizer

_COUNTS = ("step", "mu_product", "eta", "mu")


def _is_count(full: str) -> bool:
    """Return whether an entry of torch's optimizers depends on the number of steps alone; others have the shape of their parameter."""
    return full.split("/", 1)[0] in _COUNTS


def laid_out_like(p: Tensor, value: Tensor) -> Tensor:
    """Return a copy of a value that lies in memory as the parameter does: fused kernels pair numbers by address."""
    return torch.empty_like(p, requires_grad=False).copy_(value)


def steps_of(memory: Mapping[str, Tensor]) -> tuple[tuple[str, float], ...]:
    """Return the steps that a memory says were taken of each parameter."""
    return tuple(sorted((full, float(t)) for full, t in memory.items() if _is_count(full)))


def _stacked(memories: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the memory of the stacked parameters of several networks; they have taken the same number of steps.

    A network that remembers nothing where another does (no momentum) is as one that remembers zeros.
    """
    known = {full: value for memory in memories for full, value in memory.items()}
    rows = {full: [m[full] if full in m else torch.zeros_like(one) for m in memories] for full, one in known.items()}
    return {full: one if _is_count(full) else torch.stack(rows[full]) for full, one in known.items()}


def _without_hooks(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Return a step without torch's wrapper for hooks and profilers, which takes 5 % of the time of small fits."""
    return torch.no_grad()(functools.partial(inspect.unwrap(type(optimizer).step), optimizer))


class Member(NamedTuple):
    """How one network is trained: its optimizer, and the factor of its rate."""

    optimizer: Optimizer
    rate: float = 1.0


class Stepper:
    """Takes the steps of one network, or of several that are stacked, by torch's optimizers.

    Members stepped `apart` are parameter groups of their own, over views of the stack: each gets the numbers that it gets alone.

    Args:
        params: leaf tensors by name.
        members: how each network is trained.
        stacked: whether the first axis of the parameters runs over networks.
        apart: whether the settings of stacked networks differ.
        undecayed: name patterns of parameters without weight decay.
        led: names of parameters with an axis more, over the members of one joint network.
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
        self._steps = [_without_hooks(o) if value.without_hooks else o.step for o in self.optimizers]

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
        for step in self._steps:
            step()

    def memories(self) -> list[dict[str, Tensor]]:
        """Return what the optimizers remember of each network, as flat dicts 'entry/parameter name' -> tensor."""
        found: list[dict[str, Tensor]] = [{} for _ in self._parts]
        for part, memory in zip(self._parts, found):
            for (name, p), optimizer in itertools.product(part.items(), self.optimizers):
                entries = optimizer.state.get(p, {}).items()
                memory |= {f"{entry}/{name}": t.detach() for entry, t in entries if isinstance(t, Tensor)}
        if self._together:
            found = [{k: t if _is_count(k) else t[i] for k, t in found[0].items()} for i in range(self._count)]
        return [{full: value.clone() for full, value in memory.items()} for memory in found]

    def restore(self, memories: Sequence[Mapping[str, Tensor]]) -> None:
        """Put in what `memories` returned for the same networks."""
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
    """Scale gradients in place so that each network's gradient norm is at most `limit`; no value is read back.

    Parameters whose names fit a pattern of `apart` (the first one that they fit) are clipped apart from all others.
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
