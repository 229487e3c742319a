"""Check a plan whole before its first step: every problem found, in one message."""

from choral.plan.phases import Collect, Fork, Operator, Phase, Repeat, Seq, Train


def problems(plan: Phase, *, penalty_slots: tuple[str, ...] = ()) -> list[str]:
    """Return what is wrong with a plan, each with its place; an empty list if nothing is.

    >>> from choral.plan.phases import seq
    >>> problems(seq(Collect()))
    ['seq[0] Collect: there are no weights yet; put Reset() or Start() before it']
    """
    found: list[str] = []
    collected = 0

    def say(where: str, what: str) -> None:
        line = f"{where}: {what}"
        if line not in found:
            found.append(line)

    def walk(node: Phase, where: str, slots: frozenset[str], started: bool) -> tuple[frozenset[str], bool]:
        nonlocal collected
        if isinstance(node, Seq):
            if not node.phases:
                say(where or "seq", "has no phases; give it at least one")
            for i, child in enumerate(node.phases):
                slots, started = walk(child, f"{where}seq[{i}] ", slots, started)
            return slots, started
        if isinstance(node, Repeat):
            if node.times < 0:
                say(where + "repeat", f"times is {node.times}; give 0 or more")
            return walk(node.body, where + "repeat ", slots, started) if node.times > 0 else (slots, started)
        if isinstance(node, Fork):
            if node.branches < 1:
                say(where + "fork", f"branches is {node.branches}; give 1 or more")
            walk(node.body, where + "fork ", slots, started)
            return slots, started
        name = where + type(node).__name__
        if isinstance(node, Collect):
            collected += 1
            if not started:
                say(name, "there are no weights yet; put Reset() or Start() before it")
        elif isinstance(node, Train):
            _check_train(node, name, say, slots, started, penalty_slots)
            for rule in node.every:
                slots = slots | set(rule.phase.gives)
        elif isinstance(node, Operator):
            if not started and not node.starts:
                say(name, "there are no weights yet; put Reset() or Start() before it")
            for slot in node.needs:
                if slot not in slots:
                    say(name, f"needs the slot '{slot}', which no phase before it gives")
            started = started or node.starts
            slots = slots | set(node.gives)
        else:
            say(name, "is neither a combinator, Train, Collect nor an operator")
        return slots, started

    walk(plan, "", frozenset(), False)
    if not collected:
        found.append("the plan collects no member; add Collect() where a member is ready")
    return found


def _check_train(node: Train, name: str, say, slots, started, penalty_slots) -> None:  # type: ignore[no-untyped-def]  # local callbacks of problems()
    if not started:
        say(name, "there are no weights yet; put Reset() or Start() before it")
    if node.epochs < 0 or node.epochs != int(node.epochs):
        say(name, f"epochs is {node.epochs}; give a whole number, 0 or more")
    if node.batch_size < 1:
        say(name, f"batch_size is {node.batch_size}; give 1 or more")
    if node.memory not in ("fresh", "carried"):
        say(name, f"memory is {node.memory!r}; give 'fresh' or 'carried'")
    for slot in penalty_slots:
        if slot not in slots:
            say(name, f"the objective reads the slot '{slot}', which no phase before it gives")
    for rule in node.every:
        if rule.count < 1:
            say(name, f"every({rule.count}, ...) cannot be; give a count of 1 or more")
        given = slots | set(rule.phase.gives)
        for slot in rule.phase.needs:
            if slot not in given:
                say(name, f"every: {type(rule.phase).__name__} needs the slot '{slot}', which no phase before it gives")
