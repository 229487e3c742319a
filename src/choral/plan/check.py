"""Check a plan whole before its first step: every problem found, in one message."""

from collections.abc import Iterator
from typing import NamedTuple

from choral.base.errors import did_you_mean
from choral.plan.phases import Collect, Fork, Operator, Phase, Repeat, Seq, Starter, Train
from choral.plan.variants import OF_STEPS, numbers_of
from choral.plan.walk import Place, Visitor, first, once, trainings, walk


class _Reached(NamedTuple):
    """What is known where a phase is reached."""

    slots: frozenset[str] = frozenset()
    has_started: bool = False


def problems(plan: Phase, *, penalty_slots: tuple[str, ...] = ()) -> list[str]:
    """Return what is wrong with a plan, each with its place; an empty list if nothing is.

    >>> from choral.plan.phases import seq
    >>> problems(seq(Collect()))
    ['seq[0] Collect: there are no weights yet; put Reset() or Start() before it']
    """
    found: dict[str, None] = {}  # in order, each once

    def say(phase: Phase, place: Place, what: str, reached: _Reached | None = None) -> None:
        name = type(phase).__name__.lower() if phase.children or phase.obstacle else type(phase).__name__
        where = "".join(f"seq[{step.number}] " if step.kind == "seq" else f"{step.kind} " for step in place.steps)
        begin = "there are no weights yet; put Reset() or Start() before it"
        for said in (begin if reached and not reached.has_started else "", what):
            if said:
                found[f"{where}{name}: {said}"] = None

    def enter(node: Phase, place: Place) -> None:
        match node:
            case Fork():
                say(node, place, _unknown_settings(node))
            case Seq() | Repeat():
                pass
            case _:
                say(node, place, "is neither a combinator, Train, Collect nor an operator")
        say(node, place, node.obstacle)

    def start(phase: Starter, place: Place, reached: _Reached) -> _Reached:
        return reached._replace(has_started=True)

    def change(phase: Operator, place: Place, reached: _Reached) -> _Reached:
        say(phase, place, phase.obstacle, reached)
        for slot in phase.needs:
            if slot not in reached.slots:
                say(phase, place, f"needs the slot '{slot}', which no phase before it gives")
        return reached._replace(slots=reached.slots.union(phase.gives))

    def train(phase: Train, place: Place, reached: _Reached) -> _Reached:
        say(phase, place, "", reached)
        for what in _odd_settings(phase, reached.slots, penalty_slots):
            say(phase, place, what)
        return reached._replace(slots=reached.slots.union(*(rule.phase.gives for rule in phase.every)))

    def collect(phase: Collect, place: Place, reached: _Reached) -> _Reached:
        collected.append(phase)
        say(phase, place, "", reached)
        return reached

    collected: list[Collect] = []
    visitor = Visitor(
        start=start, change=change, train=train, collect=collect, enter=enter, rounds=once, branches=first
    )
    walk(plan, _Reached(), visitor)
    none = [] if collected else ["the plan collects no member; add Collect() where a member is ready"]
    return [*found, *none]


def _unknown_settings(node: Fork) -> str:
    """Return what is wrong with the settings in which branches differ: one that nothing in them knows."""
    read: set[str] = set()
    walk(node.body, None, Visitor(change=lambda phase, _, __: read.update(phase.reads), rounds=once, branches=first))
    for optimizer in [phase.optimizer for phase in trainings(node.body)[:1]]:
        known = sorted({*OF_STEPS, *numbers_of(optimizer), *read})
        for name in sorted(node.varied.difference(known)):
            near = did_you_mean(name, known)
            return (
                f"variants set {name!r}, which neither {type(optimizer).__name__} nor an operator knows; known are "
                f"{', '.join(known)}{'.' if near else ''}{near}"
            )
    return ""


def _odd_settings(phase: Train, slots: frozenset[str], penalty_slots: tuple[str, ...]) -> Iterator[str]:
    if phase.epochs < 0 or phase.epochs != int(phase.epochs):
        yield f"epochs is {phase.epochs}; give a whole number, 0 or more"
    if phase.batch_size < 0:
        yield f"batch_size is {phase.batch_size}; give 1 or more, or 0 for one that is chosen"
    for slot in penalty_slots:
        if slot not in slots:
            yield f"the objective reads the slot '{slot}', which no phase before it gives"
    for rule in phase.every:
        for slot in rule.phase.needs:
            if slot not in slots.union(rule.phase.gives):
                yield f"every: {type(rule.phase).__name__} needs the slot '{slot}', which no phase before it gives"
