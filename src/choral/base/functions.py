"""Functions of the user inside values: known by name and by what they do, never brought by a file.

A plan can be printed, compared and written down although it holds a function: what is written is the function's name and a
digest of its code. A plan that was read back has the name alone; running it asks for the function again.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from choral.base.errors import InputError
from choral.base.values import Value


@dataclass(frozen=True)
class Function(Value):
    """A function given by the user.

    Args:
        name: module and qualified name.
        digest: of its code, defaults and enclosed values, as far as Python shows them.
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
        return Function(where, hashlib.blake2b(_shown(function).encode(), digest_size=8).hexdigest(), function)

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


def _shown(item: Any, depth: int = 3) -> str:
    """Return a text that changes when a function does: its source or bytecode, defaults, and what it encloses."""
    if isinstance(item, functools.partial):
        return f"{_shown(item.func, depth)}({_plain(item.args)}, {_plain(item.keywords)})"
    code = getattr(item, "__code__", None)
    if code is None:
        return _source(item) if callable(item) else repr(item)
    enclosed = [c.cell_contents for c in item.__closure__ or () if _is_filled(c)]
    body = _source(item) or code.co_code.hex() + _plain(code.co_consts)
    around = [_shown(e, depth - 1) if callable(e) and depth else _plain(e) for e in enclosed]
    return "\n".join([body, _plain(item.__defaults__), _plain(item.__kwdefaults__), *around])


def _source(item: Any) -> str:
    try:
        return inspect.getsource(item)
    except (OSError, TypeError):  # typed at a prompt, or built in
        return getattr(item, "__qualname__", type(item).__qualname__) if not hasattr(item, "__code__") else ""


def _plain(value: Any) -> str:
    """Return a value that looks the same in the next process; of other objects, which show addresses, the type."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_plain, value))})"
    if isinstance(value, dict):
        return _plain(sorted((str(k), _plain(v)) for k, v in value.items()))
    return repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__qualname__


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # reading it is the question
    except ValueError:
        return False
    return True
