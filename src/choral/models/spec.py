"""What the builders of the model zoo share: argument checks, initialization, and the arguments a network was built with.

A zoo network remembers how it was built, so that a saved ensemble can be built again by name.

`@zoo` binds the arguments of a builder, keeps them as plain JSON types on the network it returns, and hands the builder
the same arguments (lists as tuples) whether they came from Python or from a file.

Checks of the arguments networks are built from; each returns the value or raises InputError.

Initializations that several families share; all draw from torch's global generator.
"""

import copy
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any, Literal, ParamSpec

from torch import nn

from choral.base.errors import InputError, did_you_mean

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def count(name: str, value: int, *, least: int = 1) -> int:
    """Return a whole number that is large enough.

    >>> count("classes", 10)
    10
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r} is not accepted; give a whole number of at least {least}.")
    return value


def counts(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Return a tuple of counts."""
    if not isinstance(values, list | tuple):
        raise InputError(f"{name}={values!r} is not accepted; give a tuple of whole numbers such as (50, 50).")
    return tuple(count(f"{name}[{i}]", value) for i, value in enumerate(values))


def rate(name: str, value: float) -> float:
    """Return a dropout rate, from 0 up to but not including 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name}={value!r} is not accepted; give a number from 0 (none) to below 1.")
    return float(value)


def choice(name: str, value: str | None, accepted: Iterable[str | None]) -> None:
    """Raise unless the value is one of the accepted ones."""
    accepted = list(accepted)
    if not any(value == option and type(value) is type(option) for option in accepted):
        near = did_you_mean(str(value), [option for option in accepted if option is not None])
        raise InputError(f"{name}={value!r} is not accepted; give one of {', '.join(map(repr, accepted))}.{near}")


def activation_named(name: str) -> Callable[[], nn.Module]:
    """Return the class of an activation: "relu", "tanh", "sigmoid", "elu", "gelu" or "silu".

    >>> activation_named("silu")()
    SiLU()
    """
    choice("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]


def blocks(name: str, depth: int, *, layers: int, extra: int) -> int:
    """Return n for a depth that must be `layers` * n + `extra`, n at least 1.

    >>> blocks("depth", 20, layers=6, extra=2)
    3
    """
    n, rest = divmod(count(name, depth) - extra, layers)
    if n < 1 or rest:
        near = max(1, round((depth - extra) / layers)) * layers + extra
        raise InputError(f"{name}={depth} is not accepted; it must be {layers}n+{extra}: the nearest such is {near}.")
    return n


def he(network: nn.Module, *, fan: Literal["fan_in", "fan_out"] = "fan_out", linear: bool = False) -> None:
    """Draw the weights of every convolution from N(0, 2 / fan) and set all convolution and linear biases to zero.

    Args:
        network: the network to initialize, in place.
        fan: inputs ("fan_in") or outputs ("fan_out") of one unit.
        linear: draw the weights of linear layers in the same way instead of leaving them as they are.

    Reference: He et al., "Delving Deep into Rectifiers", 2015, arXiv:1502.01852, Eq. 10 (fan_in) and 14 (fan_out).
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            if linear or isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode=fan, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


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
