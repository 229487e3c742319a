"""Select: which members an ensemble keeps, and how much each counts, decided while they train."""

from dataclasses import dataclass

from choral.base.arguments import is_whole
from choral.base.errors import InputError
from choral.base.values import Value
from choral.plan.state import slot

SHARE = slot("share")
"""What a network counts in the ensemble it was chosen for; 0 if it was not."""


@dataclass(frozen=True, kw_only=True)
class Select(Value):
    """Choose members greedily, with replacement, by the score of held-out points, anew after every epoch of a training phase.

    Each network stands as it is now and as it was when it was chosen last (when it was best, if it never was). A choice replaces the
    one before if it predicts the held-out points better. At the end each network is as it was chosen, and the shares of the choice
    are the members' weights. Without held-out points (`validation=` of `choral.fit`) all members are kept and count alike.

    Args:
        picks: choices, at most; a network may be chosen several times.
        patience: epochs without a better choice after which all training of the phase ends.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, sections 2 and 2.1.
    """

    picks: int = 32
    patience: int = 32

    def __post_init__(self) -> None:
        if not is_whole(self.picks, 1) or not is_whole(self.patience, 1):
            raise InputError(
                f"Select: picks={self.picks!r}, patience={self.patience!r}; give whole numbers, 1 or more."
            )
