"""Values: frozen, comparable, printable descriptions that turn into plain dicts and back.

Everything a recipe is made of (phases, schedules, optimisers, structures, penalties) is a frozen dataclass that
inherits from `Value`. The name of its class is its kind; only kinds defined in Python code can be read back, so a file
never decides what code is imported.
"""

import functools
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from choral.base.errors import InputError, did_you_mean

_KINDS: dict[str, type["Value"]] = {}


class Value:
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
    hints = _hints(kind)
    for name in [n for n in given if get_origin(hints.get(n)) is ClassVar or _is_fact(_KINDS[kind], n)]:
        del given[name]  # a fact of the class, which older files hold as a field
    for name, value in given.items():
        if name in hints and not _fits(value, hints[name]):
            wanted = getattr(hints[name], "__name__", None) if isinstance(hints[name], type) else str(hints[name])
            raise InputError(f"{kind}: {name} is {value!r}, but must be of type {wanted}.")
    try:
        return _KINDS[kind](**given)
    except TypeError as error:
        raise InputError(f"{kind} cannot be made from the fields {sorted(given)}: {error}.") from error


def _is_fact(kind: type[Value], name: str) -> bool:
    return isinstance(getattr(kind, name, None), property)


@functools.cache
def _hints(kind: str) -> dict[str, Any]:
    try:
        return get_type_hints(_KINDS[kind])
    except NameError:  # a class of the user's own, whose annotations are not importable
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a decoded value is of an annotated type; annotations of other sorts accept anything.

    >>> _fits((1, 2.0), tuple[float, ...]), _fits(("a",), tuple[float, ...]), _fits(True, int)
    (True, False, False)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        repeated = len(parts) == 2 and parts[1] is Ellipsis
        wanted = [parts[0]] * len(value) if repeated else list(parts)
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    if hint is float or hint is int:
        if isinstance(value, int) and abs(value) >= 1 << 63:
            return False  # no number of ours, and too large for most arithmetic
        whole = isinstance(value, int) or (isinstance(value, float) and (hint is float or value.is_integer()))
        return whole and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) and origin is None else True
