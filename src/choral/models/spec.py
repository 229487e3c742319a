"""Shared parts of the model zoo: argument checks, network descriptions, activations and initialization.

`@zoo` checks the arguments of a builder by their annotations and keeps them as JSON types on the network, so that a saved
ensemble can rebuild it by name.
"""

import copy
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec

from torch import nn

from choral.base.errors import ChoralError, InputError
from choral.base.values import bound, is_whole, typed

Activation = Literal["relu", "tanh", "sigmoid", "elu", "gelu", "silu"]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def blocks(depth: int, *, layers: int, extra: int) -> int:
    """Return n for a depth that must be `layers` * n + `extra`, n at least 1.

    >>> blocks(20, layers=6, extra=2)
    3
    """
    n, rest = divmod(depth - extra, layers)
    if n < 1 or rest:
        near = max(1, round((depth - extra) / layers)) * layers + extra
        raise InputError(f"depth={depth} is not accepted; it must be {layers}n+{extra}: the nearest such is {near}.")
    return n


def he(network: nn.Module, *, fan: Literal["fan_in", "fan_out"] = "fan_out", linear: bool = False) -> nn.Module:
    """Draw the weights of every convolution from N(0, 2 / fan), set all convolution and linear biases to zero, return the network.

    Args:
        network: the network to initialize, in place.
        fan: inputs ("fan_in") or outputs ("fan_out") of one unit.
        linear: draw the weights of linear layers in the same way instead of leaving them as they are.

    Reference: He et al., "Delving Deep into Rectifiers", 2015, arXiv:1502.01852, Eq. 10 (fan_in) and 14 (fan_out).
    """
    for layer in network.modules():
        match layer:
            case nn.Conv2d() | nn.Linear():
                if linear or layer.weight.dim() > 2:
                    nn.init.kaiming_normal_(layer.weight, mode=fan, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return network


_ATTRIBUTE = "_choral_spec"
_Arguments = ParamSpec("_Arguments")


def _plain(name: str, value: Any) -> Any:
    """Return the value in JSON types."""
    match value:
        case None | bool() | str():
            return value
        case numbers.Integral():
            return int(value)
        case numbers.Real() if math.isfinite(value):
            return float(value)
        case list() | tuple():
            return [_plain(name, item) for item in value]
    raise InputError(f"{name}={value!r} cannot be saved; give finite numbers, strings, None or tuples of these.")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def zoo(build: Callable[_Arguments, nn.Module]) -> Callable[_Arguments, nn.Module]:
    """Make a builder check its arguments and attach its name and arguments, with defaults, to the network it returns."""
    signature, made = inspect.signature(build), typed(build)
    counts = {
        n: 0 if p.default == 0 else 1 for n, p in signature.parameters.items() if p.annotation in (int, Sequence[int])
    }

    @functools.wraps(build)
    def remember(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> nn.Module:
        given = bound(build.__name__, signature, args, kwargs)
        given.apply_defaults()
        for name, least in counts.items():
            value = given.arguments[name]
            if not all(is_whole(v, least) for v in (value if isinstance(value, tuple | list) else [value])):
                raise InputError(f"{build.__name__}: {name} is {value!r}; give whole numbers of {least} or more.")
        arguments = {name: _plain(f"{build.__name__}: {name}", value) for name, value in given.arguments.items()}
        try:
            network = made(**{name: _tuples(value) for name, value in arguments.items()})  # type: ignore[call-arg]  # all by name
        except ChoralError:
            raise
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # torch's words, for the user's numbers
            raise InputError(f"{build.__name__}: {error}.") from error
        setattr(network, _ATTRIBUTE, {"name": build.__name__, "arguments": arguments})
        return network

    return remember


def spec_of(network: nn.Module) -> dict[str, Any] | None:
    """Return {"name", "arguments"} of the builder that made the network (or its original), or None if it is not from the zoo."""
    return copy.deepcopy(network.__dict__.get(_ATTRIBUTE))
