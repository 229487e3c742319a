"""Records: what a function writes into as it runs, such as a count of its calls, and which is therefore no setting of it."""

import dis
from types import CodeType

_CHANGING = {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
_LOADS = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "LOAD_CLASSDEREF")


def written_by(code: CodeType) -> set[str]:
    """Return the globals and enclosed variables that code sets, or whose content it changes.

    >>> seen, factors = [], [2]
    >>> def loss(x):
    ...     seen.append(x)
    ...     return x * factors[0]
    >>> written_by(loss.__code__)
    {'seen'}
    """
    found: set[str] = set()
    line: list[str] = []  # variables used so far in this line
    last = ""
    for step in dis.get_instructions(code):
        if step.starts_line:
            line = []
        name = str(step.argval)
        if step.opname in ("STORE_GLOBAL", "STORE_DEREF"):
            found.add(name)
        elif step.opname in _LOADS:
            line.append(name)
        elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            found.update(line)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name in _CHANGING and last:
            found.add(last)
        last = name if step.opname in _LOADS else ""
    for inner in code.co_consts:
        found |= written_by(inner) if isinstance(inner, CodeType) else set()
    return found
