"""Learning-rate schedules.

A schedule spans its training phase, whatever its length, and is evaluated at every step.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from choral.base.errors import InputError
from choral.base.values import BelowOne, Function, NotNegative, Share, Value


@dataclass(frozen=True)
class Schedule(Value, ABC):
    """The learning rate as a function of the progress of a phase."""

    @abstractmethod
    def at(self, progress: float) -> float:
        """Return the rate at a progress from 0 (first step) to 1 (end of the phase)."""

    def rate(self, step: int, steps: int) -> float:
        """Return the rate of step `step`, from 0 on, of `steps`."""
        return self.at(step / max(steps, 1))


def _between(start: float, end: float, part: float) -> float:
    return start + (end - start) * min(max(part, 0.0), 1.0)


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(max(part, 0.0), 1.0))) / 2


@dataclass(frozen=True)
class Constant(Schedule):
    """The same rate throughout."""

    value: NotNegative

    def at(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True)
class Steps(Schedule):
    """A rate multiplied by `factor` at each milestone (fractions of the phase).

    >>> [round(Steps(0.1, milestones=(0.5, 0.75)).at(p), 6) for p in (0.0, 0.5, 0.75)]
    [0.1, 0.01, 0.001]
    """

    value: NotNegative
    milestones: tuple[Share, ...] = (0.5, 0.75)
    factor: NotNegative = 0.1

    def at(self, progress: float) -> float:
        return self.value * self.factor ** sum(progress >= m for m in self.milestones)


@dataclass(frozen=True)
class Linear(Schedule):
    """Linear interpolation of (progress, rate) points; constant before the first and after the last.

    >>> round(Linear(((0.0, 0.1), (0.5, 0.1), (0.9, 0.001))).at(0.7), 6)
    0.0505
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        where = [p for p, _ in self.points]
        if not where or where != sorted(where):
            raise InputError(f"Linear points must be at least one, in rising order of progress; got {self.points}.")

    def at(self, progress: float) -> float:
        if progress <= self.points[0][0]:
            return self.points[0][1]
        for (left, low), (right, high) in zip(self.points, self.points[1:]):
            if progress < right:
                return _between(low, high, (progress - left) / (right - left))
        return self.points[-1][1]


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from `start` down (or up) to `end`."""

    start: NotNegative
    end: NotNegative = 0.0

    def at(self, progress: float) -> float:
        return _cosine(self.start, self.end, progress)


@dataclass(frozen=True)
class Part(Schedule):
    """The part of another schedule from `begin` to `end`, for a training that is split into phases.

    >>> round(Part(Cosine(0.1), 0.5, 1.0).at(0.0), 6)
    0.05
    """

    whole: Schedule
    begin: NotNegative = 0.0
    end: NotNegative = 1.0

    def at(self, progress: float) -> float:
        return self.whole.at(self.begin + progress * (self.end - self.begin))


@dataclass(frozen=True)
class Relative(Schedule):
    """The shape of another schedule times a peak learning rate, which `fit` chooses while it is None.

    >>> Relative(Cosine(1.0)).at(0.0), Relative(Cosine(1.0), 0.003).at(0.0)
    (1.0, 0.003)
    """

    shape: Schedule
    peak: NotNegative | None = None

    def at(self, progress: float) -> float:
        return (1.0 if self.peak is None else self.peak) * self.shape.at(progress)

    def rate(self, step: int, steps: int) -> float:
        return (1.0 if self.peak is None else self.peak) * self.shape.rate(step, steps)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up from `start` to `peak` over the first `warm` part, then down to `end`, both as half cosines.

    The rate of the last step is exactly `end`, as in the two-phase schedule of Smith and Topin.
    """

    peak: NotNegative
    start: NotNegative = 0.001
    end: NotNegative = 1e-7
    warm: BelowOne = 0.1

    def at(self, progress: float) -> float:
        if progress < self.warm:
            return _cosine(self.start, self.peak, progress / self.warm)
        return _cosine(self.peak, self.end, (progress - self.warm) / (1 - self.warm))

    def rate(self, step: int, steps: int) -> float:
        """Return the rate of a step; the first is `start`, the last is `end`."""
        return self.at(step / max(steps - 1, 1))


_FINE = 10_000  # steps of a phase whose true number is not known


@dataclass(frozen=True)
class OwnRate(Schedule):
    """The learning rate as a function of the step in each training phase, from 0 on.

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
        """Return a function as a schedule, after a test at the first step."""
        try:
            taken = inspect.signature(function).parameters.values()
            places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in taken)
        except (TypeError, ValueError):  # built-in functions may not tell
            places = 1
        schedule = OwnRate(Function.of(function), with_steps=places > 1)
        schedule.rate(0, 1)
        return schedule

    def at(self, progress: float) -> float:
        """Return the rate at a progress, for methods that cut a schedule into parts."""
        if not self.with_steps:
            raise InputError(
                f"schedule: {self.function.name} takes the step alone, and this method needs a function of (step, steps)."
            )
        return self.rate(round(progress * _FINE), _FINE)

    def rate(self, step: int, steps: int) -> float:
        found = self.function(step, steps) if self.with_steps else self.function(step)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < float("inf"):
            raise InputError(
                f"schedule: {self.function.name} gave {found!r} at step {step} of {steps}; it must return a finite rate of 0 or more."
            )
        return float(found)
