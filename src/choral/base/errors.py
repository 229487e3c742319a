"""The errors choral raises: one base, a few precise kinds, each also a built-in kind of error.

A message says where, what was received, what is accepted and what to do, in one sentence or two.
"""

import difflib
from collections.abc import Iterable


class ChoralError(Exception):
    """Base of every error that choral raises on purpose; its message is one line, whatever was quoted in it."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class InputError(ChoralError, ValueError):
    """A value the caller gave is not one choral can use."""


class NotFiniteError(InputError):
    """Numbers that are to be measured are NaN or infinite."""


class PlanError(ChoralError, ValueError):
    """A recipe or plan cannot work; the message lists every problem found."""


class ConversionError(ChoralError, TypeError):
    """A network, or a layer in it, cannot take the requested structure."""


class RunError(ChoralError, RuntimeError):
    """A run folder, checkpoint or saved file cannot be used as asked."""


class DivergedError(ChoralError, RuntimeError):
    """Training of some branches gave a loss that is not a number."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean X?' for the nearest known name, or an empty string.

    >>> did_you_mean("snapshott", ["single", "snapshot"])
    " Did you mean 'snapshot'?"
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""
