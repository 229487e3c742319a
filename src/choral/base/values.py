"""Values: frozen, comparable descriptions with conversion to plain dicts; and checks of arguments by annotation.

The class of a value is its kind; only kinds defined by imported Python code can be read back, so a file never decides what is imported.
Values and the arguments of functions are checked by their annotations; `RULES` has rules for arguments of some names.
"""

import functools
import hashlib
import inspect
import math
import os
import sys
import sysconfig
import tokenize
import types
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from choral.base.batches import tensor_of
from choral.base.errors import CALLS, InputError, RunError, did_you_mean, unknown_argument
from choral.base.text import short

P = ParamSpec("P")
R = TypeVar("R")
_ARRAYS = (Tensor, np.ndarray, list, tuple, Real, np.generic)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
_WORDS |= {Tensor: "a tensor of numbers", nn.Module: "a network", Any: "anything"}
_GENERIC: dict[Any, Any] = {dict: Mapping, list: Sequence}  # what annotations of built-in containers accept


def is_whole(value: Any, least: float = -math.inf) -> bool:
    """Return whether a value is a whole number that is large enough."""
    return fits(value, int) and bool(value >= least)


def is_number(value: Any, least: float = -math.inf) -> bool:
    """Return whether a value is a finite number that is large enough."""
    return fits(value, float) and least <= float(value) < math.inf


def _is_path(value: Any) -> bool:
    """Return whether a value is a path, or a choral.Store; "~" would silently become a folder of that name."""
    return hasattr(value, "url") or (
        fits(value, str | os.PathLike) and not str(value).startswith(("~/", "~\\")) and bool(str(value))
    )


@dataclass(frozen=True)
class Limit:
    """Which values of an annotation `Annotated[type, limit]` are accepted, as a test and in words."""

    accepts: Callable[[Any], bool]
    words: str


Positive = Annotated[float, Limit(lambda given: 0 < given < math.inf, "a finite number above 0")]
NotNegative = Annotated[float, Limit(lambda given: 0 <= given < math.inf, "a finite number of 0 or more")]
Share = Annotated[float, Limit(lambda given: 0 <= given <= 1, "a share from 0 to 1")]
Finite = Annotated[float, Limit(math.isfinite, "a finite number")]
BelowOne = Annotated[float, Limit(lambda given: 0 <= given < 1, "a number from 0 to below 1")]
Inside = Annotated[float, Limit(lambda given: 0 < given < 1, "a number between 0 and 1, ends excluded")]
Count = Annotated[int, Limit(lambda given: given >= 1, "a whole number of 1 or more")]
Whole = Annotated[int, Limit(lambda given: given >= 0, "a whole number of 0 or more")]
_PATH = Limit(_is_path, "a path, with Path.home() instead of ~")
_CALLBACKS = Limit(
    lambda value: callable(value) or (fits(value, Sequence[Any]) and all(map(callable, value))),
    "a function of an event, or a list of such functions",
)
RULES: dict[str, Any] = {
    **dict.fromkeys(("path", "run_dir"), Annotated[Any, _PATH]),
    **dict.fromkeys(("batch_size", "members", "draws", "stack", "threads"), Count),
    **dict.fromkeys(("epochs", "budget"), Whole),
    "callbacks": Annotated[Any, _CALLBACKS],
    "compute": Annotated[Any, Limit(lambda value: hasattr(value, "checkpoint_seconds"), "a choral.Compute")],
}
"""What arguments of functions accept that have these names, whatever their annotations say; None where it is the default."""


def typed(function: Callable[P, R], *, of_plain: bool = False) -> Callable[P, R]:
    """Let a function check its arguments before it begins, those of plain annotations or all, and take arrays for tensors."""
    signature, hints = inspect.signature(function), annotations(function, of_plain=of_plain)
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    arrays = [n for n, h in hints.items() if h is Tensor or Tensor in get_args(h)]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = bound(name, signature, args, kwargs)
        check_types(name, given.arguments, hints)
        for n in arrays:
            if fits(given.arguments.get(n), Tensor):
                given.arguments[n] = _tensor(name, n, given.arguments[n])
        return function(*given.args, **given.kwargs)

    return call


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function check its arguments before it begins, and compute the same under the caller's autocast or no_grad."""
    checked = typed(function, of_plain=True)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with plain():
            return checked(*args, **kwargs)

    return call


def annotations(function: Callable[..., Any], *, of_plain: bool) -> dict[str, Any]:
    """Return what a function's arguments accept; annotations in quotes are not looked up and accept anything."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = RULES.get(name, parameter.annotation)
        left_out = parameter.kind in _OPEN or hint is parameter.empty
        if not left_out and (name in RULES or is_plain(hint) or not of_plain):
            found[name] = Union[hint, None] if parameter.default is None else hint  # noqa: UP007  # also of quotes
    return found


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
        how = CALLS.get(name, f"it takes {', '.join(names)}")
        raise InputError(f"{name}: {error}; {how}.") from error


def check_types(where: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise InputError for the first value that its annotation does not accept."""
    for name, value in values.items():
        if name in hints and not fits(value, hints[name]):
            raise InputError(f"{where}: {name} is {short(repr(value), 80)}; give {in_words(hints[name])}.")


def _tensor(where: str, name: str, value: Any) -> Tensor:
    """Return an array as a tensor; InputError if it holds something else than real numbers."""
    if isinstance(value, Tensor) and not value.is_complex():
        return value
    try:
        return tensor_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where}: {name} is {short(repr(value), 80)}; give a tensor of real numbers.") from error


@functools.cache
def is_plain(hint: Any) -> bool:
    """Return whether an annotation is of numbers, words and tuples of them alone, which no class makes of something else."""
    if get_origin(hint) is Annotated:
        return is_plain(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return all(part is Ellipsis or is_plain(part) for part in get_args(hint))
    return get_origin(hint) is Literal or hint in (int, float, bool, str, types.NoneType)


def in_words(hint: Any) -> str:
    """Return what an annotation accepts, for people.

    >>> in_words(tuple[float, ...] | None), in_words(Literal["a", "b"])
    ('a tuple, each a number, or None', "'a' or 'b'")
    """
    parts, origin = get_args(hint), get_origin(hint)
    if origin is Annotated:
        return str(parts[1].words)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Union, types.UnionType):
        return ", or ".join(map(in_words, parts))
    if origin is tuple:
        same = list(dict.fromkeys(p for p in parts if p is not Ellipsis))
        return f"a tuple, each {in_words(same[0])}" if len(same) == 1 else f"({', '.join(map(in_words, same))})"
    kind = origin or hint
    return _WORDS.get(kind, f"a {getattr(kind, '__name__', str(kind))}")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type: numbers of numpy too, lists for tuples, arrays for tensors; NaN is no number.

    >>> fits((1, 2.0), tuple[float, ...]), fits(("a",), tuple[float, ...]), fits(True, int), fits([1], Tensor)
    (True, False, False, True)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, parts[0]) and bool(parts[1].accepts(value))
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        wanted = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return len(value) == len(wanted) and all(map(fits, value, wanted))
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


_INSTALLED = (__file__.rpartition("base")[0], "<frozen", *map(sysconfig.get_path, ("stdlib", "platstdlib")))
_LONGEST = 200  # characters of a part of a portrait; a digest stands for the rest
_OF_TORCH = set(vars(nn.Module()))
_PLAIN = (type(None), str, int, float, complex, bool, bytes, np.generic, torch.dtype, torch.device)
_HELD = (list, tuple, dict, set, frozenset, np.ndarray, Tensor, nn.Module, SimpleNamespace)
_CALLED = (FunctionType, MethodType, functools.partial, type, functools._lru_cache_wrapper)
KINDS: dict[str, type["Value"]] = {}
"""The kinds that can be read back, by their names."""


class _Checked(ABCMeta):
    """Checks the arguments of values before they are made, or the fields of those made."""

    if not TYPE_CHECKING:  # or what a call returns would be anything

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Return a value of checked arguments."""
            args, kwargs = _of_python(args), _of_python(kwargs)
            name, hints = cls.__name__, _hints(cls)
            given = bound(name, _signature(cls), args, kwargs).arguments
            check_types(name, {n: v for n, v in given.items() if is_plain(hints.get(n))}, hints)
            made = super().__call__(*args, **kwargs)
            check_types(name, vars(made), hints)
            return made

        @property
        def __signature__(cls) -> inspect.Signature:
            """The arguments of a value's class, for `help` and tab completion."""
            return _signature(cls)


def _of_python(given: Any) -> Any:
    """Return numbers of numpy, alone or in tuples, lists and dicts, as those of Python, which files and messages can hold."""
    if isinstance(given, np.generic):
        return given.astype(float).item() if given.dtype.kind == "f" else given.item()
    if type(given) in (tuple, list):
        return type(given)(map(_of_python, given))
    return {name: _of_python(value) for name, value in given.items()} if type(given) is dict else given


class Value(metaclass=_Checked):
    """Base of frozen dataclasses that can be written as plain dicts and are checked by the annotations of their fields.

    >>> from choral.objectives import L2
    >>> L2(precision=-1.0)
    Traceback (most recent call last):
        ...
    choral.base.errors.InputError: L2: precision is -1.0; give a finite number of 0 or more.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        other = KINDS.get(cls.__name__)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(
                f"a value named {cls.__name__!r} is defined in {other.__module__} already; give another name."
            )
        KINDS[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict of JSON types: the kind and every field."""
        assert is_dataclass(self), f"{type(self).__name__} must be a dataclass"
        return {"kind": type(self).__name__} | {f.name: _encode(getattr(self, f.name)) for f in fields(self)}


def _encode(item: Any) -> Any:
    match item:
        case Value():
            return item.to_dict()
        case tuple() | list():
            return [_encode(i) for i in item]
        case Mapping():
            return {str(k): _encode(v) for k, v in item.items()}
        case None | str() | int() | float():
            return item
    raise InputError(f"{item!r} cannot be written into a plan; give numbers or strings, and name layers by patterns.")


def _decode(item: Any) -> Any:
    match item:
        case {"kind": _}:
            return from_dict(item)
        case Mapping():
            return {k: _decode(v) for k, v in item.items()}
        case list() | tuple():
            return tuple(map(_decode, item))
    return item


def from_dict(data: Mapping[str, Any]) -> Any:
    """Return the value a dict describes; raises InputError for a kind or field that does not exist or is of another type."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"kind {kind!r} is not known; {', '.join(sorted(KINDS))} are.{did_you_mean(str(kind), KINDS)}")
    given = {k: _decode(v) for k, v in data.items() if k != "kind"}
    check_types(kind, given, _hints(KINDS[kind]))
    return KINDS[kind](**given)


def of_kind(kind: type[Any], content: Mapping[str, Any], where: str) -> Any:
    """Return the value a dict in a file describes; RunError if it is of another kind."""
    value = from_dict(content)
    if not isinstance(value, kind):
        raise RunError(
            f"{where} holds a {type(value).__name__} where a {kind.__name__} belongs; copy or make it again."
        )
    return value


@functools.cache
def _signature(cls: type) -> inspect.Signature:
    """Return what a class is made of; that of its metaclass would take anything."""
    return inspect.signature(functools.partial(cls.__init__, None))  # type: ignore[misc]  # of the class itself


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:  # a class of the user's own, whose annotations are not importable
        return {}


def digest(data: str | bytes) -> str:
    """Return the beginning of the SHA-256 of a text or of bytes."""
    data = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    return hashlib.sha256(data).hexdigest()[:16]


def portrait(value: Any, seen: dict[int, tuple[Any, str]] | None = None) -> str:
    """Return a short text that identifies the content or source code of a value, the same in every process."""
    if isinstance(value, _PLAIN):
        return _cut(repr(value))
    seen = {} if seen is None else seen  # each object is described once, which ends cycles
    if id(value) not in seen:
        seen[id(value)] = value, "itself"
        seen[id(value)] = value, _cut(_text(value, functools.partial(portrait, seen=seen)))
    return seen[id(value)][1]


def _text(value: Any, of: Callable[[Any], str]) -> str:
    match value:
        case Tensor():
            return content_of(value)
        case nn.Module():
            modules = [(name, type(module), own_attributes(module)) for name, module in value.named_modules()]
            return of([*modules, *value.named_parameters(), *value.named_buffers()])
        case type():
            return _text_of_class(value, of)
        case FunctionType():
            return _text_of_function(value, of)
        case Mapping():
            return f"{{{', '.join(sorted(f'{of(k)}: {of(v)}' for k, v in value.items()))}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(of, value)))}}}"
        case list() | tuple():
            return f"({', '.join(map(of, value))})"
    if hasattr(value, "__wrapped__"):  # a cached function
        return f"{_name(value)} of {of(value.__wrapped__)}"
    try:
        return of([type(value), value.__reduce_ex__(2)])
    except Exception:  # a module, a lock, an open file; a __reduce__ of the user's may fail in any way
        return _name(value)


def _text_of_class(kind: type, of: Callable[[Any], str]) -> str:
    """Return the user's own code and constants in a class; what built a network is judged by the network."""
    parts = []
    for base in (b for b in kind.__mro__ if not _is_packaged(b)):
        for name, item in sorted(vars(base).items()):
            item = next((getattr(item, n) for n in ("__func__", "fget") if hasattr(item, n)), item)
            counts = isinstance(item, _CALLED) or (isinstance(item, (*_PLAIN, tuple)) and name[:2] != "__")
            if counts and not (name == "__init__" and issubclass(kind, nn.Module)):
                parts.append(f"{name}={of(item)}")
    return kind.__qualname__ + (f" {digest(', '.join(parts))}" if parts else "")


def _text_of_function(function: FunctionType, of: Callable[[Any], str]) -> str:
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or ())
    held = vars(function) | {n: c.cell_contents for n, c in cells if c != CellType() and n != "__class__"}
    if code.co_filename.startswith(_INSTALLED) or "-packages" in code.co_filename:
        return _name(function) + (f" {digest(of(held))}" if held else "")
    named = {n: v for n, v in _globals(function.__globals__, _names(code)) if n not in held}
    return f"{_name(function)} {digest(_source_of(code) + of([function.__defaults__, function.__kwdefaults__, held, named]))}"


@functools.cache  # so that a file edited after its code was loaded makes no difference
def _source_of(code: CodeType) -> str:
    """Return the source text of code with the column it begins at, which tells functions of one line apart."""
    try:
        column = min((start for _, _, start, _ in code.co_positions() if start), default=0)
        return f"{inspect.getsource(code)}{column}"
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        constants = [_source_of(c) if isinstance(c, CodeType) else portrait(c) for c in code.co_consts]
        return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def content_of(tensor: Tensor) -> str:
    """Return the shape, the type and the SHA-256 of a tensor's numbers."""
    if is_lazy(tensor) or tensor.is_meta:
        return shape_of(tensor)
    if tensor.is_nested:
        return ", ".join(map(content_of, tensor.unbind()))
    plain = tensor.detach().to_dense().cpu().resolve_conj().resolve_neg().flatten().contiguous()
    return f"{shape_of(tensor)} {digest(plain.view(torch.uint8).numpy().tobytes())}"


def shape_of(tensor: Tensor) -> str:
    """Return the shape and type of a tensor in words."""
    if is_lazy(tensor):
        return "lazy"
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond torch's, without private ones of packages."""
    bases = (base for base in type(module).__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins"))
    hidden = "_" if any(map(_is_packaged, bases)) else "\0"
    return {k: v for k, v in sorted(vars(module).items()) if k not in _OF_TORCH and not k.startswith(hidden)}


def attributes(network: nn.Module) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the numbers and words that a network's modules hold as attributes, also in lists and dicts, and copies of tensors, by name."""
    modules = network.named_modules()
    held = {f"{name}.{key}".lstrip("."): v for name, module in modules for key, v in own_attributes(module).items()}
    tensors = {name: value.detach().clone() for name, value in held.items() if isinstance(value, Tensor)}
    return {name: repr(value) for name, value in held.items() if _is_plain(value)}, tensors


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | int | float | bool)


def _is_packaged(kind: Any) -> bool:
    """Return whether a class or module is Python's, an installed package's or choral's."""
    name = getattr(kind, "__module__", None) or kind.__name__
    standard = name.partition(".")[0] in sys.stdlib_module_names
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name != "__main__" and (standard or file.startswith(_INSTALLED) or "-packages" in file)


def _names(code: CodeType) -> list[str]:
    """Return the globals and attributes that code names, also in functions inside it."""
    return [*code.co_names, *(name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c))]


def _globals(around: dict[str, Any], names: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield what code means by names: globals, or something in a module of the user's own."""
    modules = [vars(m) for m in around.values() if isinstance(m, ModuleType) and not _is_packaged(m)]
    for name in names:
        value = next((space[name] for space in (around, *modules) if name in space), around)
        if value is not around and (isinstance(value, (*_PLAIN, *_HELD, *_CALLED)) or is_dataclass(value)):
            yield name, value


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}... {digest(text)}"


@dataclass(frozen=True)
class Function(Value):
    """A function given by the user; in a plan read from a file only its name and the digest of its portrait."""

    name: str
    digest: str = ""
    call: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(function: Callable[..., Any]) -> "Function":
        """Return a function as a value."""
        named: Any = function
        while isinstance(named, functools.partial):
            named = named.func
        named = inspect.unwrap(named)
        return Function(f"{getattr(named, '__module__', '?')}.{_name(named)}", digest(portrait(function)), function)

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the digest; a function is never written into a file."""
        return {"kind": type(self).__name__, "name": self.name, "digest": self.digest}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if self.call is None:
            raise InputError(f"a file names the function {self.name} but contains no code; make the recipe in Python.")
        return self.call(*args, **kwargs)
