"""Walks over anchors: Markov chains on the prior N(0, prior_std^2), one scalar chain for each parameter.

A walk is a value with two pure functions: `start` draws the first anchor, `step` moves it a little, and every walk
leaves the prior invariant. All it needs to go on is a pair of flat dicts, the anchor and the memory, so a chain can be
stored and resumed. Short steps keep the next training short; a walk that keeps its direction still spans the prior.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params
from choral.base.values import Value

Chain = tuple[Params, Params]


@dataclass(frozen=True, kw_only=True)
class Walk(Value, ABC):
    """A Markov chain over anchors whose invariant distribution is N(0, prior_std^2) for every scalar.

    `directed` walks remember a direction of ±1 for every scalar; the others have an empty memory.
    """

    directed: ClassVar[bool] = False

    def start(self, params: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the first anchor, drawn from the prior, and the chain's memory.

        Args:
            params: tensors that give names, shapes, dtypes and devices; their values are not read.
            prior_std: standard deviation of the prior, above 0.
            generator: a CPU generator.
        """
        if not prior_std > 0:
            raise InputError(f"prior_std={prior_std!r}, but a standard deviation is above 0.")
        anchor = _each(lambda value: prior_std * _normal(value, generator), params)
        directions = _each(lambda value: torch.randint(2, value.shape, generator=generator).to(value) * 2 - 1, anchor)
        return anchor, directions if self.directed else {}

    @abstractmethod
    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor and memory; the given dicts are not changed."""


@dataclass(frozen=True, kw_only=True)
class GuidedWalk(Walk):
    """Guided-walk Metropolis: keep going in one direction until a proposal is rejected, then turn.

    Proposal y = theta + p |z| with z ~ N(0, step_std^2) and direction p = ±1, accepted with probability
    min(1, prior(y) / prior(theta)); a rejection stays and flips p. The memory holds p.

    Args:
        step_std: size of a step, in the units of the parameters (0.01 or 0.02 in the authors' code).
        relative_step: `step_std` is a multiple of the prior's standard deviation instead.

    Reference: Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649, Algorithm 3; Gustafson,
        "A guided walk Metropolis algorithm", 1998.

    >>> walk, generator = GuidedWalk(step_std=0.1, relative_step=True), torch.Generator().manual_seed(0)
    >>> anchor, memory = walk.start({"w": torch.zeros(10000)}, 0.5, generator)
    >>> anchor, memory = walk.step(anchor, memory, 0.5, generator)
    >>> round(anchor["w"].std().item(), 1), sorted(memory["w"].unique().tolist())
    (0.5, [-1.0, 1.0])
    """

    directed: ClassVar[bool] = True

    step_std: float = 0.02
    relative_step: bool = False

    def __post_init__(self) -> None:
        _check_step(self.step_std)

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor and the directions of every scalar."""
        size = self.step_std * (prior_std if self.relative_step else 1.0)
        moved, directions = {}, {}
        for name, theta in anchor.items():
            direction = memory[name]
            proposal = theta + direction * (size * _normal(theta, generator)).abs()
            accepted = _accept(0.5 * (proposal / prior_std).square() - 0.5 * (theta / prior_std).square(), generator)
            moved[name] = torch.where(accepted, proposal, theta)
            directions[name] = torch.where(accepted, direction, -direction)
        return moved, directions


@dataclass(frozen=True, kw_only=True)
class GaussianWalk(Walk):
    """Random-walk Metropolis: proposal theta + z, z ~ N(0, step_std^2), accepted by the prior ratio.

    Args:
        step_std: as in `GuidedWalk`.
        relative_step: as in `GuidedWalk`.
    """

    step_std: float = 0.02
    relative_step: bool = False

    def __post_init__(self) -> None:
        _check_step(self.step_std)

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor and the unchanged memory."""
        size = self.step_std * (prior_std if self.relative_step else 1.0)

        def move(theta: Tensor) -> Tensor:
            proposal = theta + size * _normal(theta, generator)
            rise = 0.5 * (proposal / prior_std).square() - 0.5 * (theta / prior_std).square()
            return torch.where(_accept(rise, generator), proposal, theta)

        return _each(move, anchor), memory


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Walk):
    """Gaussian autoregression: correlation * theta + sqrt(1 - correlation^2) * fresh draw; never rejects.

    Args:
        correlation: between one anchor and the next (rho), from 0 (as `IID`) to below 1.
    """

    correlation: float = 0.99

    def __post_init__(self) -> None:
        if not 0 <= self.correlation < 1:
            raise InputError(f"Autoregressive: correlation={self.correlation!r}; give a number from 0 to below 1.")

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor and the unchanged memory."""
        fresh = prior_std * (1 - self.correlation**2) ** 0.5
        return _each(lambda theta: self.correlation * theta + fresh * _normal(theta, generator), anchor), memory


@dataclass(frozen=True, kw_only=True)
class HMC(Walk):
    """Hamiltonian Monte Carlo for each scalar by itself: leapfrog on the prior, accepted by the change of energy.

    In units of the prior, q = theta / prior_std with momentum p ~ N(0, 1) and energy (q^2 + p^2) / 2.

    Args:
        step_std: size of a leapfrog step, so that one step moves theta by about `step_std`.
        relative_step: as in `GuidedWalk`; in units of the prior a leapfrog step stays below 2.
        leapfrog_steps: leapfrog steps for each move of the anchor.
    """

    step_std: float = 0.02
    relative_step: bool = False
    leapfrog_steps: int = 3

    def __post_init__(self) -> None:
        _check_step(self.step_std)
        if self.leapfrog_steps < 1:
            raise InputError(f"HMC: leapfrog_steps={self.leapfrog_steps}; give 1 or more.")

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor and the unchanged memory."""
        size = self.step_std / (1.0 if self.relative_step else prior_std)
        if size >= 2:
            raise InputError(
                f"HMC: a step of {self.step_std} is {size:.3g} prior standard deviations, and leapfrog diverges from 2"
                " on; give a smaller step_std."
            )

        def move(theta: Tensor) -> Tensor:
            q, p = theta / prior_std, _normal(theta, generator)
            before = 0.5 * (q.square() + p.square())
            for _ in range(self.leapfrog_steps):
                p = p - 0.5 * size * q
                q = q + size * p
                p = p - 0.5 * size * q
            rise = 0.5 * (q.square() + p.square()) - before
            return torch.where(_accept(rise, generator), prior_std * q, theta)

        return _each(move, anchor), memory


@dataclass(frozen=True, kw_only=True)
class IID(Walk):
    """A fresh anchor from the prior at every step."""

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor and the unchanged memory."""
        return _each(lambda theta: prior_std * _normal(theta, generator), anchor), memory


def _each(function: Callable[[Tensor], Tensor], params: Params) -> Params:
    return {name: function(value.detach()) for name, value in params.items()}


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _accept(energy_rise: Tensor, generator: torch.Generator) -> Tensor:
    """Return True with probability min(1, exp(-energy_rise)), element by element."""
    draw = torch.rand(energy_rise.shape, generator=generator, dtype=energy_rise.dtype).to(energy_rise.device)
    return draw < (-energy_rise).exp()


def _check_step(step_std: float) -> None:
    if not step_std > 0:
        raise InputError(f"step_std={step_std!r}, but the size of a step is above 0.")
