"""Operators: bagging, holding out folds, averaging and recalibrating the state of a network."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from choral.base.errors import PlanError
from choral.base.values import Limit
from choral.layers.bayesian.patched import DrawnStatistics
from choral.layers.convert import layers_of
from choral.layers.keyed import keyed
from choral.plan.cost import begun
from choral.plan.phases import Collect, Context, Fork, Operator, Phase, Repeat, Seq, Starter, fork, opened, seq
from choral.plan.state import Role, State, slot
from choral.plan.walk import Place, Visitor, walk

SUBSET = slot("subset", Role.SUBSET)
HELD = slot("held", Role.HELD)
_TRIMMED = 0.01  # of the points may be left out of a branch so that all branches have equally many


@dataclass(frozen=True, kw_only=True)
class Bag(Operator):
    """Restrict training to a random part of the rows, drawn for this branch from the rows it has.

    Args:
        fraction: size of the part relative to all rows.
        replace: draw with replacement (the bootstrap).
    """

    fraction: Annotated[float, Limit(lambda part: 0 < part <= 1, "a part of the points, above 0 and at most 1")] = 0.9
    replace: bool = False
    gives: ClassVar[tuple[str, ...]] = (SUBSET,)
    foreseen: ClassVar[bool] = True

    def apply(self, state: State, context: Context) -> State:
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
class Boost(Operator):
    """Draw the points of the next round, with replacement and more often those that the networks so far found hard.

    A point is hard for a network whose loss on it is above its mean loss. Points that were hard m times are drawn in proportion to
    1 + m^4: arc-x4, the boosting of ensembles that are averaged with equal weights. The paper counts misclassified points.

    Reference: Breiman, "Arcing classifiers", Annals of Statistics 26, 1998, section 5.
    """

    gives: ClassVar[tuple[str, ...]] = (SUBSET, "hard")

    def apply(self, state: State, context: Context) -> State:
        own = torch.arange(context.points) if state.subset is None else state.subset
        seen = state.slots.get("hard", {"points": own, "times": torch.zeros(len(own))})
        points, losses = seen["points"], context.losses(state, seen["points"])
        times = seen["times"] + (losses > losses.mean())
        drawn = torch.multinomial(1 + times**4, len(points), replacement=True, generator=context.generator("boost"))
        chosen = {"indices": points[drawn].sort().values}
        return state.with_slots(**{SUBSET: chosen, "hard": {"points": points, "times": times}})


@dataclass(frozen=True, kw_only=True)
class Rewind(Operator):
    """Go back to the network that the first round of a `repeat` began with; slots other than masks stay."""

    gives: ClassVar[tuple[str, ...]] = ("first",)
    foreseen: ClassVar[bool] = True

    def apply(self, state: State, context: Context) -> State:
        first = state.slots.get("first") or state.having(memory={}).flat()
        begun, later = State.from_flat(first), {n: s for n, s in state.slots.items() if n != "mask"}
        return begun.having(slots=begun.slots | later | {"first": first})


@dataclass(frozen=True, kw_only=True)
class UpdateMoments(Operator):
    """Add the current weights to running moments of the trajectory.

    After n calls: mean = average of the n weights, square = average of their squares, deviations = the last `rank`
    differences to the running mean. The average of 0, 1, 2 is 1.

    Reference: Maddox et al., "A Simple Baseline for Bayesian Uncertainty", 2019, arXiv:1902.02476, Algorithm 1.
    """

    rank: int = 0
    anywhere: ClassVar[bool] = True
    gives: ClassVar[tuple[str, ...]] = ("mean", "square", "deviations", "moment_count")

    def apply(self, state: State, context: Context) -> State:
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

    needs: ClassVar[tuple[str, ...]] = ("mean",)

    def apply(self, state: State, context: Context) -> State:
        return state.having(params={n: t.clone() for n, t in state.slots["mean"].items()}, memory={})


@dataclass(frozen=True, kw_only=True)
class DrawMoments(Operator):
    """Draw weights from the Gaussian fitted to the trajectory.

    Covariance = scale * (diag(square - mean^2) + D D^T / (rank - 1)); the paper's formula has scale 1/2.

    Reference: Maddox et al., 2019, arXiv:1902.02476, Equation 1.
    """

    scale: float = 0.5
    needs: ClassVar[tuple[str, ...]] = ("mean", "square", "deviations")

    def apply(self, state: State, context: Context) -> State:
        generator = context.generator("moments")
        drawn = {}
        rank = next((d.shape[0] for d in state.slots["deviations"].values()), 0)
        columns = torch.randn(rank, generator=generator) / max(rank - 1, 1) ** 0.5
        for name, mean in state.slots["mean"].items():
            variance = (state.slots["square"][name] - mean * mean).clamp(min=0)
            noise = variance.sqrt() * torch.randn(mean.shape, generator=generator).to(mean)
            if rank:
                noise = noise + torch.tensordot(columns.to(mean), state.slots["deviations"][name], dims=1)
            drawn[name] = mean + self.scale**0.5 * noise
        return state.having(params=drawn, memory={})


_NORMS = (nn.modules.batchnorm._BatchNorm,)


def _settings(module: nn.Module) -> Any:
    """Return the module with the momentum of a layer's statistics: itself, or the plain layer of one member; None for other layers."""
    held = module if isinstance(module, _NORMS) else getattr(module, "settings", None)
    return held if isinstance(held, _NORMS) else None


@dataclass(frozen=True, kw_only=True)
class Recalibrate(Operator):
    """Estimate BatchNorm statistics again over the training data, except of layers that training keeps in evaluation mode."""

    def apply(self, state: State, context: Context) -> State:
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
    """Estimate BatchNorm statistics for each pass of prediction, after layers that are drawn anew in every pass.

    Networks without such statistics (`choral.layers.bayesian.patched`) are not changed.

    Args:
        points: largest number of random training rows for each pass.
    """

    points: Annotated[int, Limit(lambda count: count >= 2, "2 or more")] = 1024

    def apply(self, state: State, context: Context) -> State:
        network = context.network(state)
        drawn: list[Any] = [statistics for _, statistics in layers_of(network, (DrawnStatistics,))]
        if not drawn:
            return state
        batches = list(context.inputs(self.points))
        with torch.no_grad():
            for number in range(drawn[0].passes):
                for statistics in drawn:
                    statistics.begin(number)
                for x in batches:
                    with keyed(0, number):
                        network(x)
            for statistics in drawn:
                statistics.end()
        return state.having(buffers={n: b.detach().clone() for n, b in network.named_buffers()})


@dataclass(frozen=True, kw_only=True)
class Fold(Operator):
    """Hold out one fold from this branch: branch 0 the first of `folds`, branch 1 the second, and so on.

    Folds differ by at most one row, unless groups must stay together. So that branches can be trained as one stack, those with an extra row
    leave it out; other branches are trained on it.

    Args:
        folds: number of folds.
        first: the fold that branch 0 holds out.
    """

    folds: Annotated[int, Limit(lambda count: count >= 2, "2 or more")]
    first: int = 0
    gives: ClassVar[tuple[str, ...]] = (SUBSET, HELD)
    foreseen: ClassVar[bool] = True

    def number(self, branch: int) -> int:
        """Return the fold that a branch holds out."""
        return (self.first + branch) % self.folds

    def apply(self, state: State, context: Context) -> State:
        part = context.partition(self.folds)
        own = part == self.number(context.branch)
        kept = (~own).nonzero().flatten()
        least = len(part) - int(part.bincount(minlength=self.folds).max())
        if len(kept) - least <= max(1, _TRIMMED * len(part)):
            chosen = torch.randperm(len(kept), generator=context.generator("fold"))[: max(least, 1)]
            kept = kept[chosen.sort().values]
        return state.with_slots(**{SUBSET: {"indices": kept}, HELD: {"indices": own.nonzero().flatten()}})


def in_folds(plan: Phase, folds: int) -> Phase:
    """Return a plan whose networks each hold out a fold.

    Members that are branches of a fork, or of several in sequence, hold out one fold each, in turn; any other plan, also of one branch, is
    run once for each fold.

    >>> from choral.plan.phases import Reset
    >>> in_folds(fork(4, Reset(), Collect()), 2)
    Fork(branches=4, body=Seq(phases=(Reset(), Fold(folds=2, first=0), Collect())), variants=(), space=None)
    """
    forks = [one for one in opened(plan) if isinstance(one, Fork)]
    if len(forks) < len(opened(plan)) or not forks:
        return fork(folds, _holding_out(plan, Fold(folds=folds)))
    branches = [one.branches for one in forks]
    if sum(branches) == 1:
        (only,) = forks
        return replace(only, branches=folds, body=_holding_out(only.body, Fold(folds=folds)))
    if sum(branches) % folds:
        raise PlanError(f"the plan has {sum(branches)} members for {folds} folds; give a multiple of {folds} members.")
    parts = []
    for number, one in enumerate(forks):
        own = Fold(folds=folds, first=sum(branches[:number]) % folds)
        parts.append(replace(one, body=_holding_out(one.body, own)))
    return parts[0] if len(parts) == 1 else seq(*parts)


def _holding_out(phase: Phase, fold: Fold) -> Phase:
    match phase:
        case Starter():
            return seq(phase, fold)
        case Seq(phases=phases):
            return seq(*(one for p in phases for one in opened(_holding_out(p, fold))))
        case Repeat(body=body):
            return replace(phase, body=_holding_out(body, fold))
    if begun(phase):
        raise PlanError(
            "the plan starts networks anew within two forks, so nothing says which part each holds out; use validation=0.2 instead of folds."
        )
    return phase


def folds_of(plan: Phase) -> list[int | None]:
    """Return the fold that each collected network holds out, in plan order; None for networks without one.

    >>> from choral.plan.phases import Reset
    >>> folds_of(in_folds(fork(4, Reset(), Collect()), 2))
    [0, 1, 0, 1]
    """
    found: list[int | None] = []

    def change(phase: Operator, place: Place, own: int | None) -> int | None:
        return phase.number(place.branch) if isinstance(phase, Fold) else own

    def collect(phase: Collect, place: Place, own: int | None) -> int | None:
        found.append(own)
        return own

    walk(plan, None, Visitor(change=change, collect=collect))
    return found
