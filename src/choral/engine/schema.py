"""What a header must look like, said as plain data, and one function that checks it.

A schema is a type, None, a tuple of alternatives, a list holding the schema of every item, a dict from `str` to the schema of
every value, or a dict of named fields, where a name that ends in '?' may be left out.
"""

from typing import Any

from choral.base.errors import RunError


def expect(content: Any, schema: Any, where: str) -> Any:
    """Return the content if it has the form a schema says; RunError names the first field that has not.

    >>> expect({"forms": [None, {}]}, {"forms": [(None, dict)], "info?": dict}, "f.choral")
    {'forms': [None, {}]}
    """
    found = _misfit(content, schema, "")
    if found is not None:
        place, value, wanted = found
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise RunError(
            f"{where} does not hold what it should: {place or 'its content'} is {shown}, but must be {wanted}; it was "
            "damaged or made by other means: copy or make it again."
        )
    return content


def _misfit(value: Any, schema: Any, place: str) -> tuple[str, Any, str] | None:
    if isinstance(schema, tuple):
        if any(_misfit(value, option, place) is None for option in schema):
            return None
        return place, value, " or ".join(_name(option) for option in schema)
    if isinstance(schema, list):
        if not isinstance(value, list):
            return place, value, "a list"
        pairs = ((item, schema[0], f"{place}[{i}]") for i, item in enumerate(value))
    elif isinstance(schema, dict):
        if not isinstance(value, dict):
            return place, value, "a dict"
        if str in schema:
            pairs = ((item, schema[str], f"{place}.{key}".lstrip(".")) for key, item in value.items())
        else:
            names = [(name.removesuffix("?"), name.endswith("?"), part) for name, part in schema.items()]
            missing = [name for name, optional, _ in names if not optional and name not in value]
            if missing:
                return f"{place}.{missing[0]}".lstrip("."), None, "there"
            pairs = ((value[n], part, f"{place}.{n}".lstrip(".")) for n, _, part in names if n in value)
    else:
        return None if _is(value, schema) else (place, value, _name(schema))
    return next((found for item, part, at in pairs if (found := _misfit(item, part, at)) is not None), None)


def _is(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return False  # no number of ours, and too large for most arithmetic
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _name(schema: Any) -> str:
    if isinstance(schema, list):
        return "a list"
    if isinstance(schema, dict):
        return "a dict"
    words = {None: "null", int: "a whole number", float: "a number", str: "text", dict: "a dict", list: "a list"}
    return words.get(schema, str(schema))
