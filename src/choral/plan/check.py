"""Checks of a plan before its first step; all errors are in one message."""

from collections.abc import Iterator

from choral.base.errors import did_you_mean
from choral.plan.phases import OF_STEPS, Collect, Fork, Operator, Phase, Repeat, Seq, Starter, Train, numbers_of
from choral.plan.walk import Place, Visitor, first, once, trainings, walk

_WEIGHTS = "weights"
"""What a starter gives, besides the slots."""


def problems(plan: Phase, *, penalty_slots: tuple[str, ...] = ()) -> list[str]:
    """Return the errors in a plan, each with its place; an empty list if there are none.

    >>> from choral.plan.phases import seq
    >>> problems(seq(Collect()))
    ['seq[0] Collect: there are no weights yet; put Reset() or Start() before it']
    """
    found: dict[str, None] = {}  # in order, each once

    collected: list[Collect] = []

    def say(phase: Phase, place: Place, what: str) -> None:
        name = type(phase).__name__.lower() if phase.children else type(phase).__name__
        where = "".join(f"seq[{step.number}] " if step.kind == "seq" else f"{step.kind} " for step in place.steps)
        found[f"{where}{name}: {what}"] = None

    def enter(node: Phase, place: Place) -> None:
        match node:
            case Fork():
                for what in _unknown_settings(node):
                    say(node, place, what)
            case Seq() | Repeat():
                pass
            case _:
                say(node, place, "is neither a combinator, Train, Collect nor an operator")

    def require(
        phase: Phase, place: Place, reached: frozenset[str], slots: tuple[str, ...] = (), who: str = ""
    ) -> None:
        if _WEIGHTS not in reached:
            say(phase, place, "there are no weights yet; put Reset() or Start() before it")
        for slot in slots:
            if slot not in reached:
                say(phase, place, f"{who} the slot '{slot}', which no phase before it gives")

    def start(phase: Starter, place: Place, reached: frozenset[str]) -> frozenset[str]:
        return reached | {_WEIGHTS}

    def change(phase: Operator, place: Place, reached: frozenset[str]) -> frozenset[str]:
        require(phase, place, reached, phase.needs, "needs")
        return reached.union(phase.gives)

    def train(phase: Train, place: Place, reached: frozenset[str]) -> frozenset[str]:
        require(phase, place, reached, penalty_slots, "the objective reads")
        for rule in phase.every:
            own, who = rule.phase, f"every: {type(rule.phase).__name__} needs"
            require(phase, place, reached.union(own.gives), own.needs, who)
        return reached.union(*(rule.phase.gives for rule in phase.every))

    def collect(phase: Collect, place: Place, reached: frozenset[str]) -> frozenset[str]:
        collected.append(phase)
        require(phase, place, reached)
        return reached

    visitor = Visitor(
        start=start, change=change, train=train, collect=collect, enter=enter, rounds=once, branches=first
    )
    walk(plan, frozenset(), visitor)
    none = [] if collected else ["the plan collects no member; add Collect() where a member is ready"]
    return [*found, *none]


def _unknown_settings(node: Fork) -> Iterator[str]:
    """Yield errors for settings of branches that nothing in them uses."""
    read: set[str] = set()
    walk(node.body, None, Visitor(change=lambda phase, _, __: read.update(phase.reads), rounds=once, branches=first))
    for optimizer in [phase.optimizer for phase in trainings(node.body)[:1]]:
        known = sorted({*OF_STEPS, *numbers_of(optimizer), *read})
        for name in sorted(node.varied.difference(known)):
            near = did_you_mean(name, known)
            yield (
                f"variants set {name!r}, which neither {type(optimizer).__name__} nor an operator knows; known are "
                f"{', '.join(known)}{'.' if near else ''}{near}"
            )
