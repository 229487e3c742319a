"""Checks of the arguments networks are built from; each returns the value or raises InputError."""

from collections.abc import Callable, Iterable

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
