"""Conformal sets for labels that are each yes or no: every label has a threshold of its own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration.coverage import check_rule, conformal_threshold


@dataclass(frozen=True, kw_only=True)
class ConformalLabels(Value):
    """A rule from the probability of a label to a set of answers: an answer is in it if it is likely enough.

    Args:
        thresholds: one for each label; an answer of probability p is in the set if 1 - p is at most this. None (too few
            held-out rows) takes both answers.
        level: the promised coverage of each label, 1 - alpha.

    >>> ConformalLabels(thresholds=(0.6,), level=0.9).apply(torch.tensor([[0.5], [0.9]])).tolist()
    [[[True, True]], [[False, True]]]
    """

    thresholds: tuple[float | None, ...]
    level: float

    def __post_init__(self) -> None:
        check_rule(self.level, self.thresholds)

    def apply(self, probs: Tensor) -> Tensor:
        """Return whether no and yes are in the set of each label. Shapes: probs (batch, label) -> (batch, label, 2)."""
        if probs.ndim != 2 or probs.shape[1] != len(self.thresholds):
            raise InputError(
                f"probs has shape {tuple(probs.shape)} for {len(self.thresholds)} labels; give (batch, label)."
            )
        limits = torch.tensor([2.0 if t is None else t for t in self.thresholds], dtype=torch.float64).unsqueeze(-1)
        return torch.stack([probs.double(), 1 - probs.double()], -1) <= limits


def fit_label_sets(probs: Tensor, labels: Tensor, *, level: float = 0.9) -> ConformalLabels:
    """Return the rule under which the set of each label holds its true answer with probability `level`.

    Args:
        probs: (batch, label) of held-out rows.
        labels: of the same shape, 0 or 1.
        level: probability to cover, 1 - alpha.

    Reference: Sadinle, Lei & Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", 2019,
    arXiv:1609.00451, applied to each label.
    """
    if probs.shape != labels.shape or probs.ndim != 2:
        raise InputError(
            f"probs has shape {tuple(probs.shape)} and labels {tuple(labels.shape)}; both must be (batch, label)."
        )
    wrong = torch.where(labels > 0.5, 1 - probs.double(), probs.double())
    return ConformalLabels(thresholds=tuple(conformal_threshold(column, level) for column in wrong.T), level=level)
