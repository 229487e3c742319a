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
from choral.base.portrait import Portrait
from choral.base.values import Value


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
