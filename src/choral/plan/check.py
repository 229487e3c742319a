"""Check a plan whole before its first step: every problem found, in one message."""

from collections.abc import Iterator
from typing import NamedTuple

from choral.plan.phases import Collect, Fork, Operator, Phase, Starter, Train
from choral.plan.variants import check_known
from choral.plan.walk import Place, Visitor, first, once, walk

_BEGIN = "there are no weights yet; put Reset() or Start() before it"


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
    check = _Check(penalty_slots)
    visitor = Visitor(
        start=check.start,
        change=check.change,
        train=check.train,
        collect=check.collect,
        enter=check.enter,
        rounds=once,
        branches=first,
        other=lambda phase, place: check.say(phase, place, "is neither a combinator, Train, Collect nor an operator"),
    )
    walk(plan, _Reached(), visitor)
    if not check.collected:
        check.found.append("the plan collects no member; add Collect() where a member is ready")
    return check.found


class _Check:
    """What is done at each phase: say what is wrong with it, and note what it brings."""

    def __init__(self, penalty_slots: tuple[str, ...]):
        self.penalty_slots, self.collected, self.found = penalty_slots, 0, list[str]()

    def say(self, phase: Phase, place: Place, what: str) -> None:
        """Note a problem, once."""
        name = type(phase).__name__
        line = f"{_where(place)}{name.lower() if phase.children or phase.obstacle else name}: {what}"
        if line not in self.found:
            self.found.append(line)

    def enter(self, node: Phase, place: Place) -> None:
        """Check the numbers of a combinator, and that the settings in which branches differ mean something in it."""
        if isinstance(node, Fork) and node.varied:
            self._check_varied(node, place)
        if node.obstacle:
            self.say(node, place, node.obstacle)

    def _check_varied(self, node: Fork, place: Place) -> None:
        phases: list[Train] = []
        read: set[str] = set()

        def change(phase: Operator, _: Place, __: None) -> None:
            read.update(phase.reads)

        walk(
            node.body,
            None,
            Visitor(train=lambda p, *_: phases.append(p), change=change, rounds=once, branches=first),
        )
        for phase in phases[:1]:
            wrong = check_known(set(node.varied), phase.optimizer, read)
            if wrong:
                self.say(node, place, wrong)

    def start(self, phase: Starter, place: Place, reached: _Reached) -> _Reached:
        """There are weights from here on."""
        return reached._replace(has_started=True)

    def collect(self, phase: Collect, place: Place, reached: _Reached) -> _Reached:
        """Count a member."""
        self.collected += 1
        if not reached.has_started:
            self.say(phase, place, _BEGIN)
        return reached

    def change(self, phase: Operator, place: Place, reached: _Reached) -> _Reached:
        """Check what an operator needs; its slots are there from here on."""
        if not reached.has_started:
            self.say(phase, place, _BEGIN)
        if phase.obstacle:
            self.say(phase, place, phase.obstacle)
        for slot in phase.needs:
            if slot not in reached.slots:
                self.say(phase, place, f"needs the slot '{slot}', which no phase before it gives")
        return reached._replace(slots=reached.slots | set(phase.gives))

    def train(self, phase: Train, place: Place, reached: _Reached) -> _Reached:
        """Check a training phase; the slots of its rules are there from here on."""
        if not reached.has_started:
            self.say(phase, place, _BEGIN)
        for what in self._odd_settings(phase, reached.slots):
            self.say(phase, place, what)
        return reached._replace(slots=reached.slots.union(*(rule.phase.gives for rule in phase.every)))

    def _odd_settings(self, phase: Train, slots: frozenset[str]) -> Iterator[str]:
        if phase.epochs < 0 or phase.epochs != int(phase.epochs):
            yield f"epochs is {phase.epochs}; give a whole number, 0 or more"
        if phase.batch_size < 0:
            yield f"batch_size is {phase.batch_size}; give 1 or more, or 0 for one that is chosen"
        for slot in self.penalty_slots:
            if slot not in slots:
                yield f"the objective reads the slot '{slot}', which no phase before it gives"
        for rule in phase.every:
            if rule.count < 1:
                yield f"every({rule.count}, ...) cannot be; give a count of 1 or more"
            for slot in rule.phase.needs:
                if slot not in slots.union(rule.phase.gives):
                    yield f"every: {type(rule.phase).__name__} needs the slot '{slot}', which no phase before it gives"


def _where(place: Place) -> str:
    return "".join(f"seq[{step.number}] " if step.kind == "seq" else f"{step.kind} " for step in place.steps)
