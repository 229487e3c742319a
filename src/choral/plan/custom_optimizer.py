"""Optimizers and rates of the user's own: any class or factory of torch.optim, any function of the step."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.portrait import Function
from choral.plan.optimizers import Groups, Optimizer
from choral.plan.schedules import Schedule

_ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")
"""Classes of torch.optim whose update of a number depends on that number alone (and on the count of steps)."""
_FINE = 10_000  # steps of a phase whose true number is not known


@dataclass(frozen=True, kw_only=True)
class OwnOptimizer(Optimizer):
    """An optimizer made by a class or factory of the user.

    The rate is the schedule's, set before every step; weight decay is the factory's own, and none for objectives that hold the
    prior themselves.

    >>> OwnOptimizer.of(torch.optim.RMSprop).elementwise
    True

    Args:
        factory: called with a list of torch's parameter groups.
        apiece: whether members are trained one at a time, because the update of a number looks at others.
        own_decay: whether the weight decay is what the factory says, not `weight_decay`.
    """

    factory: Function
    apiece: bool = True
    own_decay: bool = True
    varies: ClassVar[bool] = False
    coupled: ClassVar[bool] = True

    @property
    def elementwise(self) -> bool:
        """Whether members can be stacked."""
        return not self.apiece

    @staticmethod
    def of(factory: Callable[..., torch.optim.Optimizer], *, elementwise: bool | None = None) -> "OwnOptimizer":
        """Return a class or factory as an optimizer; it is tried on one weight first.

        Args:
            factory: a class such as `torch.optim.NAdam`, or a function of the parameters that returns an optimizer.
            elementwise: declare it for classes that torch.optim does not have.
        """
        made = _tried(factory)
        if elementwise is None:
            elementwise = type(made).__module__.startswith("torch.optim") and type(made).__name__ in _ELEMENTWISE
        return OwnOptimizer(factory=Function.of(factory), apiece=not elementwise)

    def without_decay(self) -> "OwnOptimizer":
        """Return the same optimizer with a weight decay of 0 in every group, whatever the factory says."""
        return replace(self, weight_decay=0.0, own_decay=False)

    @property
    def own_rate(self) -> float | None:
        """The learning rate of the factory's first group."""
        return None if self.factory.call is None else float(_tried(self.factory).param_groups[0]["lr"])

    def check_rate(self, rate: float) -> None:
        """Raise InputError if the factory has a rate of its own that is neither its class's default nor the schedule's."""
        if self.factory.call is None:
            return
        made = _tried(self.factory)
        usual = inspect.signature(type(made).__init__).parameters.get("lr")
        own = {float(group["lr"]) for group in made.param_groups} - {rate}
        if usual is not None and isinstance(usual.default, int | float):
            own -= {float(usual.default)}
        if own:
            raise InputError(
                f"optimizer: {self.factory.name} has a rate of its own, {min(own)}, but rate is {rate}; schedules start from "
                f"Training(lr=...): give the same number there, or leave lr out."
            )

    def _decay(self, vector: bool, spared: bool) -> dict[str, float]:
        return {} if self.own_decay and not spared else super()._decay(vector, spared)

    def make(self, groups: Groups) -> list[torch.optim.Optimizer]:
        """Return what the factory makes of the groups."""
        return [self.factory(groups)]


def _tried(factory: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return what a factory makes for one weight, after one step: errors come before any training."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    name = getattr(factory, "__qualname__", repr(factory))
    try:
        made = factory([{"params": [weight]}])
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(f"it returned {type(made).__name__}, not a torch optimizer")
        before = _held(made)
        made.step()
    except Exception as error:  # the user's code can fail in any way
        raise InputError(
            f"optimizer: {name} was tried on one weight and failed with {error!r}; give a class of torch.optim that steps without a closure, or a "
            "function of a list of parameter groups, [{'params': [...]}], that returns such an optimizer."
        ) from error
    after = _held(made)
    lost = [k for k, v in after.items() if v != before.get(k) or ("tensor(" in v and not k.startswith("param_groups"))]
    lost += [f"state[...][{entry!r}]" for entry, v in made.state[weight].items() if not isinstance(v, Tensor)]
    if lost:
        raise InputError(
            f"optimizer: {name} remembers {lost[0]}, and a checkpoint has only tensors of state[parameter]; a run could not be resumed exactly: "
            "keep it there, as a tensor."
        )
    return made


def _held(made: torch.optim.Optimizer) -> dict[str, str]:
    """Return what an optimizer holds in attributes and parameter groups, as text; of private attributes only tensors."""
    groups = [
        (f"param_groups[{i}][{k!r}]", v) for i, g in enumerate(made.param_groups) for k, v in g.items() if k != "params"
    ]
    own = [(k, v) for k, v in vars(made).items() if k not in ("state", "param_groups", "defaults")]
    found = {k: repr(v) for k, v in (*groups, *own)}
    return {k: text for k, text in found.items() if not k.startswith("_") or "tensor(" in text}


@dataclass(frozen=True)
class OwnRate(Schedule):
    """The learning rate as a function of the step, counted from 0, in each training phase.

    >>> OwnRate.of(lambda step: 0.1 / (1 + step)).rate(4, 100)
    0.02

    Args:
        function: takes the step, or the step and the number of steps in the phase; returns the rate.
        with_steps: whether it takes both.
    """

    function: Function
    with_steps: bool = False

    @staticmethod
    def of(function: Callable[..., float]) -> "OwnRate":
        """Return a function as a schedule; it is tried at the first step."""
        try:
            taken = inspect.signature(function).parameters.values()
            places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in taken)
        except (TypeError, ValueError):  # built-in functions may not tell
            places = 1
        schedule = OwnRate(Function.of(function), with_steps=places > 1)
        schedule.rate(0, 1)
        return schedule

    @property
    def by_progress(self) -> bool:
        """Whether its shape is known without the number of steps: only if the function is told that number."""
        return self.with_steps

    def at(self, progress: float) -> float:
        """Return the rate at a progress, for methods that cut a schedule into parts."""
        if not self.with_steps:
            raise InputError(
                f"schedule: {self.function.name} takes the step alone, and this method needs the rate at a share of the training; "
                "give a function of (step, steps)."
            )
        return self.rate(round(progress * _FINE), _FINE)

    def rate(self, step: int, steps: int) -> float:
        """Return what the function gives, if that is a rate."""
        found = self.function(step, steps) if self.with_steps else self.function(step)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < float("inf"):
            raise InputError(
                f"schedule: {self.function.name} gave {found!r} at step {step} of {steps}; it must return a finite rate of 0 or more."
            )
        return float(found)
