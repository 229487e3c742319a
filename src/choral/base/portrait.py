"""Digests of values and functions: texts that are the same in the next process and change with what a value holds or does.

Functions are known by their bytecode, defaults, attributes and enclosed values, and by the constants, functions and classes they
name; objects by their class and attributes; arrays by shape, type and a hash of their bytes. No source file is needed, no
address is shown, cycles end, and depth and size are bounded. Code of installed packages counts by its names alone.

Records: what a function writes into as it runs, such as a count of its calls, and which is therefore no setting of it.

Functions of the user inside values: known by name and by what they do, never brought by a file.

A plan can be printed, compared and written down although it holds a function: what is written is the function's name and a
digest of its code. A plan that was read back has the name alone; running it asks for the function again.
"""

import dis
import functools
import hashlib
import inspect
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from io import IOBase
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from choral.base.errors import InputError
from choral.base.values import Value

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


_PACKAGES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_HERE = __file__.rpartition("base")[0]
_DOCUMENTED = getattr(inspect, "CO_HAS_DOCSTRING", None)
_DEEPEST = 8  # objects in objects
_LONGEST_PATH = 60  # functions that name functions, and so on
_MOST = 100_000  # values looked at in all
_LONGEST = 200  # characters of a part; a hash stands for the rest
_OF_TORCH = set(vars(nn.Module()))
_PLAIN = str | int | float | complex | bool | bytes | torch.dtype | torch.device
_MACHINERY = (logging.Logger, logging.Handler, threading.Thread, IOBase)  # what they hold is no setting
_NAMED = (
    FunctionType
    | MethodType
    | functools.partial
    | type
    | np.generic
    | np.ndarray
    | Tensor
    | nn.Module
    | SimpleNamespace
)


class Portrait:
    """Paints values, each function once.

    Args:
        weights: whether the numbers in modules count, not only their shapes.
    """

    def __init__(self, *, weights: bool):
        self.weights, self._left = weights, _MOST
        self._path: set[int] = set()
        self._told: dict[int, tuple[Any, str]] = {}
        self._kinds: tuple[tuple[Any, Callable[[Any, int], str]], ...] = (
            (np.generic, lambda v, _: f"{type(v).__name__}({v.item()!r})"),
            (Tensor | np.ndarray, self._array),
            (nn.Module, self._module),
            (type, lambda v, d: v.__qualname__ + self._methods(v, d, built=issubclass(v, nn.Module))),
            (ModuleType, lambda v, _: str(v.__name__)),
            (functools.partial, lambda v, d: f"partial({self.of([v.func, v.args, v.keywords], d)})"),
            (MethodType, lambda v, d: f"{self.of(v.__func__, d)} of {self.of(v.__self__, d)}"),
            (FunctionType, self._function),
            (Mapping, self._mapping),
            (set | frozenset, lambda v, d: f"({', '.join(sorted(self._items(v, d)))})"),
            (list | tuple, lambda v, d: f"({', '.join(self._items(v, d))})"),
            (property, lambda v, d: self.of([v.fget, v.fset], d)),
            (staticmethod | classmethod, lambda v, d: self.of(v.__func__, d)),
            (_MACHINERY, lambda v, _: _name(type(v))),
            (object, self._object),
        )

    def of(self, value: Any, depth: int = _DEEPEST) -> str:
        """Return the portrait of a value."""
        self._left -= 1
        if value is None or isinstance(value, _PLAIN):
            return _cut(repr(float(value)) if type(value) is np.float64 else repr(value))
        if id(value) in self._path:
            return "itself"
        if id(value) in self._told:
            return self._told[id(value)][1]
        if not depth or self._left < 0 or len(self._path) > _LONGEST_PATH:
            return _name(value) if callable(value) else _name(type(value))
        self._path.add(id(value))
        try:
            text = next(_cut(tell(value, depth - 1)) for kind, tell in self._kinds if isinstance(value, kind))
        finally:
            self._path.discard(id(value))
        if isinstance(value, FunctionType):
            self._told[id(value)] = value, text
        return text

    def of_classes(self, classes: set[type]) -> str:
        """Return the digest of the methods and constants of the user's own classes, without those that build."""
        ordered = sorted(classes, key=lambda c: (c.__qualname__, c.__module__))
        return _hash("".join(self._methods(kind, _DEEPEST, built=True) for kind in ordered), 12)

    def _items(self, values: Any, depth: int) -> list[str]:
        shown = [self.of(v, depth) for v in islice(values, _MOST)]
        return shown if len(shown) == len(values) else [*shown, f"of {len(values)}"]

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> str:
        items = sorted(f"{self.of(k, depth)}: {self.of(v, depth)}" for k, v in islice(value.items(), _MOST))
        return f"{{{', '.join(items)}}}" + (f" of {len(value)}" if len(value) > _MOST else "")

    def _array(self, value: Any, depth: int) -> str:
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                return f"{value.shape} of {self.of(value.tolist(), depth)}"
            shown, small, data = f"{value.shape} {value.dtype}", value.size <= 4, value
        elif value.is_nested:
            return self.of(list(value.unbind()), depth)
        else:
            shown, small = shape_of(value), not is_lazy(value) and value.numel() <= 4
            if is_lazy(value) or value.is_meta:
                return shown
            dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
            dense = dense.cpu().resolve_conj().resolve_neg().contiguous()
            data = dense if small else dense.flatten().view(torch.uint8).numpy()
        return f"{data.tolist()} {shown}" if small else f"{shown} {_hash(data.tobytes(), 4)}"

    def _module(self, module: nn.Module, depth: int) -> str:
        parts = [type(module).__qualname__ + self._methods(type(module), depth, built=True)]
        for name, inner in module.named_modules():
            parts += [f"{name}.{k}={self.of(v, depth)}" for k, v in sorted(own_attributes(inner).items())]
            parts += (
                [f"{name}: {type(inner).__qualname__}" + self._methods(type(inner), depth, built=True)] if name else []
            )
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            parts.append(f"{name}: {self._array(tensor, depth) if self.weights else shape_of(tensor)}")
        return ", ".join(parts)

    def _methods(self, kind: type, depth: int, *, built: bool) -> str:
        """Return the digest of the user's own code in a class, empty if it has none; what built something is judged by that."""
        found = []
        for base in kind.__mro__:
            own = not is_packaged(base)
            for name, item in sorted(vars(base).items()):
                code = function_in(item)
                coded = code is not None and not (built and name == "__init__") and not _is_installed(code.__code__)
                plain = isinstance(item, str | int | float | tuple | np.generic) and not name.startswith("__")
                if coded or (own and plain):
                    found.append(f"{name}={self.of(item, depth)}")
        return f" {_hash(', '.join(found), 4)}" if found else ""

    def _object(self, value: Any, depth: int) -> str:
        if hasattr(value, "__wrapped__") and callable(value):  # a cached function
            return f"{_name(type(value))} of {self.of(value.__wrapped__, depth)}"
        around = getattr(value, "__self__", None)
        if callable(value) and around is not None and not isinstance(around, ModuleType | type):
            return f"{_name(value)} of {self.of(around, depth)}"
        held = dict(_held(value))
        code = self._methods(type(value), depth, built=True)
        if not held and is_packaged(type(value)):
            shown = repr(value)
            bare = "0x" in shown or callable(value) or type(value).__repr__ is object.__repr__
            return _name(value) if callable(value) else _name(type(value)) if bare else shown
        return f"{_name(type(value))}{code}({', '.join(f'{k}={self.of(v, depth)}' for k, v in sorted(held.items()))})"

    def _function(self, function: FunctionType, depth: int) -> str:
        parts = [self.of(item, depth) for item in (function.__defaults__, function.__kwdefaults__)]
        parts += [f"{k}={self.of(v, depth)}" for k, v in sorted(vars(function).items())]
        code = function.__code__
        records = written_by(code)
        enclosed = dict(zip(code.co_freevars, map(_enclosed, function.__closure__ or ())))
        parts += [f"{n}={self._setting(v, n in records, depth)}" for n, v in enclosed.items() if n != "__class__"]
        if _is_installed(code):
            bare = not function.__closure__ and not vars(function)
            return _name(function) if bare else f"{_name(function)} {_hash(', '.join(parts), 4)}"
        names: list[str] = []
        parts.append(self._code(code, names))
        for name in dict.fromkeys(names):
            parts += [self._setting(v, name in records, depth) for v in _globals(function.__globals__, name)]
        return f"{_name(function)} {_hash(', '.join(parts), 8)}"

    def _setting(self, value: Any, written: bool, depth: int) -> str:
        """Return what is enclosed or named; of a count or a list that the code itself writes, the type."""
        record = written and isinstance(value, int | float | list | dict | set)
        return _name(type(value)) if record else self.of(value, depth + 1 if isinstance(value, FunctionType) else depth)

    def _code(self, code: CodeType, names: list[str]) -> str:
        """Return what code does, without its lines; add the names it uses, those of functions in it too."""
        names += code.co_names
        parts = [code.co_code.hex(), repr((code.co_names, code.co_varnames, code.co_freevars))]
        for constant in code.co_consts[1:] if _is_documented(code) else code.co_consts:
            parts.append(self._code(constant, names) if isinstance(constant, CodeType) else self.of(constant))
        return " ".join(parts)


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond torch's; not the private ones of packages (a trainer's), which come and go."""
    bases = (base for base in type(module).__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins"))
    hidden = "_" if any(map(is_packaged, bases)) else "\0"
    return {k: v for k, v in vars(module).items() if k not in _OF_TORCH and not k.startswith(hidden)}


def shape_of(tensor: Tensor) -> str:
    """Return the shape and type of a tensor in words."""
    if is_lazy(tensor):
        return "lazy"
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"


def function_in(item: Any) -> FunctionType | None:
    """Return the plain function inside a method, property or decorated function."""
    for name in ("__func__", "fget", "__wrapped__"):
        item = getattr(item, name, item)
    return item if isinstance(item, FunctionType) else None


def is_packaged(kind: type) -> bool:
    """Return whether a class is Python's, an installed package's or choral's."""
    return _is_installed_module(sys.modules.get(kind.__module__), kind.__module__)


def _is_installed_module(module: ModuleType | None, name: str) -> bool:
    file = getattr(module, "__file__", None) or ""
    return name.partition(".")[0] in sys.stdlib_module_names - {"__main__"} or _is_installed_file(file)


def _is_installed(code: CodeType) -> bool:
    return code.co_filename.startswith("<frozen") or _is_installed_file(code.co_filename)


def _is_installed_file(file: str) -> bool:
    return file.startswith((_HERE, *_PACKAGES)) or "-packages" in file


def _globals(around: dict[str, Any], name: str) -> Iterator[Any]:
    """Yield what code means by a name: a global, or something in a module of the user's own."""
    if name in around:
        found = [around[name]]
    else:
        modules = (m for m in around.values() if isinstance(m, ModuleType) and name in vars(m))
        found = [vars(m)[name] for m in modules if not _is_installed_module(m, m.__name__)]
    for value in found:
        plain = value is None or isinstance(value, (_PLAIN | list | tuple | dict | set | frozenset))
        if plain or isinstance(value, _NAMED) or is_dataclass(value) or hasattr(value, "__wrapped__"):
            yield value


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, in its dict and its slots; of packages' objects the public ones."""
    hidden = "_" if is_packaged(type(value)) else "__"
    for name, item in getattr(value, "__dict__", {}).items():
        if not str(name).startswith(hidden):
            yield str(name), item
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, MemberDescriptorType) and not name.startswith(hidden):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # not set
                    continue


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}... {_hash(text, 8)}"


def _hash(data: str | bytes, size: int) -> str:
    data = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def _is_documented(code: CodeType) -> bool:
    """Return whether the first constant of a function is its docstring, where it stands in place of None before 3.13."""
    if _DOCUMENTED is not None:
        return bool(code.co_flags & _DOCUMENTED)
    return bool(code.co_consts) and isinstance(code.co_consts[0], str | None) and not code.co_name.startswith("<")


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
        digest: of its portrait: code, settings and enclosed values, as far as Python shows them.
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
        named = inspect.unwrap(_inner(function))
        where = f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', type(named).__qualname__)}"
        shown = Portrait(weights=True).of(function)
        digest = hashlib.blake2b(shown.encode(errors="backslashreplace"), digest_size=8).hexdigest()
        return Function(where, digest, function)

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


def _inner(function: Callable[..., Any]) -> Any:
    return _inner(function.func) if isinstance(function, functools.partial) else function
