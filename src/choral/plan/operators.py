"""Operators: starting, bagging, averaging and recalibrating one network's state."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from choral.base import draws
from choral.base.errors import InputError, PlanError
from choral.layers.bayesian.patched import DrawnStatistics
from choral.plan.phases import Context, Operator, Starter
from choral.plan.state import Role, State, slot

SUBSET = slot("subset", Role.SUBSET)


@dataclass(frozen=True, kw_only=True)
class Reset(Starter):
    """Build the network again with the seed of this place, so nothing is left over from before."""

    def begin(self, context: Context) -> State:
        """Return a fresh state."""
        return context.fresh()


@dataclass(frozen=True, kw_only=True)
class Start(Starter):
    """Take the weights of the network the user handed over."""

    takes_given: ClassVar[bool] = True

    def begin(self, context: Context) -> State:
        """Return the given weights."""
        given = context.given()
        if given is None:
            raise PlanError(
                "Start needs trained weights, but fit was given a factory; hand over the trained nn.Module itself."
            )
        return given


@dataclass(frozen=True, kw_only=True)
class Bag(Operator):
    """Restrict training to a random part of the points, drawn for this branch; of its own points, if it has only some.

    Args:
        fraction: size of the part relative to all points.
        replace: draw with replacement (the bootstrap) instead of a subset.
    """

    fraction: float = 0.9
    replace: bool = False

    def __post_init__(self) -> None:
        if not self.fraction > 0 or (self.fraction > 1 and not self.replace):
            raise InputError(f"fraction is {self.fraction}; give a part of the points, above 0 and at most 1.")

    @property
    def gives(self) -> tuple[str, ...]:
        """The slot 'subset' with the drawn indices."""
        return (SUBSET,)

    @property
    def foreseen(self) -> bool:
        """The number of points is known."""
        return True

    def apply(self, state: State, context: Context) -> State:
        """Return the state with its own training points."""
        own, points = state.subset, context.points if state.subset is None else len(state.subset)
        count = max(1, round(self.fraction * points))
        generator = context.generator("bag")
        if self.replace:
            indices = torch.randint(points, (count,), generator=generator)
        else:
            indices = torch.randperm(points, generator=generator)[:count]
        indices = indices if own is None else own[indices]
        return state.with_slots(**{SUBSET: {"indices": indices.sort().values}})


@dataclass(frozen=True, kw_only=True)
class UpdateMoments(Operator):
    """Take the current weights into running moments of the trajectory.

    After n calls: mean = average of the n weights, square = average of their squares, deviations = the last `rank`
    differences to the running mean. The average of 0, 1, 2 is 1.

    Reference: Maddox et al., "A Simple Baseline for Bayesian Uncertainty", 2019, arXiv:1902.02476, Algorithm 1.
    """

    rank: int = 0

    @property
    def anywhere(self) -> bool:
        """Moments are kept where the weights are."""
        return True

    @property
    def gives(self) -> tuple[str, ...]:
        """The slots of the moments."""
        return ("mean", "square", "deviations", "moment_count")

    def apply(self, state: State, context: Context) -> State:
        """Return the state with moments that include its weights."""
        seen = int(state.slots["moment_count"]["count"]) if "moment_count" in state.slots else 0
        mean, square, deviations = {}, {}, {}
        for name, p in state.params.items():
            old_mean = state.slots["mean"][name].to(p.device) if seen else torch.zeros_like(p)
            old_square = state.slots["square"][name].to(p.device) if seen else torch.zeros_like(p)
            mean[name] = old_mean + (p - old_mean) / (seen + 1)
            square[name] = old_square + (p * p - old_square) / (seen + 1)
            if self.rank:
                new = (p - mean[name]).unsqueeze(0)
                old = state.slots["deviations"][name].to(p.device) if seen else new[:0]
                deviations[name] = torch.cat([old, new])[-self.rank :]
        count = {"count": torch.tensor(seen + 1)}
        return state.with_slots(mean=mean, square=square, deviations=deviations, moment_count=count)


@dataclass(frozen=True, kw_only=True)
class UseMean(Operator):
    """Replace the weights by the collected mean."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The collected mean."""
        return ("mean",)

    def apply(self, state: State, context: Context) -> State:
        """Return the state at the mean of its trajectory."""
        return state.having(params={n: t.clone() for n, t in state.slots["mean"].items()}, memory={})


@dataclass(frozen=True, kw_only=True)
class DrawMoments(Operator):
    """Draw weights from the Gaussian fitted to the trajectory.

    Covariance = scale * (diag(square - mean^2) + D D^T / (rank - 1)); the paper's formula has scale 1/2.

    Reference: Maddox et al., 2019, arXiv:1902.02476, Equation 1.
    """

    scale: float = 0.5

    @property
    def needs(self) -> tuple[str, ...]:
        """The collected moments."""
        return ("mean", "square", "deviations")

    def apply(self, state: State, context: Context) -> State:
        """Return the state with drawn weights."""
        generator = context.generator("moments")
        drawn = {}
        rank = next((d.shape[0] for d in state.slots["deviations"].values()), 0)
        columns = torch.randn(rank, generator=generator) / max(rank - 1, 1) ** 0.5
        for name, mean in state.slots["mean"].items():
            variance = (state.slots["square"][name] - mean * mean).clamp(min=0)
            noise = variance.sqrt() * torch.randn(mean.shape, generator=generator).to(mean)
            if rank:
                noise = noise + torch.tensordot(columns.to(mean), state.slots["deviations"][name], dims=1)
            value = mean + self.scale**0.5 * noise
            drawn[name] = value
        return state.having(params=drawn, memory={})


_NORMS = (nn.modules.batchnorm._BatchNorm,)


def _settings(module: nn.Module) -> Any:
    """Return what holds the momentum of a layer's statistics: itself, or the plain layer of one member; None of other layers."""
    held = module if isinstance(module, _NORMS) else getattr(module, "settings", None)
    return held if isinstance(held, _NORMS) else None


@dataclass(frozen=True, kw_only=True)
class Recalibrate(Operator):
    """Estimate BatchNorm statistics again over the training data, but for layers that the network keeps in evaluation mode in training."""

    def apply(self, state: State, context: Context) -> State:
        """Return the state with statistics that fit its weights."""
        network = context.network(state)
        held: list[Any] = [m for m in network.modules() if _settings(m) is not None]
        network.train()  # which a network may answer by keeping statistics on purpose: those layers stay in evaluation
        norms = [m for m in held if getattr(m, "running_mean", None) is not None and m.training]
        network.eval()
        if not norms:
            return state
        momenta = [(m, _settings(m).momentum) for m in norms]
        for norm in norms:
            norm.running_mean.zero_()
            norm.running_var.fill_(1)
            norm.num_batches_tracked.zero_()
            _settings(norm).momentum = None  # a cumulative average, so every batch counts the same
            norm.train()
        with torch.no_grad():
            for x in context.inputs():
                network(x)
        for norm, momentum in momenta:
            _settings(norm).momentum = momentum
            norm.eval()
        return state.having(buffers={n: b.detach().clone() for n, b in network.named_buffers()})


@dataclass(frozen=True, kw_only=True)
class RecalibrateDraws(Operator):
    """Estimate BatchNorm statistics for each pass of prediction, behind layers that are drawn anew in every pass.

    Networks without such statistics (`choral.layers.bayesian.patched`) are left alone.

    Args:
        points: training points each pass is estimated on, drawn at random; all of them if there are fewer.
    """

    points: int = 1024

    def __post_init__(self) -> None:
        if self.points < 2:
            raise InputError(f"RecalibrateDraws: points={self.points}; give 2 or more.")

    def apply(self, state: State, context: Context) -> State:
        """Return the state with statistics for every pass."""
        network = context.network(state)
        drawn = [m for m in network.modules() if isinstance(m, DrawnStatistics)]
        if not drawn:
            return state
        batches = list(context.inputs(self.points))
        with torch.no_grad():
            for number in range(drawn[0].passes):
                for statistics in drawn:
                    statistics.begin(number)
                for x in batches:
                    with draws.keyed(0, number):
                        network(x)
            for statistics in drawn:
                statistics.end()
        return state.having(buffers={n: b.detach().clone() for n, b in network.named_buffers()})
