"""How members, and draws of a member, become one prediction of classes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

from choral.base.errors import InputError, did_you_mean
from choral.base.values import Value


@dataclass(frozen=True, kw_only=True)
class Combination(Value, ABC):
    """What is averaged over members; regression averages means and variances with every one."""

    @property
    @abstractmethod
    def word(self) -> str:
        """Its short name."""


@dataclass(frozen=True, kw_only=True)
class MeanProbs(Combination):
    """Probabilities are averaged: a mixture."""

    @property
    def word(self) -> str:
        """Its short name."""
        return "probs"


@dataclass(frozen=True, kw_only=True)
class MeanLogits(Combination):
    """Logits are averaged first: a geometric mean."""

    @property
    def word(self) -> str:
        """Its short name."""
        return "logits"


_Word = Literal["probs", "logits"]
Combine = Combination | _Word
_BY_WORD: dict[str, Combination] = {one.word: one for one in (MeanProbs(), MeanLogits())}


def combination(given: Combine, where: str) -> Combination:
    """Return the combination a user gave by value or by name.

    >>> combination("logits", "packed")
    MeanLogits()
    """
    if isinstance(given, Combination):
        return given
    if given not in _BY_WORD:
        near = did_you_mean(str(given), get_args(_Word))
        raise InputError(f"{where}: combine is {given!r}; give 'probs' or 'logits'.{near}")
    return _BY_WORD[given]
