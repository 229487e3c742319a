"""A zoo network remembers how it was built, so that a saved ensemble can be built again by name.

`@zoo` binds the arguments of a builder, keeps them as plain JSON types on the network it returns, and hands the builder
the same arguments (lists as tuples) whether they came from Python or from a file.
"""

import copy
import functools
import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any, ParamSpec

from torch import nn

from choral.base.errors import InputError

_ATTRIBUTE = "_choral_spec"
_Arguments = ParamSpec("_Arguments")


def _plain(name: str, value: Any) -> Any:
    """Return the value in JSON types."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    raise InputError(
        f"{name}={value!r} cannot be remembered; give finite numbers, strings, None or tuples of these, "
        "or write a network of your own instead."
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def zoo(build: Callable[_Arguments, nn.Module]) -> Callable[_Arguments, nn.Module]:
    """Make a builder leave its name and arguments, defaults included, on the network it returns.

    Errors about arguments get the builder's name in front.
    """
    signature = inspect.signature(build)

    @functools.wraps(build)
    def remember(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> nn.Module:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            arguments = {name: _plain(name, value) for name, value in bound.arguments.items()}
            bound.arguments.update({name: _tuples(value) for name, value in arguments.items()})
            network = build(*bound.args, **bound.kwargs)
        except InputError as error:
            raise InputError(f"{build.__name__}: {error}") from None
        setattr(network, _ATTRIBUTE, {"name": build.__name__, "arguments": arguments})
        return network

    return remember


def spec_of(network: nn.Module) -> dict[str, Any] | None:
    """Return {"name", "arguments"} of the builder that made the network, or None if it is not from the zoo.

    A copy, and a network converted from a copy, still tells how the plain network was built.
    """
    return copy.deepcopy(network.__dict__.get(_ATTRIBUTE))
