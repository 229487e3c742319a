"""Whether arguments are of the types that annotations say, and if not, one sentence.

Values (`choral.base.values`) are checked when they are made; public functions that are not guarded by name (`choral.base.arguments`) by `typed`,
where a package offers them: code inside calls them unchecked.
"""

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from choral.base.arrays import tensor_of
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
