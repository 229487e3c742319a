"""Walks over plans, which visit each phase with its place and carry a value along.

A walk visits a plan in the order in which it runs. It carries a value from phase to phase (a state, a set of slots, a number), which a
visitor transforms at each kind of phase. All rounds of a repeat are visited unless `rounds` says otherwise; all branches of a fork begin
with the value before the fork, and the walk continues with it afterwards.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Literal, NamedTuple, TypeVar

from choral.plan.phases import Collect, Fork, Operator, Phase, Repeat, Seq, Starter, Train

C = TypeVar("C")
_LETTER = {"seq": "", "after": "", "repeat": "r", "fork": "f", "every": "every"}


class Step(NamedTuple):
    """One step down a plan: phase `number` of a seq, round of a repeat, branch of a fork; rule of an every, `after` this many units."""

    kind: Literal["seq", "repeat", "fork", "every", "after"]
    number: int

    @property
    def word(self) -> int | str:
        """Its text in keys and paths."""
        return f"{_LETTER[self.kind]}{self.number}" if _LETTER[self.kind] else self.number


@dataclass(frozen=True)
class Place:
    """The place of a phase in a plan: the steps down to it.

    >>> str(Place().then("seq", 1).then("fork", 3).then("seq", 0)), str(Place())
    ('1/f3/0', 'start')
    """

    steps: tuple[Step, ...] = ()

    def then(self, kind: Literal["seq", "repeat", "fork", "every", "after"], number: int) -> "Place":
        """Return the place one step further."""
        return Place((*self.steps, Step(kind, number)))

    def __add__(self, other: "Place") -> "Place":
        return Place(self.steps + other.steps)

    def __str__(self) -> str:
        return "/".join(str(word) for word in self.words) or "start"

    @property
    def words(self) -> tuple[int | str, ...]:
        """The words from which seeds are made."""
        return tuple(step.word for step in self.steps)

    def _last(self, *kinds: str) -> int:
        return max((i for i, step in enumerate(self.steps) if step.kind in kinds), default=-1)

    @property
    def branch(self) -> int:
        """Number of the branch of the innermost fork; 0 outside all forks."""
        return self.steps[last].number if (last := self._last("fork")) >= 0 else 0

    @property
    def turn(self) -> int:
        """Number of the branch or round of the innermost fork or repeat; 0 outside all of them."""
        return self.steps[last].number if (last := self._last("fork", "repeat")) >= 0 else 0

    @property
    def siblings(self) -> "Place":
        """What all branches or rounds of the innermost fork or repeat have in common: this place without its turn."""
        return Place(tuple(step for i, step in enumerate(self.steps) if i != self._last("fork", "repeat")))

    def holds(self, other: "Place") -> bool:
        """Return whether another place is this one or below it."""
        return other.steps[: len(self.steps)] == self.steps

    def to_list(self) -> list[list[str | int]]:
        """Return it as JSON types."""
        return [[step.kind, step.number] for step in self.steps]

    @staticmethod
    def from_list(steps: Iterable[tuple[Literal["seq", "repeat", "fork", "every", "after"], int]]) -> "Place":
        """Return the place that `to_list` wrote."""
        return Place(tuple(Step(kind, number) for kind, number in steps))


_START = Place()


def _all_rounds(node: Repeat) -> Iterable[int]:
    return range(node.times)


def _all_branches(node: Fork, place: Place, carried: C) -> Iterator[tuple[Place, C]]:
    return ((place.then("fork", i), carried) for i in range(node.branches))


@dataclass(frozen=True, kw_only=True)
class Visitor(Generic[C]):
    """Functions for each kind of phase; a missing one changes nothing.

    Args:
        start, change, train, collect: take a phase, its place and the carried value; return the next value.
        enter: called with every combinator and its place, before its children.
        rounds: returns the rounds of a repeat to visit.
        branches: returns the branches of a fork to visit, each with its place and its first value.
    """

    start: Callable[[Starter, Place, C], C] | None = None
    change: Callable[[Operator, Place, C], C] | None = None
    train: Callable[[Train, Place, C], C] | None = None
    collect: Callable[[Collect, Place, C], C] | None = None
    enter: Callable[[Phase, Place], None] | None = None
    rounds: Callable[[Repeat], Iterable[int]] = _all_rounds
    branches: Callable[[Fork, Place, C], Iterable[tuple[Place, C]]] = _all_branches


def walk(plan: Phase, carried: C, visitor: Visitor[C], place: Place = _START) -> C:
    """Walk a plan; return the value at its end.

    >>> from choral.plan.phases import fork, seq
    >>> plan = seq(Train(epochs=5), fork(2, Train(epochs=3), Collect()), Train(epochs=1))
    >>> walk(plan, 0, Visitor(train=lambda phase, place, epochs: epochs + phase.epochs))
    6
    """
    if plan.visit:
        act: Callable[[Phase, Place, C], C] | None = getattr(visitor, plan.visit)
        return act(plan, place, carried) if act else carried
    if visitor.enter:
        visitor.enter(plan, place)
    match plan:
        case Seq(phases=phases):
            for i, phase in enumerate(phases):
                carried = walk(phase, carried, visitor, place.then("seq", i))
        case Repeat(body=body):
            for i in visitor.rounds(plan):
                carried = walk(body, carried, visitor, place.then("repeat", i))
        case Fork(body=body):
            for begun, own in visitor.branches(plan, place, carried):
                walk(body, own, visitor, begun)
    return carried


def forks_to(plan: Phase, place: Place) -> Iterator[tuple[Fork, Place]]:
    """Yield the forks around a place, the outermost first, each with the place at which its branch begins.

    >>> from choral.plan.phases import fork, seq
    >>> plan = seq(Train(epochs=1), fork(2, Train(epochs=1), fork(3, Collect())))
    >>> [
    ...     (node.branches, str(begun))
    ...     for node, begun in forks_to(plan, Place().then("seq", 1).then("fork", 0).then("seq", 1).then("fork", 2))
    ... ]
    [(2, '1/f0'), (3, '1/f0/1/f2')]
    """
    node = plan
    for depth, step in enumerate(place.steps, 1):
        match node:
            case Fork(body=body):
                yield node, Place(place.steps[:depth])
                node = body
            case Repeat(body=body):
                node = body
            case Seq(phases=phases):
                node = phases[step.number]


def once(node: Repeat) -> Iterable[int]:
    """Return the first round of a repeat, for `Visitor.rounds`."""
    return range(min(node.times, 1))


def first(node: Fork, place: Place, carried: C) -> Iterator[tuple[Place, C]]:
    """Yield the first branch of a fork, for `Visitor.branches`."""
    yield place.then("fork", 0), carried


def mapped(plan: Phase, train: Callable[[Train], Train]) -> Phase:
    """Return a plan with its training phases replaced by a function of them.

    >>> from choral.plan.phases import repeat
    >>> mapped(repeat(2, Train(epochs=3)), lambda phase: Train(epochs=5)).body.epochs
    5
    """
    match plan:
        case Seq(phases=phases):
            return Seq(phases=tuple(mapped(phase, train) for phase in phases))
        case Repeat(body=body) | Fork(body=body):
            return replace(plan, body=mapped(body, train))
        case Train():
            return train(plan)
    return plan


def trainings(plan: Phase) -> list[Train]:
    """Return the training phases of a plan in the order they run, repeats and branches written out.

    >>> from choral.plan.phases import repeat
    >>> [phase.epochs for phase in trainings(repeat(2, Train(epochs=3)))]
    [3, 3]
    """
    match plan:
        case Train():
            return [plan]
    return [train for phase in plan.children for train in trainings(phase)] * plan.runs


def collected(plan: Phase) -> dict[Place, int]:
    """Return the places at which a plan collects members, each with the member's number."""
    places: list[Place] = []
    walk(plan, None, Visitor(collect=lambda phase, place, _: places.append(place)))
    return {place: number for number, place in enumerate(places)}
