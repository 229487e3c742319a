"""Checks of arguments by annotation and by name, and the plain state of torch around public functions.

`typed` checks every argument by its annotation and makes tensors of arrays; `guarded` checks plain annotations alone (numbers, words and
tuples of them) and puts torch into its plain state, since an autocast, no_grad or default device of the caller's would change what is trained.
Values (`choral.base.values`) are checked in the same way when they are made. `RULES` holds what an annotation cannot say.
"""

import functools
import inspect
import math
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor, nn

from choral.base.batches import tensor_of
from choral.base.errors import InputError, unknown_argument, wrong_call

P = ParamSpec("P")
R = TypeVar("R")
_ARRAYS = (Tensor, np.ndarray, list, tuple, Real, np.generic)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
_WORDS |= {Tensor: "a tensor of numbers", nn.Module: "a network", Any: "anything"}
_GENERIC: dict[Any, Any] = {dict: Mapping, list: Sequence}  # what annotations of built-in containers accept


def is_whole(value: Any, least: float = -math.inf) -> bool:
    """Return whether a value is a whole number, of Python or numpy, and large enough."""
    return fits(value, int) and bool(value >= least)


def is_number(value: Any, least: float = -math.inf) -> bool:
    """Return whether a value is a finite number that is large enough."""
    return fits(value, float) and least <= float(value) < math.inf


def _is_path(value: Any) -> bool:
    """Return whether a value is a path, or a choral.Store; "~" would silently become a folder of that name."""
    return hasattr(value, "url") or (
        fits(value, str | os.PathLike) and not str(value).startswith(("~/", "~\\")) and bool(str(value))
    )


_COUNT = (lambda value: is_whole(value, 1), "a whole number of 1 or more")
_EPOCHS = (lambda value: is_whole(value, 0), "a whole number of 0 or more")
_PATH = (_is_path, "a path, with the home folder written out (Path.home()) where it would begin with ~")
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "path": _PATH,
    "run_dir": _PATH,
    "batch_size": _COUNT,
    "epochs": _EPOCHS,
    "budget": _EPOCHS,
    "members": _COUNT,
    "draws": _COUNT,
    "stack": _COUNT,
    "threads": _COUNT,
    "callbacks": (
        lambda value: callable(value) or (fits(value, Sequence[Any]) and all(map(callable, value))),
        "a function of an event, or a list of such functions",
    ),
    "compute": (lambda value: hasattr(value, "checkpoint_seconds"), "a choral.Compute"),
}
"""What arguments of these names accept wherever they occur, as a test and in words; None where it is the default."""


def typed(function: Callable[P, R], accepts: Callable[[Any], bool] = lambda hint: True) -> Callable[P, R]:
    """Let a function answer wrong arguments in one sentence before it begins, and take arrays for tensors; `accepts` says which annotations count."""
    signature, hints = inspect.signature(function), _hints(function, accepts)
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    arrays = {n for n, h in hints.items() if h is Tensor or Tensor in get_args(h)}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = bound(name, signature, args, kwargs)
        check(name, given, hints)
        if not arrays:
            return function(*args, **kwargs)
        for n in arrays & given.arguments.keys():
            if fits(given.arguments[n], Tensor):
                given.arguments[n] = _tensor(name, n, given.arguments[n])
        return function(*given.args, **given.kwargs)

    return call


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function answer wrong numbers and words in one sentence before it begins, and run the same in any surroundings."""
    checked = typed(function, is_plain)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with plain():
            return checked(*args, **kwargs)

    return call


def check_options(where: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise InputError for wrong options that one function hands on to another, which takes them by name."""
    check(where, inspect.signature(function).bind_partial(**options), _hints(function, is_plain))


def _hints(function: Callable[..., Any], accepts: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the annotations of a function's arguments; those in quotes are not looked up and accept anything."""
    parameters = inspect.signature(function).parameters.items()
    return {n: p.annotation for n, p in parameters if p.annotation is not p.empty and accepts(p.annotation)}


def offered(names: Iterable[str], held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions that a package offers, each answering wrong arguments in a sentence; classes and constants stay."""
    return {name: typed(held[name]) for name in names if inspect.isfunction(held[name])}


def bound(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return arguments by name; InputError if one has another name, or one is missing."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [n for n, p in signature.parameters.items() if n != "self" and p.kind not in _OPEN]
        for unknown in [n for n in kwargs if n not in names]:
            raise InputError(unknown_argument(name, unknown, names)) from error
        raise InputError(wrong_call(name, error, names)) from error


def check(where: str, given: inspect.BoundArguments, hints: Mapping[str, Any]) -> None:
    """Raise InputError for the first argument that its rule or its annotation does not accept."""
    for name, value in given.arguments.items():
        parameter = given.signature.parameters[name]
        if parameter.kind in _OPEN or (value is None and parameter.default is None):
            continue
        if name in RULES and not RULES[name][0](value):
            raise InputError(f"{where}: {name} is {_shown(value)}; give {RULES[name][1]}.")
        check_types(where, {name: value}, hints)


def check_types(
    where: str, values: Mapping[str, Any], hints: Mapping[str, Any], accepts: Callable[[Any], bool] = lambda hint: True
) -> None:
    """Raise InputError for the first value that is not of its annotated type; `accepts` says which annotations count."""
    for name, value in values.items():
        if name in hints and accepts(hints[name]) and not fits(value, hints[name]):
            raise InputError(f"{where}: {name} is {_shown(value)}; give {in_words(hints[name])}.")


def _tensor(where: str, name: str, value: Any) -> Tensor:
    """Return an array as a tensor; InputError if it holds something else than real numbers."""
    try:
        found = value if isinstance(value, Tensor) else tensor_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where}: {name} is {_shown(value)}; give a tensor of numbers.") from error
    if found.is_complex():
        raise InputError(f"{where}: {name} holds complex numbers; give real ones.")
    return found


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


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type: numbers of numpy too, lists for tuples, arrays for tensors; NaN is no number.

    >>> fits((1, 2.0), tuple[float, ...]), fits(("a",), tuple[float, ...]), fits(True, int), fits([1], Tensor)
    (True, False, False, True)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple:
        wanted = parts[:1] * len(value) if parts[-1] is Ellipsis and isinstance(value, tuple | list) else parts
        return isinstance(value, tuple | list) and len(value) == len(wanted) and all(map(fits, value, wanted))
    if hint is int or hint is float:  # 2.0 counts nothing: range(2.0) fails; torch holds 64 bits
        number = isinstance(value, Integral if hint is int else Real) and type(value) is not bool
        return number and bool(value == value) and (type(value) is not int or abs(value) < 1 << 63)
    if hint in (Tensor, np.ndarray):
        return isinstance(value, _ARRAYS) and not isinstance(value, bool)
    if origin is Callable:
        return callable(value)
    if isinstance(origin, type):
        return isinstance(value, _GENERIC.get(origin, origin)) and not isinstance(value, str)
    return isinstance(value, hint) if isinstance(hint, type) and hint is not Any else True


@contextmanager
def plain() -> Iterator[None]:
    """Put torch into the state it starts with: gradients on, no inference mode, no autocast, new tensors on the CPU."""
    cpu = torch.device("cpu")
    around = nullcontext() if torch.empty(0).device == cpu else cpu  # the context looks at every call of torch
    with torch.inference_mode(False), torch.enable_grad(), full_precision(), around:
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """End the caller's autocast within the block."""
    with ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, ("cpu", "cuda", "mps", "xpu")):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield
