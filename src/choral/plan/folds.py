"""Cross-validation ensembles: every branch is trained without a part of the points of its own, which watches its training."""

from dataclasses import dataclass, replace

import torch

from choral.base.errors import PlanError
from choral.plan.operators import SUBSET
from choral.plan.phases import Collect, Context, Fork, Operator, Phase, Repeat, Seq, Starter, fork, opened, seq
from choral.plan.state import Role, State, slot
from choral.plan.walk import Place, Visitor, walk

HELD = slot("held", Role.HELD)
_TRIMMED = 0.01  # of the points may be left out of a branch so that all branches have equally many


@dataclass(frozen=True, kw_only=True)
class Fold(Operator):
    """Hold one part of the points out of this branch: branch 0 the first of `folds` parts, branch 1 the second, and so on.

    Parts differ by at most one point, unless points of a group must stay together. So that branches can be trained as one stack,
    those with a point too many leave it out; it is trained on in the other branches.

    Args:
        folds: how many parts there are.
        first: the part that branch 0 holds out.
    """

    folds: int
    first: int = 0

    @property
    def obstacle(self) -> str:
        """Something must be left to train on."""
        return "" if self.folds >= 2 else f"folds is {self.folds}; give 2 or more"

    @property
    def gives(self) -> tuple[str, ...]:
        """The points of this branch, and those held out of it."""
        return (SUBSET, HELD)

    @property
    def foreseen(self) -> bool:
        """The number of points is known."""
        return True

    def number(self, branch: int) -> int:
        """Return the part that a branch holds out."""
        return (self.first + branch) % self.folds

    def apply(self, state: State, context: Context) -> State:
        """Return the state with its own points."""
        part = context.partition(self.folds)
        own = part == self.number(context.branch)
        kept = (~own).nonzero().flatten()
        least = len(part) - int(part.bincount(minlength=self.folds).max())
        if len(kept) - least <= max(1, _TRIMMED * len(part)):
            chosen = torch.randperm(len(kept), generator=context.generator("fold"))[: max(least, 1)]
            kept = kept[chosen.sort().values]
        return state.with_slots(**{SUBSET: {"indices": kept}, HELD: {"indices": own.nonzero().flatten()}})


def in_folds(plan: Phase, folds: int) -> Phase:
    """Return a plan whose networks each hold out a part of the points.

    Members that are branches of a fork, or of several one after the other, hold out one part each, in turn; any other plan, also of
    one branch, is run once for each part.

    >>> from choral.plan.operators import Reset
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
        raise PlanError(
            f"the plan has {sum(branches)} members for {folds} folds; give a multiple of {folds} members, so that each part is held "
            "out of equally many."
        )
    parts = []
    for number, one in enumerate(forks):
        own = Fold(folds=folds, first=sum(branches[:number]) % folds)
        parts.append(replace(one, body=_holding_out(one.body, own)))
    return parts[0] if len(parts) == 1 else seq(*parts)


def _holding_out(phase: Phase, fold: Fold) -> Phase:
    """Return a phase with every network's start followed by the part it holds out."""
    if isinstance(phase, Starter):
        return seq(phase, fold)
    if isinstance(phase, Seq):
        parts = [_holding_out(p, fold) for p in phase.phases]
        return seq(*(one for p in parts for one in opened(p)))
    if isinstance(phase, Repeat):
        return replace(phase, body=_holding_out(phase.body, fold))
    if isinstance(phase, Fork) and _starts(phase):
        raise PlanError(
            "the plan starts networks anew within two forks, so that nothing says which part each of them holds out; leave folds out "
            "(validation=0.2 watches the training of any plan)."
        )
    return phase


def _starts(phase: Phase) -> bool:
    return isinstance(phase, Starter) or any(_starts(child) for child in phase.children)


def folds_of(plan: Phase) -> list[int | None]:
    """Return the part that each collected network holds out, in plan order; None for those that hold out none.

    >>> from choral.plan.operators import Reset
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
