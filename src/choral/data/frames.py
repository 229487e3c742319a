"""Columns of data frames by name: another frame may have them in another order, and is read in the order of the first."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from choral.base.errors import InputError
from choral.base.text import short

Names = Mapping[str, tuple[str, ...]]  # of columns, by what an input is called: x, x['image'], y


def names_of(value: Any) -> tuple[str, ...]:
    """Return the names of a frame's columns (of pandas, Polars or Arrow); none for arrays and for columns that are only counted.

    >>> import pandas as pd
    >>> (
    ...     names_of(pd.DataFrame({"a": [1.0], "b": [2.0]})),
    ...     names_of(pd.DataFrame([[1.0, 2.0]])),
    ...     names_of(np.zeros((1, 2))),
    ... )
    (('a', 'b'), (), ())
    """
    found = getattr(value, "column_names", None)
    found = getattr(value, "columns", None) if found is None else found
    if found is None or callable(found) or getattr(value, "shape", ())[1:] != (len(found),):
        return ()
    names = list(found)
    return () if names == list(range(len(names))) else tuple(map(str, names))


def columns_in(value: Any, name: str = "x") -> dict[str, tuple[str, ...]]:
    """Return the names of all frames in what a user gave as inputs or targets; those without names are left out."""
    if isinstance(value, Mapping):
        parts = [columns_in(inner, f"{name}[{key!r}]") for key, inner in value.items()]
    elif isinstance(value, tuple | list):
        parts = [columns_in(inner, f"{name}[{i}]") for i, inner in enumerate(value)]
    else:
        held = names_of(value)
        return {name: held} if held else {}
    return {key: names for part in parts for key, names in part.items()}


def arranged(value: Any, columns: Names | None, name: str = "x") -> Any:
    """Return inputs or targets with the columns of every frame in the order of those fitted on; arrays stay as they are.

    >>> import pandas as pd
    >>> arranged(pd.DataFrame({"b": [2.0], "a": [1.0]}), {"x": ("a", "b")})
    array([[1., 2.]])
    """
    if not columns:
        return value
    if isinstance(value, Mapping):
        return {key: arranged(inner, columns, f"{name}[{key!r}]") for key, inner in value.items()}
    if type(value) in (tuple, list):
        return type(value)(arranged(inner, columns, f"{name}[{i}]") for i, inner in enumerate(value))
    own, wanted = names_of(value), columns.get(name, ())
    if not own or not wanted or own == wanted:
        return value
    if len(set(own)) < len(own) or sorted(own) != sorted(wanted):
        raise InputError(
            f"{name} has {_listed(own)}, but the networks were fitted on {_listed(wanted)}{_off(own, wanted)}"
        )
    found = np.asarray(value)[:, [own.index(column) for column in wanted]]
    return found.astype(np.int64) if found.dtype == np.uint8 else found  # no bytes of an image


def _listed(names: tuple[str, ...]) -> str:
    return f"the columns {', '.join(short(n, 20) for n in names[:8])}" + (", ..." if len(names) > 8 else "")


def _off(own: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    lacking, more = [n for n in wanted if n not in own], [n for n in own if n not in wanted]
    said = [
        f"{word} {', '.join(short(n, 20) for n in some[:4])}"
        for word, some in (("lacks", lacking), ("adds", more))
        if some
    ]
    return f": it {' and '.join(said) or 'has a name twice'}; give those columns, in any order."
