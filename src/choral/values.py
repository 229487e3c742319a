"""Values: frozen, comparable, printable descriptions that turn into plain dicts and back.

Everything a recipe is made of (phases, schedules, optimisers, structures, penalties) is a frozen dataclass that
inherits from `Value`. The name of its class is its kind; only kinds defined in Python code can be read back, so a file
never decides what code is imported.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from choral.errors import InputError, did_you_mean

_KINDS: dict[str, type["Value"]] = {}


class Value:
    """Base of frozen dataclasses that can be written as plain dicts."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _KINDS[cls.__name__] = cls

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


def from_dict(data: Mapping[str, Any]) -> Any:
    """Return the value a dict describes; raises InputError for a kind or field that does not exist."""
    kind = data.get("kind")
    if kind not in _KINDS:
        raise InputError(
            f"kind {kind!r} is not known; known kinds: {', '.join(sorted(_KINDS))}.{did_you_mean(str(kind), _KINDS)}"
        )
    given = {k: _decode(v) for k, v in data.items() if k != "kind"}
    try:
        return _KINDS[kind](**given)
    except TypeError as error:
        raise InputError(f"{kind} cannot be made from the fields {sorted(given)}: {error}.") from error
