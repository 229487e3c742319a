"""Bayesian operators: anchors and their walks, perturbed posteriors, frozen gates and their removal.

A walk has two pure functions: `start` draws the first anchor, `step` moves it a little. Its whole state is a pair of flat dicts, the anchor
and the memory, so a chain can be stored and resumed. Short steps keep the next training short; a walk that keeps its direction still
spans the prior.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from choral.base.errors import InputError, PlanError
from choral.base.types import Params
from choral.base.values import BelowOne, Count, Positive, Value
from choral.compaction import Fold, Form, compact, slice_params
from choral.objectives.kl import FROZEN, GATE, MEAN, RHO, FrozenKL, freeze_gates, gate_keep, posteriors, rho_of, std_of
from choral.objectives.penalties import in_parameters, in_units
from choral.plan.phases import Context, Operator
from choral.plan.state import Role, State, slot

Chain = tuple[Params, Params]
Proposal = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Walk(Value, ABC):
    """A Markov chain over anchors that leaves N(0, prior_std^2) invariant for every scalar.

    `directed` walks store a direction of ±1 for every scalar; the memory of others is empty.
    """

    directed: ClassVar[bool] = False

    def start(self, params: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the first anchor, drawn from the prior, and the chain's memory.

        Args:
            params: tensors for names, shapes, dtypes and devices; their values are not used.
            prior_std: standard deviation of the prior, above 0.
            generator: a CPU generator.
        """
        anchor = _each(lambda value: prior_std * _normal(value, generator), params)
        directions = _each(lambda value: torch.randint(2, value.shape, generator=generator).to(value) * 2 - 1, anchor)
        return anchor, directions if self.directed else {}

    @abstractmethod
    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor and memory."""


@dataclass(frozen=True, kw_only=True)
class _Metropolis(Walk, ABC):
    """A walk in steps of a given size, each accepted by the change of energy."""

    step_std: Positive = 0.02
    relative_step: bool = False

    @abstractmethod
    def propose(self, theta: Tensor, noise: Tensor, direction: Tensor | float, prior_std: float) -> Proposal:
        """Return a proposal for each scalar from standard normal noise, and the change of its energy."""

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        """Return the next anchor, and the directions, of which those of rejected proposals turn."""
        moved, directions = {}, {}
        for name, theta in anchor.items():
            proposal, rise = self.propose(theta, _normal(theta, generator), memory.get(name, 1.0), prior_std)
            draw = torch.rand(rise.shape, generator=generator, dtype=rise.dtype).to(rise.device)
            accepted = draw < (-rise).exp()
            moved[name] = torch.where(accepted, proposal, theta)
            if name in memory:
                directions[name] = torch.where(accepted, memory[name], -memory[name])
        return moved, directions

    def _size(self, prior_std: float) -> float:
        return self.step_std * (prior_std if self.relative_step else 1.0)


@dataclass(frozen=True, kw_only=True)
class GuidedWalk(_Metropolis):
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

    def propose(self, theta: Tensor, noise: Tensor, direction: Tensor | float, prior_std: float) -> Proposal:
        proposal = theta + direction * (self._size(prior_std) * noise).abs()
        return proposal, _energy(proposal / prior_std) - _energy(theta / prior_std)


@dataclass(frozen=True, kw_only=True)
class GaussianWalk(_Metropolis):
    """Random-walk Metropolis: proposal theta + z, z ~ N(0, step_std^2), accepted by the prior ratio.

    Args:
        step_std, relative_step: as in `GuidedWalk`.
    """

    def propose(self, theta: Tensor, noise: Tensor, direction: Tensor | float, prior_std: float) -> Proposal:
        proposal = theta + self._size(prior_std) * noise
        return proposal, _energy(proposal / prior_std) - _energy(theta / prior_std)


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Walk):
    """Gaussian autoregression: correlation * theta + sqrt(1 - correlation^2) * fresh draw; never rejects.

    Args:
        correlation: between one anchor and the next (rho), from 0 (as `IID`) to below 1.
    """

    correlation: BelowOne = 0.99

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        fresh = prior_std * (1 - self.correlation**2) ** 0.5
        return _each(lambda theta: self.correlation * theta + fresh * _normal(theta, generator), anchor), memory


@dataclass(frozen=True, kw_only=True)
class HMC(_Metropolis):
    """Hamiltonian Monte Carlo for each scalar by itself: leapfrog on the prior, accepted by the change of energy.

    In units of the prior, q = theta / prior_std with momentum p ~ N(0, 1) and energy (q^2 + p^2) / 2.

    Args:
        step_std: size of a leapfrog step, so that one step moves theta by about `step_std`.
        relative_step: as in `GuidedWalk`; in units of the prior a leapfrog step stays below 2.
        leapfrog_steps: leapfrog steps for each move of the anchor.
    """

    leapfrog_steps: Count = 3

    def propose(self, theta: Tensor, noise: Tensor, direction: Tensor | float, prior_std: float) -> Proposal:
        size = self.step_std / (1.0 if self.relative_step else prior_std)
        if size >= 2:
            raise InputError(
                f"HMC: a step of {self.step_std} is {size:.3g} prior standard deviations; leapfrog diverges from 2 on; give a smaller step_std."
            )
        q, p = theta / prior_std, noise
        before = _energy(q) + _energy(p)
        for _ in range(self.leapfrog_steps):
            p = p - 0.5 * size * q
            q = q + size * p
            p = p - 0.5 * size * q
        return prior_std * q, _energy(q) + _energy(p) - before


@dataclass(frozen=True, kw_only=True)
class IID(Walk):
    """A fresh anchor from the prior at every step."""

    def step(self, anchor: Params, memory: Params, prior_std: float, generator: torch.Generator) -> Chain:
        return _each(lambda theta: prior_std * _normal(theta, generator), anchor), memory


def _each(function: Callable[[Tensor], Tensor], params: Params) -> Params:
    return {name: function(value.detach()) for name, value in params.items()}


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _energy(units: Tensor) -> Tensor:
    return 0.5 * units.square()


SHIFT = slot("target_shift", Role.SHIFT)
TARGETS = "targets"
"""Name of the only tensor in the slot 'target_shift'."""


@dataclass(frozen=True, kw_only=True)
class _Walking(Operator, ABC):
    """Operators that draw tensors from a prior, or move them by one step of a walk.

    Args:
        walk: how anchors move; its memory is stored next to the anchor.
        prior_std: standard deviation of the Gaussian prior on every parameter.
        scaled: divide it, and the steps of the walk, by the root of a weight's inputs (`choral.objectives.penalties.scale`).
    """

    draws: ClassVar[bool] = False  # whether from the prior, or one step from the last
    names: ClassVar[tuple[str, str]] = ("anchor", "direction")  # slots of what walks, and of directions that are kept

    walk: Walk
    prior_std: Positive
    scaled: bool = False

    @property
    def gives(self) -> tuple[str, ...]:
        return self.names[: 1 + self.walk.directed] if self.draws else ()

    @property
    def needs(self) -> tuple[str, ...]:
        return () if self.draws else self.names[: 1 + self.walk.directed]

    def _walked(
        self, state: State, like: Params, generator: torch.Generator, convert: Callable[[Params], Params]
    ) -> State:
        """Return the state with the next element of the chain: its start, shaped as `like`, or a step from `like`."""
        if self.draws:
            held, memory = self.walk.start(like, self.prior_std, generator)
        else:
            held, memory = self.walk.step(like, state.slots.get(self.names[1], {}), self.prior_std, generator)
        return state.with_slots(**{name: one for name, one in zip(self.names, (convert(held), memory)) if one})


@dataclass(frozen=True, kw_only=True)
class StepAnchor(_Walking):
    """Move the anchor by one step of the walk, which leaves the prior invariant.

    Reference: Delaunoy & Louppe, 2021, arXiv:2201.00649, Algorithms 2 and 3.
    """

    def apply(self, state: State, context: Context) -> State:
        held = state.params if self.draws else state.slots["anchor"]
        like = in_units(held) if self.scaled and not self.draws else held
        return self._walked(state, like, context.generator("anchor"), in_parameters if self.scaled else dict)


@dataclass(frozen=True, kw_only=True)
class DrawAnchor(StepAnchor):
    """Draw an anchor for every parameter from the prior.

    Reference: Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649, Algorithms 1 and 2.
    """

    draws: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class StepTargetShift(_Walking):
    """Move the noise on the targets by one step of the walk, relative to its size as far as the anchor."""

    names: ClassVar[tuple[str, str]] = (SHIFT, "target_direction")

    def apply(self, state: State, context: Context) -> State:
        std = context.likelihood.noise_std
        if std is None:
            raise PlanError(
                f"target noise needs a Gaussian likelihood of known precision, not {context.likelihood}; give likelihood=FixedGaussian(precision=...) or leave target_noise off."
            )
        scale = std / self.prior_std
        like = {TARGETS: torch.empty(context.target_shape)} if self.draws else _scaled(state.slots[SHIFT], 1 / scale)
        return self._walked(state, like, context.generator("target shift"), lambda noise: _scaled(noise, scale))


@dataclass(frozen=True, kw_only=True)
class DrawTargetShift(StepTargetShift):
    """Draw likelihood noise to add to this member's training targets.

    With it, the minima of an anchored loss for a linear model follow its posterior exactly; without it they are too narrow (see
    `choral.objectives.penalties`). The likelihood must be Gaussian with a known precision.

    Reference: Pearce et al., "Uncertainty in Neural Networks: Approximately Bayesian Ensembling", 2020,
    arXiv:1810.05546, section 3; the noise on targets is that of randomize-then-optimize.
    """

    draws: ClassVar[bool] = True


def _scaled(tensors: Params, factor: float) -> Params:
    return {name: value * factor for name, value in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class Perturb(Operator):
    """Move every posterior mean by plus or minus `factor` standard deviations, with a fair coin for each.

    Args:
        factor: the perturbation factor (rho in the paper).

    Reference: Jantre et al., "Sequential Bayesian Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, Algorithm 1.
    """

    factor: float = 3.0

    def apply(self, state: State, context: Context) -> State:
        generator, moved = context.generator("perturb"), dict(state.params)
        for stem, mean, rho in posteriors(state.params):
            coin = torch.randint(2, mean.shape, generator=generator).to(mean) * 2 - 1
            moved[stem + MEAN] = mean + self.factor * std_of(rho) * coin
        return state.having(params=moved)


@dataclass(frozen=True, kw_only=True)
class ResetStds(Operator):
    """Make every posterior narrow again.

    Args:
        how: 'small' sets every standard deviation to `std` (the paper), 'redraw' draws every rho anew from
            N(rho, rho_spread^2) (the authors' code).
        std: the standard deviation of 'small'.
        rho, rho_spread: center and spread of 'redraw'.

    Reference: Jantre et al., 2022, arXiv:2206.00794, Algorithm 1.
    """

    how: Literal["small", "redraw"] = "small"
    std: float = 1e-6
    rho: float = -6.0
    rho_spread: float = 0.05

    def apply(self, state: State, context: Context) -> State:
        generator, narrow = context.generator("stds"), dict(state.params)
        for stem, _, old in posteriors(state.params):
            if self.how == "small":
                narrow[stem + RHO] = torch.full_like(old, rho_of(self.std))
            else:
                noise = torch.randn(old.shape, generator=generator, dtype=old.dtype)
                narrow[stem + RHO] = (self.rho + self.rho_spread * noise).to(old)
        return state.having(params=narrow)


@dataclass(frozen=True, kw_only=True)
class FreezeGates(Operator):
    """Fix every node gate to open or closed.

    Args:
        rule: 'draw' draws each gate from its inclusion probability (the authors' code), 'threshold' keeps nodes whose probability is above
            one half.
        kl: weight of a kept node's KL from then on: 1 ('certain'), or its inclusion probability ('gamma', the authors' code), for which
            later phases must not train the logits.
    """

    rule: Literal["draw", "threshold"] = "draw"
    kl: FrozenKL = "certain"

    def apply(self, state: State, context: Context) -> State:
        generator = context.generator("gates")
        params, buffers = freeze_gates(state.params, state.buffers, rule=self.rule, kl=self.kl, generator=generator)
        # a gate that is fixed has nothing left to move it
        memory = {n: torch.zeros_like(t) if n.endswith(GATE) and t.dim() else t for n, t in state.memory.items()}
        return state.having(params=params, buffers=buffers, memory=memory)


@dataclass(frozen=True, kw_only=True)
class CompactGates(Operator):
    """Remove nodes with closed gates, so that tensors are smaller and further training is cheaper.

    A closed node gives zero, but normalization after it still emits a constant: its shift. The bias of the next layer takes it over. If it
    cannot (zero-padding, no bias), one closed node of the layer stays and carries the constants of all: the posteriors of its outgoing
    weights become those of the weighted sum. Outputs do not change, in evaluation mode and at the means. Nodes that cannot be removed
    (summed with open ones, for example) stay, with closed gates.
    """

    def apply(self, state: State, context: Context) -> State:
        if state.form is not None:
            raise PlanError("CompactGates met a network that is compacted already; compact it once, after FreezeGates.")
        keep = gate_keep(state.params, state.buffers)
        if all(bool(open_.all()) for open_ in keep.values()):
            return state
        solution = compact(context.member(state, 0), keep, context.example())
        form = variational_form(solution.form, [*state.params, *state.buffers])
        if not form["axes"]:
            return state
        return State(
            slice_params(take_over(state.params, solution.folds), form),
            slice_params(state.buffers, form),
            {name: slice_params(slot, form) for name, slot in state.slots.items()},
            _sliced_memory(state.memory, form),
            form,
        )


def take_over(params: Params, folds: Iterable[Fold]) -> Params:
    """Return parameters with the constants of removed nodes folded into their posteriors.

    A sum of independent Gaussians is Gaussian: means add up with the constants, variances with their squares. Weights without a posterior
    are added directly.
    """
    changed = dict(params)
    for fold in folds:
        for part in ("", MEAN, RHO):
            if fold.weight + part not in changed:
                continue
            weight, held = changed[fold.weight + part], changed[fold.target + part].clone()
            if part == RHO:
                added = fold.added(std_of(weight).square(), power=2)
                std = (std_of(held[fold.where]).square() + added).sqrt()
                held[fold.where] = std + (-(-std).expm1()).log()  # the inverse of softplus
            else:
                held[fold.where] += fold.added(weight)
            changed[fold.target + part] = held
    return changed


def _sliced_memory(memory: Params, form: Form) -> Params:
    sliced = {}
    for full, value in memory.items():
        name = full.split("/", 1)[1]
        sliced[full] = slice_params({name: value}, form)[name] if value.dim() else value
    return sliced


def variational_form(form: Form, names: list[str]) -> Form:
    """Return the form of a network with posteriors from that of its plain network.

    Means and rhos are cut as their tensor, gates as the rows of their layer, and the statistics of a normalization layer inside its
    Gaussian one.

    Args:
        form: the plain network's.
        names: parameters and buffers of the network with posteriors.

    >>> plain = {"axes": {"fc.weight": {"0": [1], "1": [0]}}, "attributes": {"fc": {"out_features": 1}}}
    >>> variational_form(plain, ["fc.weight_mean", "fc.gate_logit"])["axes"]
    {'fc.weight_mean': {'0': [1], '1': [0]}, 'fc.gate_logit': {'0': [1]}}
    """
    axes, found = form["axes"], {}
    for name in names:
        owner, dot, part = name.rpartition(".")
        inside = f"{owner.removesuffix('norm').removesuffix('.')}.{part}".removeprefix(".")
        posterior = name.removesuffix(MEAN).removesuffix(RHO)
        if part in (GATE, FROZEN):
            weight = axes.get(f"{owner}{dot}weight", {})
            cut = {axis: kept for axis, kept in weight.items() if axis == "0"}
        else:
            cut = next((axes[leader] for leader in (name, inside, posterior) if leader in axes), {})
        if cut:
            found[name] = cut
    return {**form, "axes": found}
