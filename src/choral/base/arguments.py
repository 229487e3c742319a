"""Checks of the arguments of public functions, by name and by annotation, and the plain state of torch around them.

One guard for the public functions: arguments are checked by name before anything is computed, and torch is put in its plain state.

An argument means the same wherever it occurs, so its rule stands here once. What only one function takes (data, a recipe, a
likelihood) is checked where it is read.

Whether arguments are of the types that annotations say, and if not, one sentence.

Values (`choral.base.values`) are checked when they are made; public functions that are not guarded by name (`choral.base.arguments`) by `typed`,
where a package offers them: code inside calls them unchecked.

What the caller has switched on in torch is switched off within choral: results are the same wherever a function is called.

Within an autocast of the caller's every step would train on the weights of the first, since torch keeps their rounded copies until
the outermost autocast ends; without gradients nothing is trained; a default device would take the tensors of the engine along.
The default type of numbers stays: it decides the type of the networks a factory builds, as it does anywhere.
"""

import functools
import inspect
import math
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from choral.base.batches import tensor_of
from choral.base.errors import InputError, unknown_argument

P = ParamSpec("P")
R = TypeVar("R")
_ARRAYS = (Tensor, np.ndarray, list, tuple, Real, np.generic)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
_WORDS |= {Tensor: "a tensor of numbers", nn.Module: "a network", Any: "anything"}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function answer arguments of other types than it is annotated with in one sentence before it begins.

    >>> typed(round)(2.5)
    2
    """
    try:
        signature, hints = inspect.signature(function), get_type_hints(function)
    except (ValueError, TypeError, NameError):
        return function

    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    arrays = {n for n, h in hints.items() if h is Tensor or Tensor in get_args(h)}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check(name, bound(name, signature, args, kwargs), hints)
        given = signature.bind(*args, **kwargs)
        given.arguments |= {
            n: _tensor(name, n, v) for n, v in given.arguments.items() if n in arrays and isinstance(v, _ARRAYS)
        }
        return function(*given.args, **given.kwargs)

    return call


def _tensor(where: str, name: str, value: Any) -> Tensor:
    """Return an array as a tensor; InputError if it holds something else than real numbers."""
    try:
        found = value if isinstance(value, Tensor) else tensor_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where}: {name} is {_shown(value)}; give a tensor of numbers.") from error
    if found.is_complex():
        raise InputError(f"{where}: {name} holds complex numbers; give real ones.")
    return found


def offered(names: Iterable[str], held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions that a package offers, each answering wrong arguments in a sentence; classes and constants stay."""
    return {name: typed(held[name]) for name in names if inspect.isfunction(held[name])}


def bound(name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name, without those that may be any number; InputError if one has another name, or one is missing."""
    try:
        found = signature.bind(*args, **kwargs).arguments
        return {n: v for n, v in found.items() if signature.parameters[n].kind not in _OPEN}
    except TypeError as error:
        names = list(signature.parameters)
        unknown = [n for n in kwargs if n not in names]
        if unknown and names:
            raise InputError(unknown_argument(name, unknown[0], names)) from error
        said = f"it takes {', '.join(names)}" if names else "it takes nothing"
        raise InputError(f"{name}: {error}; {said}.") from error


def check(where: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise InputError for the first argument that is not of its annotated type."""
    for name, value in given.items():
        if name in hints and not fits(value, hints[name], loose=True):
            raise InputError(f"{where}: {name} is {_shown(value)}; give {in_words(hints[name])}.")


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_plain(hint: Any) -> bool:
    """Return whether an annotation is of numbers, words and tuples of them alone, which no class makes of something else."""
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return all(part is Ellipsis or is_plain(part) for part in get_args(hint))
    return get_origin(hint) is Literal or hint in (int, float, bool, str, types.NoneType)


def in_words(hint: Any) -> str:
    """Return what an annotation accepts, for people.

    >>> in_words(tuple[float, ...] | None), in_words(Literal["a", "b"])
    ('a tuple, each a number, or None', "'a' or 'b'")
    """
    parts, origin = get_args(hint), get_origin(hint)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Union, types.UnionType):
        return ", or ".join(map(in_words, parts))
    if origin is tuple:
        same = list(dict.fromkeys(p for p in parts if p is not Ellipsis))
        return "a tuple, each " + (in_words(same[0]) if len(same) == 1 else "of " + ", ".join(map(in_words, same)))
    kind = origin or hint
    return _WORDS.get(kind, f"a {getattr(kind, '__name__', str(kind))}")


def fits(value: Any, hint: Any, *, loose: bool = False) -> bool:
    """Return whether a value is of an annotated type; annotations of other sorts accept anything.

    Args:
        value: as a file gives it, or with `loose` as a user does: numbers of numpy too, lists for tuples, arrays for tensors; NaN is no number.
        hint: the annotation.
        loose: see value.

    >>> (
    ...     fits((1, 2.0), tuple[float, ...]),
    ...     fits(("a",), tuple[float, ...]),
    ...     fits(True, int),
    ...     fits([1], Tensor, loose=True),
    ... )
    (True, False, False, True)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin in (Union, types.UnionType):
        return any(fits(value, part, loose=loose) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple | list if loose else tuple):
            return False
        repeated = len(parts) == 2 and parts[1] is Ellipsis
        wanted = [parts[0]] * len(value) if repeated else list(parts)
        return len(value) == len(wanted) and all(fits(v, w, loose=loose) for v, w in zip(value, wanted))
    if loose:
        return _fits_loosely(value, hint, origin)
    if hint is float or hint is int:
        if isinstance(value, int) and abs(value) >= 1 << 63:
            return False  # no number of ours, and too large for most arithmetic
        whole = isinstance(value, int) or (isinstance(value, float) and (hint is float or value.is_integer()))
        return whole and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) and origin is None else True


def _fits_loosely(value: Any, hint: Any, origin: Any) -> bool:
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)  # 2.0 counts nothing: range(2.0) fails
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    if hint is Tensor:
        return isinstance(value, _ARRAYS) and not isinstance(value, bool)
    if hint is np.ndarray or hint is torch.Generator:
        return isinstance(value, _ARRAYS if hint is np.ndarray else torch.Generator)
    if origin in (Sequence, Mapping, Callable, Iterable) or origin in (dict, list):
        kind: Any = {Sequence: Sequence, Mapping: Mapping, dict: Mapping, list: Sequence}.get(origin)
        if kind is None:
            return callable(value) if origin is Callable else isinstance(value, Iterable) and not isinstance(value, str)
        return isinstance(value, kind) and not isinstance(value, str)
    return isinstance(value, hint) if isinstance(hint, type) and origin is None else True


_DEVICES = ("cpu", "cuda", "mps", "xpu")
_CPU = torch.device("cpu")
_PLAIN = nullcontext()


def plain() -> AbstractContextManager[Any]:
    """Return what puts torch into the state it starts with: gradients on, no inference mode, no autocast, new tensors on the CPU.

    In that state, and where gradients alone are off, it costs 2 microseconds: predictions are often asked for within `no_grad`.

    >>> with torch.no_grad(), plain():
    ...     torch.is_grad_enabled()
    True
    """
    if torch.is_inference_mode_enabled() or not _on_cpu() or any(map(torch.is_autocast_enabled, _DEVICES)):
        return _all_plain()
    return _PLAIN if torch.is_grad_enabled() else torch.enable_grad()


def _on_cpu() -> bool:
    return torch.empty(0).device == _CPU  # a tenth of what get_default_device takes


@contextmanager
def _all_plain() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(full_precision())
        if not _on_cpu():  # the context looks at every call of torch
            stack.enter_context(_CPU)
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """End the caller's autocast within the block."""
    with ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, _DEVICES):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


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
        with plain():
            return function(*args, **kwargs)

    return call
