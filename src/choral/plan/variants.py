"""Variants: what the branches of a fork do differently, given one by one or drawn from a space.

A variant names settings and their values. Known to the engine are `rate` (times the schedule's), `dropout` (of every dropout
layer), `smoothing` (of class labels), and every number of the phase's optimizer (`weight_decay`, `momentum`, ...); operators may read
others. Branch i draws its values by its own place in the plan, so it has the same ones among 4 branches or 40.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from choral.base.errors import InputError
from choral.base.values import Finite, Positive, Value
from choral.plan.optimizers import Optimizer

OF_STEPS = ("rate", "dropout", "smoothing")
"""Settings of a training step besides those of its optimizer."""


@dataclass(frozen=True)
class Variant(Value):
    """Settings of one branch, by name.

    >>> Variant.of({"rate": 0.5, "dropout": 0.1}).get("rate")
    0.5
    """

    settings: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.settings:
            high = 1 if name in ("dropout", "smoothing", "momentum") else math.inf
            if not 0 <= value < high:
                raise InputError(f"the variant's {name} is {value!r}; give a number from 0 to below {high}.")

    @staticmethod
    def of(given: "Variant | Mapping[str, float]") -> "Variant":
        """Return what a user gave as a variant."""
        return given if isinstance(given, Variant) else Variant(tuple(sorted(given.items())))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting."""
        return dict(self.settings).get(name, default)

    def within(self, outer: "Variant") -> "Variant":
        """Return the settings of a fork inside a branch with settings of its own; the inner ones win."""
        return Variant(tuple(sorted((dict(outer.settings) | dict(self.settings)).items())))

    def optimizer(self, phase: Optimizer) -> Optimizer:
        """Return the optimizer of a phase with this variant's settings."""
        own: dict[str, Any] = {name: value for name, value in self.settings if name in numbers_of(phase)}
        return replace(phase, **own) if own else phase


def numbers_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of an optimizer's settings that are numbers, and each member's own."""
    if not optimizer.varies:
        return ()
    return tuple(
        f.name for f in fields(optimizer) if f.name != "clip" and isinstance(getattr(optimizer, f.name), float)
    )


@dataclass(frozen=True)
class Span(Value, ABC):
    """Where a setting is drawn from."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> float:
        """Return a value."""


@dataclass(frozen=True)
class _Between(Span, ABC):
    """A number between two."""

    low: Finite
    high: Finite


@dataclass(frozen=True)
class Uniform(_Between):
    """A number between two, all alike."""

    def draw(self, generator: torch.Generator) -> float:
        return self.low + (self.high - self.low) * _uniform(generator)


@dataclass(frozen=True)
class LogUniform(_Between):
    """A number between two above 0, all orders of magnitude alike."""

    low: Positive
    high: Positive

    def draw(self, generator: torch.Generator) -> float:
        return self.low * (self.high / self.low) ** _uniform(generator)


@dataclass(frozen=True)
class OneOf(Span):
    """One of several numbers or spans, all alike.

    >>> OneOf((0.0, Uniform(0.2, 0.5))).draw(torch.Generator().manual_seed(0))
    0.0
    """

    options: tuple[float | Span, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise InputError("OneOf(()) has nothing to choose from; give at least one number or span.")

    def draw(self, generator: torch.Generator) -> float:
        chosen = self.options[int(torch.randint(len(self.options), (), generator=generator))]
        return chosen.draw(generator) if isinstance(chosen, Span) else chosen


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator, dtype=torch.float64))


@dataclass(frozen=True, init=False)
class Space(Value):
    """Spans of settings, from which each branch draws a variant.

    >>> Space(rate=LogUniform(0.1, 10.0), dropout=OneOf((0.0, 0.1)))
    Space(dropout=OneOf(options=(0.0, 0.1)), rate=LogUniform(low=0.1, high=10.0))
    """

    spans: tuple[tuple[str, Span], ...]

    def __init__(self, spans: tuple[tuple[str, Span], ...] = (), **named: Span):
        object.__setattr__(self, "spans", tuple(sorted((*spans, *named.items()), key=lambda pair: pair[0])))

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={span!r}' for name, span in self.spans)})"

    def draw(self, generator: Callable[[str], torch.Generator]) -> Variant:
        """Return a variant; `generator` gives the generator of each setting, so that one more setting changes no other."""
        return Variant(tuple((name, span.draw(generator(name))) for name, span in self.spans))
