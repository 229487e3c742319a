"""Digests of functions and other values of the user: the same in the next process, different for what does or holds something else.

A function counts by its source text, defaults, attributes and enclosed values, and by the constants, functions and classes it
names; an object by its class and attributes; an array by the SHA-256 of its bytes. Comments are part of the source text. Code typed
where Python keeps no text counts by its instructions. Code of installed packages counts by its name.

A plan can be printed, compared and written down although it holds a function: what is written is the function's name and digest. A
plan that was read back has the name alone; running it asks for the function again.
"""

import functools
import hashlib
import inspect
import logging
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from choral.base.errors import InputError
from choral.base.values import Value

_PACKAGES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_INSTALLED = (__file__.rpartition("base")[0], "<frozen", *_PACKAGES)
_DEEPEST = 16  # values in values, functions that name functions
_LONGEST = 200  # characters of a part; a digest stands for the rest
_OF_TORCH = set(vars(nn.Module()))
_PLAIN = (type(None), str, int, float, complex, bool, bytes, np.generic, torch.dtype, torch.device)
_HELD = (list, tuple, dict, set, frozenset, np.ndarray, Tensor, nn.Module, SimpleNamespace)
_CALLED = (FunctionType, MethodType, functools.partial, type, functools._lru_cache_wrapper)
_WRITES = (
    r"\b{}(\.(add|append|clear|extend|insert|pop|remove|setdefault|update)\(|\[[^\n]*\]\s*[-+*/]?=[^=]|\s*[-+*/]=)"
)


def digest(data: str | bytes) -> str:
    """Return the beginning of the SHA-256 of a text or of bytes."""
    data = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    return hashlib.sha256(data).hexdigest()[:16]


def portrait(value: Any) -> str:
    """Return a short text of a value that changes with what it holds or does.

    >>> portrait([1, {"rate": 0.5}])
    "(1, {'rate': 0.5})"
    """
    return _Portrait().of(value)


class _Portrait:
    """Describes values, each object once."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any, depth: int = _DEEPEST) -> str:
        if id(value) not in self._seen and not isinstance(value, _PLAIN) and depth:
            self._seen[id(value)] = value, "itself"
            self._seen[id(value)] = value, _cut(self._text(value, depth - 1))
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        return _cut(repr(value)) if isinstance(value, _PLAIN) else _name(value)

    def _text(self, value: Any, depth: int) -> str:
        inner = functools.partial(self.of, depth=depth)
        match value:
            case Tensor():
                return content_of(value)
            case np.ndarray():
                data = inner(value.tolist()) if value.dtype.hasobject else digest(value.tobytes())
                return f"{value.shape} {value.dtype} {data}"
            case nn.Module():
                parts = [f"{name}={inner([type(m), own_attributes(m)])}" for name, m in value.named_modules()]
                tensors = (*value.named_parameters(), *value.named_buffers())
                return ", ".join(parts + [f"{name}: {content_of(t)}" for name, t in tensors])
            case type():
                return self._class(value, depth)
            case ModuleType() | logging.Logger():
                return value.__name__ if isinstance(value, ModuleType) else value.name
            case functools.partial():
                return f"partial{inner([value.func, value.args, value.keywords])}"
            case MethodType():
                return f"{inner(value.__func__)} of {inner(value.__self__)}"
            case FunctionType():
                return self._function(value, depth)
            case Mapping():
                return f"{{{', '.join(sorted(f'{inner(k)}: {inner(v)}' for k, v in value.items()))}}}"
            case set() | frozenset():
                return f"{{{', '.join(sorted(map(inner, value)))}}}"
            case list() | tuple():
                return f"({', '.join(map(inner, value))})"
        around = getattr(value, "__wrapped__", getattr(value, "__self__", None))  # of a cached or a built-in function
        if callable(value) and around is not None and not isinstance(around, ModuleType):
            return f"{_name(value)} of {inner(around)}"
        held = dict(sorted(_held(value)))
        if held or not is_packaged(type(value)):
            return f"{inner(type(value))}({', '.join(f'{k}={inner(v)}' for k, v in held.items())})"
        return _name(value) if callable(value) else re.sub(r" at 0x\w+", "", repr(value))

    def _class(self, kind: type, depth: int) -> str:
        """Return the user's own code and constants in a class; what built a network is judged by the network."""
        parts = []
        for base in (b for b in kind.__mro__ if not is_packaged(b)):
            for name, item in sorted(vars(base).items()):
                item = next((getattr(item, n) for n in ("__func__", "fget") if hasattr(item, n)), item)
                counts = isinstance(item, _CALLED) or (isinstance(item, (*_PLAIN, tuple)) and name[:2] != "__")
                if counts and not (name == "__init__" and issubclass(kind, nn.Module)):
                    parts.append(f"{name}={self.of(item, depth)}")
        return kind.__qualname__ + (f" {digest(', '.join(parts))}" if parts else "")

    def _function(self, function: FunctionType, depth: int) -> str:
        code = function.__code__
        enclosed = dict(zip(code.co_freevars, map(_enclosed, function.__closure__ or ())))
        held = vars(function) | {n: v for n, v in enclosed.items() if n != "__class__"}
        if is_installed(code.co_filename):
            return _name(function) + (f" {digest(self.of(held, depth))}" if held else "")
        text = source_of(code)
        named = {n: v for n, v in _globals(function.__globals__, _names(code)) if n not in held}
        parts = [text, self.of([function.__defaults__, function.__kwdefaults__], depth)]
        for name, value in (held | named).items():
            record = isinstance(value, int | float | list | dict | set) and re.search(_WRITES.format(name), text)
            parts.append(f"{name}={_name(type(value)) if record else self.of(value, depth)}")
        return f"{_name(function)} {digest(', '.join(parts))}"


@functools.cache  # so that a file edited after its code was loaded makes no difference
def source_of(code: CodeType) -> str:
    """Return the source text of code with the column it begins at, which tells functions of one line apart."""
    try:
        column = min((start for _, _, start, _ in code.co_positions() if start), default=0)
        return f"{inspect.getsource(code)}{column}"
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        constants = [source_of(c) if isinstance(c, CodeType) else portrait(c) for c in code.co_consts]
        return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def content_of(tensor: Tensor) -> str:
    """Return the shape, the type and the SHA-256 of a tensor's numbers."""
    if is_lazy(tensor) or tensor.is_meta:
        return shape_of(tensor)
    if tensor.is_nested:
        return ", ".join(map(content_of, tensor.unbind()))
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    plain = dense.cpu().resolve_conj().resolve_neg().flatten().contiguous()
    return f"{shape_of(tensor)} {digest(plain.view(torch.uint8).numpy().tobytes())}"


def shape_of(tensor: Tensor) -> str:
    """Return the shape and type of a tensor in words."""
    if is_lazy(tensor):
        return "lazy"
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond torch's; not the private ones of packages (a trainer's), which come and go."""
    bases = (base for base in type(module).__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins"))
    hidden = "_" if any(map(is_packaged, bases)) else "\0"
    return {k: v for k, v in sorted(vars(module).items()) if k not in _OF_TORCH and not k.startswith(hidden)}


def is_packaged(kind: type | ModuleType) -> bool:
    """Return whether a class or module is Python's, an installed package's or choral's."""
    name = kind.__name__ if isinstance(kind, ModuleType) else kind.__module__
    standard = name.partition(".")[0] in sys.stdlib_module_names
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name != "__main__" and (standard or is_installed(file))


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python, an installed package or choral."""
    return file.startswith(_INSTALLED) or "-packages" in file


def _names(code: CodeType) -> list[str]:
    """Return the globals and attributes that code names, also in functions inside it."""
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _globals(around: dict[str, Any], names: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield what code means by names: globals, or something in a module of the user's own."""
    modules = [vars(m) for m in around.values() if isinstance(m, ModuleType) and not is_packaged(m)]
    for name in names:
        value = next((space[name] for space in (around, *modules) if name in space), around)
        if value is not around and (isinstance(value, (*_PLAIN, *_HELD, *_CALLED)) or is_dataclass(value)):
            yield name, value


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, in its dict and its slots; of packages' objects the public ones."""
    slots = [n for b in type(value).__mro__ for n, s in vars(b).items() if isinstance(s, MemberDescriptorType)]
    found = {n: getattr(value, n) for n in slots if hasattr(value, n)} | dict(getattr(value, "__dict__", {}))
    hidden = "_" if is_packaged(type(value)) else "__"
    yield from ((str(n), v) for n, v in found.items() if not str(n).startswith(hidden))


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}... {digest(text)}"


def _enclosed(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


@dataclass(frozen=True)
class Function(Value):
    """A function given by the user.

    Args:
        name: module and qualified name.
        digest: of its portrait: source text, settings and enclosed values.
        call: the function itself, None after reading a file.
    """

    name: str
    digest: str = ""
    call: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(function: Callable[..., Any]) -> "Function":
        """Return a function as a value.

        >>> Function.of(len).name
        'builtins.len'
        """
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
            raise InputError(
                f"a file names the function {self.name} but never brings code; make the recipe again in Python, with the "
                "function in it."
            )
        return self.call(*args, **kwargs)
