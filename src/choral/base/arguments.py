"""One guard for the public functions: arguments are checked by name before anything is computed, and torch is put in its plain state.

An argument means the same wherever it occurs, so its rule stands here once. What only one function takes (data, a recipe, a
likelihood) is checked where it is read.
"""

import functools
import inspect
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from choral.base import surroundings
from choral.base.errors import InputError, unknown_argument

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Rule:
    """What an argument accepts, as a test and in words."""

    accepts: Callable[[Any], bool]
    words: str


def is_whole(value: Any, least: float = -math.inf) -> bool:
    """Return whether a value is a whole number, of Python or numpy, and large enough.

    >>> is_whole(3), is_whole(True), is_whole(2.0), is_whole(0, 1)
    (True, False, False, False)
    """
    if type(value) is int:  # the usual one, without asking the abstract class
        return value >= least
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: Any, least: float = -math.inf) -> bool:
    """Return whether a value is a finite number that is large enough.

    >>> is_number(0.5), is_number("0.5"), is_number(float("nan"))
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and least <= float(value) < math.inf


def _or_none(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.accepts(value), f"{rule.words}, or None")


def _one_of(*names: str) -> Rule:
    return Rule(lambda value: isinstance(value, str) and value in names, " or ".join(map(repr, names)))


def _can_hear(value: Any) -> bool:
    return callable(value) or (isinstance(value, Sequence) and all(map(callable, value)))


_SWITCH = Rule(lambda value: isinstance(value, bool), "True or False")
_PATH = Rule(
    lambda value: (
        isinstance(value, str | os.PathLike) and bool(str(value)) and not str(value).startswith(("~/", "~\\"))
    ),
    "a path, with the home folder written out (Path.home()) where it would begin with ~",
)
_PLACE = Rule(lambda value: _PATH.accepts(value) or hasattr(value, "url"), _PATH.words)  # or a choral.Store
_COUNT = Rule(lambda value: is_whole(value, 1), "a whole number of 1 or more")
RULES = {
    "seed": Rule(is_whole, "a whole number"),
    "path": _PLACE,
    "run_dir": _PLACE,
    "batch_size": _COUNT,
    "epochs": Rule(lambda value: is_whole(value, 0), "a whole number of 0 or more"),
    "members": _or_none(_COUNT),
    "precision": _one_of("fp32", "bf16", "fp16", "fp64"),
    "callbacks": _or_none(Rule(_can_hear, "a function of an event, or a list of such functions")),
    "progress": _or_none(_SWITCH),
    "compute": _or_none(Rule(lambda value: hasattr(value, "checkpoint_seconds"), "a choral.Compute")),
    "stack": _or_none(_COUNT),
    "on_existing": _one_of("resume", "overwrite", "extend"),
    "partial": _SWITCH,
    "check_build": _SWITCH,
}


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function answer wrong arguments with one sentence before it begins, and run the same in any surroundings."""
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    ordered = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = {n for n in ordered if parameters[n].default is inspect.Parameter.empty}
    several = "seed" in parameters and parameters["seed"].annotation is not int  # which the function checks itself
    rules = [
        (n, rule) for n, rule in RULES.items() if (n in parameters or open_ended) and not (n == "seed" and several)
    ]
    unruled = next((i for i, name in enumerate(ordered) if name in RULES), len(ordered))
    takes = [n for n, p in parameters.items() if n != "self" and p.kind is not p.VAR_KEYWORD]

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given: dict[str, Any] = dict(zip(ordered, args)) | kwargs
        unknown = [] if open_ended or kwargs.keys() <= parameters.keys() else [n for n in kwargs if n not in parameters]
        if unknown:
            raise InputError(unknown_argument(function.__name__, unknown[0], takes))
        if len(args) > len(ordered) or not needed <= given.keys():
            missing = ", ".join(n for n in ordered if n in needed and n not in given)
            said = f"lacks {missing}" if missing else f"was given {len(args)} arguments without a name"
            pair = "give x and y as a pair: fit(build, (x, y), recipe)"
            wanted = pair if ordered == ["build", "data", "recipe"] else f"it takes {', '.join(takes)}"
            raise InputError(f"{function.__name__} {said}; {wanted}.")
        for name, rule in rules:
            unsaid = given.get(name) is None and name in parameters and parameters[name].default is None
            if name in given and not unsaid and not rule.accepts(given[name]):
                raise InputError(f"{name} is {given[name]!r}; give {rule.words}.")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs or not len(needed) <= len(args) <= unruled:  # otherwise there is nothing to check
            check(args, kwargs)
        with surroundings.plain():
            return function(*args, **kwargs)

    return call
