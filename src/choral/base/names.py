"""Shell-style patterns of the names of layers and parameters."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from choral.base.errors import InputError, did_you_mean


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of the patterns.

    >>> matches("layer1.0.conv1", ("layer1.*",)), matches("fc.weight", ("*bias", "norm*"))
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def fitting(names: Iterable[str], patterns: Sequence[str], what: str) -> list[str]:
    """Return the names that fit the patterns of an option called `what`; InputError for a pattern that fits none."""
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InputError(
                f"{what}: nothing fits {pattern!r}; there are {', '.join(filter(None, known))}.{did_you_mean(pattern, known)}"
            )
    return [name for name in known if matches(name, patterns)]
