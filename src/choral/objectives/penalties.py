"""Penalties on parameters: what is added to the likelihood.

The convention, said once for the whole library. N is the number of training points. One member's loss on a batch is

    mean over the batch of the negative log likelihood  +  penalty / N

where the penalty is a *sum* over parameters (a negative log prior, a KL). So the expected loss of any batch size is
1/N of the negative log posterior (or negative ELBO) of the full data. Where members share a network, each parameter gets the
gradient of the mean likelihood of the members that use it: a member's own tensors that which they would get alone, tensors
of all members the average. Members that coincide then train exactly as the plain network does at the same rate. The penalty is
added once for every parameter. The loss that is shown is the mean over members, penalty included.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params, Slots
from choral.base.values import Value


@dataclass(frozen=True, kw_only=True)
class Penalty(Value, ABC):
    """A sum over parameters that is added to the summed negative log likelihood.

    `slots`, a fact of the class, names the state slots it reads (an anchor, for example); the plan is checked for them before it
    runs.
    """

    slots: ClassVar[tuple[str, ...]] = ()

    @property
    def changes(self) -> bool:
        """Whether it depends on the progress of the phase (annealing)."""
        return False

    @abstractmethod
    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        """Return the scalar penalty, not divided by N.

        Args:
            params: the joint network's parameters.
            slots: the declared slots, each a dict with the same names as the parameters it concerns.
            progress: how far the running training phase is, from 0 to 1.
        """


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a parameter name fits one of the shell-style patterns.

    >>> matches("block.0.bias", ("*bias",)), matches("fc.weight", ("*bias", "norm*"))
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, kw_only=True)
class L2(Penalty):
    """Half the precision times the squared norm: the negative log density of N(0, 1 / precision) up to a constant.

    Args:
        precision: inverse prior variance (not weight decay: decay = precision / N).
        include: patterns of the parameters it concerns; all by default.
        exclude: patterns of parameters it leaves alone.
    """

    precision: float = 1.0
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.precision < math.inf:
            raise InputError(f"precision is {self.precision}; give a finite number of 0 or more.")

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        """Return precision / 2 times the sum of squares."""
        squares = [
            p.square().sum() for n, p in params.items() if matches(n, self.include) and not matches(n, self.exclude)
        ]
        return 0.5 * self.precision * torch.stack(squares).sum() if squares else torch.zeros(())
