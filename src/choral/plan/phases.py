"""Phases, of which plans are made, and their combinators.

`seq` runs phases in sequence; `repeat` runs one several times, each from the last state; `fork` runs a body several times from the *same*
state, and then continues with that state. Only forks may run in parallel. A starter makes a network's first state, an operator maps a
state to another; the engine carries out `Train`; `Collect` keeps a member.

A variant has settings in which the branches of a fork differ, given one by one or drawn from a space. The engine uses `rate` (a factor of
the learning rate), `dropout` (of every dropout layer), `smoothing` (of class labels), and every number of the phase's optimizer
(`weight_decay`, `momentum`, ...); operators may read others. Branch i draws its values by its place in the plan, so they are the same
among 4 branches or 40.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import nn

from choral.base.batches import Batch
from choral.base.errors import InputError, PlanError
from choral.base.interface import Called
from choral.base.types import Params
from choral.base.values import Count, Finite, Positive, Share, Value, Whole
from choral.objectives.likelihoods import Likelihood
from choral.plan.early_stopping import Select
from choral.plan.optimizers import SGD, Optimizer
from choral.plan.schedules import Constant, Schedule
from choral.plan.state import State

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
        """Return the user's settings as a variant."""
        return given if isinstance(given, Variant) else Variant(tuple(sorted(given.items())))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting."""
        return dict(self.settings).get(name, default)

    def within(self, outer: "Variant") -> "Variant":
        """Return the settings of a fork inside a branch with its own settings; the inner ones win."""
        return Variant(tuple(sorted((dict(outer.settings) | dict(self.settings)).items())))

    def optimizer(self, phase: Optimizer) -> Optimizer:
        """Return the optimizer of a phase with this variant's settings."""
        own: dict[str, Any] = {name: value for name, value in self.settings if name in numbers_of(phase)}
        return replace(phase, **own) if own else phase


def numbers_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of an optimizer's numeric settings, and each member's values."""
    if not optimizer.varies:
        return ()
    return tuple(
        f.name for f in fields(optimizer) if f.name != "clip" and isinstance(getattr(optimizer, f.name), float)
    )


@dataclass(frozen=True)
class Span(Value, ABC):
    """A distribution of a setting."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> float:
        """Return a value."""


@dataclass(frozen=True)
class _Between(Span, ABC):
    low: Finite
    high: Finite


@dataclass(frozen=True)
class Uniform(_Between):
    """A uniform distribution."""

    def draw(self, generator: torch.Generator) -> float:
        return self.low + (self.high - self.low) * _uniform(generator)


@dataclass(frozen=True)
class LogUniform(_Between):
    """A log-uniform distribution."""

    low: Positive
    high: Positive

    def draw(self, generator: torch.Generator) -> float:
        return self.low * (self.high / self.low) ** _uniform(generator)


@dataclass(frozen=True)
class OneOf(Span):
    """A uniform choice among numbers or distributions.

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
    """A distribution of settings, from which each branch draws a variant.

    >>> Space(rate=LogUniform(0.1, 10.0), dropout=OneOf((0.0, 0.1)))
    Space(dropout=OneOf(options=(0.0, 0.1)), rate=LogUniform(low=0.1, high=10.0))
    """

    spans: tuple[tuple[str, Span], ...]

    def __init__(self, spans: tuple[tuple[str, Span], ...] = (), **named: Span):
        object.__setattr__(self, "spans", tuple(sorted((*spans, *named.items()), key=lambda pair: pair[0])))

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={span!r}' for name, span in self.spans)})"

    def draw(self, generator: Callable[[str], torch.Generator]) -> Variant:
        """Return a variant; `generator` returns a generator for each setting, so that adding a setting does not change the others."""
        return Variant(tuple((name, span.draw(generator(name))) for name, span in self.spans))


@dataclass(frozen=True, kw_only=True)
class Phase(Value, ABC):
    """A node of a plan. `visit` names the method of `walk.Visitor` for it; combinators have none."""

    visit: ClassVar[Literal["start", "change", "train", "collect", ""]] = ""

    @property
    def children(self) -> tuple["Phase", ...]:
        """The phases directly below it."""
        return ()

    @property
    def runs(self) -> int:
        """How often its children run."""
        return 1


class Context(Protocol):
    """What the engine provides to an operator: random generators of its place, the network, the training data."""

    points: int
    branch: int
    turn: int
    likelihood: Likelihood
    variant: Variant

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of all training targets, (point, ...)."""

    def generator(self, purpose: str) -> torch.Generator:
        """Return the generator of this place."""

    def sibling_generator(self, purpose: str) -> torch.Generator:
        """Return a generator that all branches or rounds of the innermost fork or repeat share (`turn` is the number of this one)."""

    def partition(self, parts: int) -> torch.Tensor:
        """Return the fold of each training row (row,), the same for every branch of a run."""

    def fresh(self) -> State:
        """Return a newly built network's state, drawn with the seed of this place."""

    def given(self) -> State | None:
        """Return the weights of the network passed to `fit`, or None for a factory."""

    def network(self, state: State) -> nn.Module:
        """Return the joint network with the values of a state, in evaluation mode; valid until the next call."""

    def member(self, state: State, index: int) -> nn.Module:
        """Return one member of a state as a plain network of its own (`Structure.member`)."""

    def example(self) -> Batch:
        """Return a few training inputs as the joint network reads them."""

    def calls(self, state: State) -> Sequence[Called]:
        """Return the calls of modules in a pass of the joint network in evaluation mode, in their order."""

    def inputs(self, points: int | None = None) -> Iterator[Batch]:
        """Yield the training inputs as the joint network reads them, without augmentation: all in order, or some at random."""

    def losses(self, state: State, points: torch.Tensor) -> torch.Tensor:
        """Return the negative log likelihood of some training points (point,) in evaluation mode, the mean of all members."""

    def gradients(self, state: State, batches: int) -> Params:
        """Return the gradient of the objective over some training batches, also where the mask is False."""


@dataclass(frozen=True, kw_only=True)
class Starter(Phase, ABC):
    """A phase that makes a state; a plan begins with one.

    The class attribute `takes_given` says whether it takes the weights of the network passed to `fit`.
    """

    visit = "start"
    takes_given: ClassVar[bool] = False

    @abstractmethod
    def begin(self, context: Context) -> State:
        """Return the first state."""


@dataclass(frozen=True, kw_only=True)
class Reset(Starter):
    """Build the network again with the seed of this place in the plan."""

    def begin(self, context: Context) -> State:
        return context.fresh()


@dataclass(frozen=True, kw_only=True)
class Start(Starter):
    """Use the weights of the network passed to `fit`."""

    takes_given: ClassVar[bool] = True

    def begin(self, context: Context) -> State:
        given = context.given()
        if given is None:
            raise PlanError(
                "Start needs trained weights, but fit was given a factory; hand over the trained nn.Module itself."
            )
        return given


@dataclass(frozen=True, kw_only=True)
class Operator(Phase, ABC):
    """A phase that maps a state to the next without training.

    `needs` and `gives` name the slots it reads and writes, which are checked before the plan runs. Class attributes: `reads` names the settings
    of its branch's variant that it reads; `anywhere`, whether it computes on the device of the state (others get states on the CPU);
    `foreseen`, whether its effect on the cost is known before training.
    """

    visit = "change"
    reads: ClassVar[tuple[str, ...]] = ()
    anywhere: ClassVar[bool] = False
    foreseen: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Slots that must exist before."""
        return ()

    @property
    def gives(self) -> tuple[str, ...]:
        """Slots that exist afterwards."""
        return ()

    @abstractmethod
    def apply(self, state: State, context: Context) -> State:
        """Return the new state; the given one is not changed."""


@dataclass(frozen=True, kw_only=True)
class Every(Value):
    """An operator applied during training, after every `count` steps or epochs.

    Args:
        start: fraction of the phase after which it begins; stop: fraction after which it ends.
    """

    count: Count
    phase: Operator
    unit: Literal["steps", "epochs"] = "steps"
    start: Share = 0.0
    stop: Share = 1.0

    def due(self, finished: int, total: int) -> bool:
        """Return whether it is due after `finished` of `total` units.

        >>> from choral.plan.operators import UpdateMoments
        >>> [Every(count=2, phase=UpdateMoments()).due(n, 8) for n in (1, 2, 3, 4)]
        [False, True, False, True]
        """
        part = finished / max(total, 1)
        return finished % self.count == 0 and self.start <= part <= self.stop


@dataclass(frozen=True, kw_only=True)
class Train(Phase):
    """Minimize the objective for some epochs.

    Args:
        epochs: passes over this member's training rows.
        schedule: learning rate, spanning the phase.
        optimizer: the optimizer.
        batch_size: rows in a batch, 0 lets `fit` choose; a last batch of a single row is left out (BatchNorm cannot train on it).
        memory: 'fresh' resets the optimizer state, 'carried' continues with that of the previous phase.
        every: operators applied while training.
        select: selects and weights the branches trained together, by held-out rows; None keeps all equally.
        annealing: whether annealed penalties rise in this phase; if not, they have their full weight at once.
        least_steps: minimum number of steps for the method to work; see `choral.plan.cost`.

    Weights are held at exactly zero where the state's slot 'mask' is False.
    """

    visit = "train"

    epochs: Whole
    schedule: Schedule = Constant(0.1)
    optimizer: Optimizer = SGD()
    batch_size: Whole = 128
    memory: Literal["fresh", "carried"] = "fresh"
    every: tuple[Every, ...] = ()
    annealing: bool = True
    select: Select | None = None
    least_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Collect(Phase):
    """Keep the current weights as a member of the ensemble (or as all members of a joint network)."""

    visit = "collect"


@dataclass(frozen=True, kw_only=True)
class Seq(Phase):
    """Phases one after the other."""

    phases: tuple[Phase, ...]

    @property
    def children(self) -> tuple[Phase, ...]:
        return self.phases


@dataclass(frozen=True, kw_only=True)
class Repeat(Phase):
    """A phase several times, each from the last state."""

    times: Whole
    body: Phase

    @property
    def children(self) -> tuple[Phase, ...]:
        return opened(self.body)

    @property
    def runs(self) -> int:
        return self.times


@dataclass(frozen=True, kw_only=True)
class Fork(Phase):
    """A phase several times, each from the same state, which is also the state afterwards.

    Args:
        branches: number of branches.
        body: the phase.
        variants: settings of each branch if they differ; empty if not.
        space: the distribution of branches' settings instead.
    """

    branches: Count
    body: Phase
    variants: tuple[Variant, ...] = ()
    space: Space | None = None

    def __post_init__(self) -> None:
        if self.variants and (len(self.variants) != self.branches or self.space is not None):
            raise InputError(
                f"fork has {self.branches} branches and {len(self.variants)} variants; give as many, or a space instead."
            )
        if len({tuple(name for name, _ in v.settings) for v in self.variants}) > 1:
            raise InputError(
                f"fork: variants do not all set the same: {', '.join(sorted(self.varied))}; give each of them every one."
            )

    def variant(self, branch: int, generator: Callable[[str], torch.Generator]) -> Variant:
        """Return the settings of a branch.

        Args:
            branch: its number.
            generator: returns the generator of each random setting.
        """
        if self.space is not None:
            return self.space.draw(generator)
        return self.variants[branch] if self.variants else Variant()

    @property
    def varied(self) -> frozenset[str]:
        """Names of the settings in which branches may differ."""
        given = {name for variant in self.variants for name, _ in variant.settings}
        return frozenset(given | {name for name, _ in (self.space.spans if self.space else ())})

    @property
    def children(self) -> tuple[Phase, ...]:
        return opened(self.body)

    @property
    def runs(self) -> int:
        return self.branches


def opened(body: Phase) -> tuple[Phase, ...]:
    """Return the phases of a seq, or another phase alone."""
    return body.phases if isinstance(body, Seq) else (body,)


def seq(*phases: Phase) -> Seq:
    """Return the phases one after the other.

    >>> seq(Collect(), Collect()).phases
    (Collect(), Collect())
    """
    return Seq(phases=phases)


def repeat(times: int, *body: Phase) -> Repeat:
    """Return the body run `times` times, each from the last state."""
    return Repeat(times=times, body=body[0] if len(body) == 1 else seq(*body))


def fork(
    branches: int | Phase,
    *body: Phase,
    variants: Iterable[Variant | Mapping[str, float]] = (),
    sample: Space | None = None,
) -> Fork:
    """Return the body run in branches that all start from the same state.

    Args:
        branches: number of branches; optional with variants.
        body: phases of each branch.
        variants: settings of each branch, `{"rate": 0.5, "weight_decay": 1e-3}`; see `choral.plan.phases`.
        sample: the distribution of branches' settings instead.

    >>> fork(Collect(), variants=[{"rate": 1.0}, {"rate": 0.1}]).branches
    2
    """
    own = tuple(Variant.of(v) for v in variants)
    if isinstance(branches, Phase):
        body, branches = (branches, *body), len(own)
    whole = body[0] if len(body) == 1 else seq(*body)
    return Fork(branches=branches, body=whole, variants=own, space=sample)


def every(count: int, phase: Operator, *, unit: Literal["steps", "epochs"] = "steps", start: float = 0.0) -> Every:
    """Return an operator applied after every `count` steps or epochs of a training phase."""
    return Every(count=count, phase=phase, unit=unit, start=start)
