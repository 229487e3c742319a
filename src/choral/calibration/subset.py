"""Greedy selection: build a smaller ensemble member by member, each time adding the one that helps most."""

from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration.stacking import checked_log_scores
from choral.metrics.inputs import double


@dataclass(frozen=True, kw_only=True)
class MemberSelection(Value):
    """Which members to use, in the order they were chosen.

    Args:
        indices: places of the chosen members; a member chosen twice counts twice.
        nll: held-out negative log likelihood after each choice.

    >>> MemberSelection(indices=(2, 0), nll=(0.5, 0.4)).apply(torch.tensor([[1.0], [2.0], [3.0]])).tolist()
    [[3.0], [1.0]]
    """

    indices: tuple[int, ...]
    nll: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.indices or min(self.indices) < 0:
            raise InputError(f"indices are {self.indices}; give the places of one or more members, counted from 0.")

    def apply(self, member_values: Tensor) -> Tensor:
        """Return the chosen members' values in order. Shapes: (member, ...) -> (chosen, ...)."""
        return member_values[self.within(len(member_values))]

    def within(self, members: int) -> list[int]:
        """Return the places of the chosen ones among so many members; raises InputError for one beyond them."""
        if max(self.indices) >= members:
            raise InputError(f"there are {members} members but member {max(self.indices)} is among the chosen.")
        return list(self.indices)


def select_members(
    member_log_scores: Tensor, *, members: int, replacement: bool = False, exact: bool = False
) -> MemberSelection:
    """Return members chosen one by one, each the one whose addition gives the average the best held-out log score.

    Args:
        member_log_scores: (member, batch), log of what each member gives to what happened; see `label_log_scores`.
        members: how many choices to make.
        replacement: a member may be chosen again, which gives it more weight.
        exact: keep all choices; otherwise the shortest run of choices with the best score is kept, so the result is
            never worse on this data than the best single member.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, section 2.
    """
    scores = checked_log_scores(member_log_scores).exp()  # (member, batch)
    shift = double(member_log_scores).max(0).values.mean()  # what the check took away
    if members < 1 or (not replacement and members > len(scores)):
        raise InputError(
            f"members is {members} but there are {len(scores)} to choose from; choose from 1 to {len(scores)}, "
            "or allow replacement."
        )
    chosen: list[int] = []
    nll: list[float] = []
    total = torch.zeros_like(scores[0])
    for count in range(1, members + 1):
        gains = ((total + scores) / count).log().mean(1)
        if not replacement and chosen:
            gains[chosen] = -torch.inf
        index = int(gains.argmax())
        chosen.append(index)
        nll.append(-float(gains[index] + shift))
        total = total + scores[index]
    kept = members if exact else 1 + min(range(members), key=lambda i: nll[i])
    return MemberSelection(indices=tuple(chosen[:kept]), nll=tuple(nll[:kept]))
