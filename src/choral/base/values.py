"""Values: frozen, comparable, printable descriptions that turn into plain dicts and back.

Everything a recipe is made of (phases, schedules, optimizers, structures, penalties) is a frozen dataclass that
inherits from `Value`. The name of its class is its kind; only kinds defined in Python code can be read back, so a file
never decides what code is imported.
"""

import functools
import inspect
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from choral.base.arguments import bound, check_type, is_plain
from choral.base.errors import InputError, did_you_mean

_KINDS: dict[str, type["Value"]] = {}


class _Checked(ABCMeta):
    """Lets values answer wrong arguments in one sentence: plain ones before a value is made, the others by the fields it then has."""

    if not TYPE_CHECKING:  # or what a call returns would be anything

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Return a value of checked arguments."""
            args, kwargs = _of_python(args), _of_python(kwargs)
            hints = _hints(cls.__name__)
            given = bound(cls.__name__, _signature(cls), args, kwargs)
            for name, value in given.arguments.items():
                if is_plain(hints.get(name)):
                    check_type(cls.__name__, name, value, hints[name])
            made = super().__call__(*args, **kwargs)
            for field in fields(cls) if is_dataclass(cls) else ():
                if field.name in given.arguments:
                    check_type(cls.__name__, field.name, getattr(made, field.name), hints.get(field.name, Any))
            return made


def _of_python(given: Any) -> Any:
    """Return numbers of numpy, alone or in tuples, lists and dicts, as those of Python, which files and messages can hold.

    >>> import numpy as np
    >>> _of_python((np.int64(2), {"rate": np.float32(0.5)}, [np.bool_(True)], "a"))
    (2, {'rate': 0.5}, [True], 'a')
    """
    if isinstance(given, np.generic):
        return float(given) if isinstance(given, np.floating) else given.item()
    if type(given) in (tuple, list):
        return type(given)(map(_of_python, given))
    return {name: _of_python(value) for name, value in given.items()} if type(given) is dict else given


class Value(metaclass=_Checked):
    """Base of frozen dataclasses that can be written as plain dicts."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        other = _KINDS.get(cls.__name__)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(
                f"a value named {cls.__name__!r} is defined in {other.__module__} already, and files name values by their class; "
                f"give the one in {cls.__module__} another name."
            )
        _KINDS[cls.__name__] = cls
        _hints.cache_clear()

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict of JSON types: the kind and every field."""
        assert is_dataclass(self), f"{type(self).__name__} must be a dataclass"
        return {"kind": type(self).__name__} | {f.name: _encode(getattr(self, f.name)) for f in fields(self)}


def _encode(item: Any) -> Any:
    if isinstance(item, Value):
        return item.to_dict()
    if isinstance(item, tuple | list):
        return [_encode(i) for i in item]
    if isinstance(item, Mapping):
        return {str(k): _encode(v) for k, v in item.items()}
    if item is None or isinstance(item, str | int | float | bool):
        return item
    raise InputError(
        f"{item!r} cannot be written into a plan: only numbers, strings, tuples and choral's own values can; "
        "name layers by patterns instead of functions."
    )


def _decode(item: Any) -> Any:
    if isinstance(item, Mapping):
        if "kind" in item:
            return from_dict(item)
        return {k: _decode(v) for k, v in item.items()}
    if isinstance(item, list | tuple):
        return tuple(_decode(i) for i in item)
    return item


def known_kinds() -> frozenset[str]:
    """Return the kinds that can be read back."""
    return frozenset(_KINDS)


def from_dict(data: Mapping[str, Any]) -> Any:
    """Return the value a dict describes; raises InputError for a kind or field that does not exist or is of another type."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(
            f"kind {kind!r} is not known; known kinds: {', '.join(sorted(_KINDS))}.{did_you_mean(str(kind), _KINDS)}"
        )
    given = {k: _decode(v) for k, v in data.items() if k != "kind"}
    for name, value in given.items():
        check_type(kind, name, value, _hints(kind).get(name, Any))
    return _KINDS[kind](**given)


@functools.cache
def _signature(cls: type) -> inspect.Signature:
    """Return what a class is made of; that of its metaclass would take anything."""
    _, *rest = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]  # of the class itself
    return inspect.Signature(rest)


@functools.cache
def _hints(kind: str) -> dict[str, Any]:
    try:
        return get_type_hints(_KINDS[kind])
    except NameError:  # a class of the user's own, whose annotations are not importable
        return {}
