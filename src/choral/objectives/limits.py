"""Limits of numbers: a value names them once, and is refused when one of its fields is outside."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from choral.base.errors import InputError
from choral.base.values import Value


class Limit(NamedTuple):
    """Which numbers are accepted, as a test and in words."""

    accepts: Callable[[float], bool]
    words: str


Limits = Mapping[str, Limit]
POSITIVE = Limit(lambda given: 0 < given < math.inf, "a finite number above 0")
NOT_NEGATIVE = Limit(lambda given: 0 <= given < math.inf, "a finite number of 0 or more")
SHARE = Limit(lambda given: 0 <= given <= 1, "a share from 0 to 1")
BELOW_ONE = Limit(lambda given: 0 <= given < 1, "a number from 0 to below 1")
COUNT = Limit(lambda given: given >= 1, "1 or more")


class Limited(Value):
    """A value whose class says which numbers its fields accept; in tuples, each of them.

    >>> from choral.objectives import L2
    >>> L2(precision=-1.0)
    Traceback (most recent call last):
        ...
    choral.base.errors.InputError: L2: precision is -1.0; give a finite number of 0 or more.
    """

    limits: ClassVar[Limits] = {}

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            given = getattr(self, name, None)
            numbers = given if isinstance(given, tuple) else () if given is None else (given,)
            if not all(map(limit.accepts, numbers)):
                raise InputError(f"{type(self).__name__}: {name} is {given!r}; give {limit.words}.")
