"""Scores of predicted probabilities against labels: accuracy, negative log likelihood, Brier.

The `_rows` functions give one number for each row; the others their mean. A true class whose probability is exactly 0
is charged -log(PROB_FLOOR) = 87.3 nats, so every score is finite.
"""

from torch import Tensor

from choral.metrics.inputs import PROB_FLOOR, checked_finite, checked_labels, checked_probs, checked_weights


def correct_rows(probs: Tensor, labels: Tensor) -> Tensor:
    """Return 1.0 where the most probable class (the first, among equals) is the label, else 0.0."""
    return (probs.argmax(-1) == labels).double()


def nll_rows(probs: Tensor, labels: Tensor) -> Tensor:
    """Return -log of the probability of each label, for checked float64 probs (..., batch, class)."""
    chosen = probs.gather(-1, labels.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return -chosen.clamp(PROB_FLOOR, 1.0).log()


def brier_rows(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance to the one-hot label, for checked float64 probs (batch, class)."""
    chosen = probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return probs.square().sum(-1) - 2.0 * chosen + 1.0


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    probs = checked_probs(probs)
    return probs, checked_labels(labels, batch=len(probs), classes=probs.shape[-1]).to(probs.device)


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose most probable class is the label.

    Shapes: probs (batch, class), labels (batch,).

    >>> import torch
    >>> accuracy(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    return float(correct_rows(*_checked(probs, labels)).mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Return the mean negative log likelihood in nats.

    A probability of exactly 0 counts as `PROB_FLOOR`, so a row costs at most 87.3 nats.

    Shapes: probs (batch, class), labels (batch,).

    >>> import torch
    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 6)
    0.693147
    """
    return float(nll_rows(*_checked(probs, labels)).mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Return the mean squared distance between the probabilities and the one-hot label, from 0 to 2.

    Shapes: probs (batch, class), labels (batch,).

    Reference: Brier, "Verification of forecasts expressed in terms of probability", 1950: the sum over classes, not
    half of it.

    >>> import torch
    >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 0]))
    0.25
    """
    return float(brier_rows(*_checked(probs, labels)).mean())


def logits_nll(member_logits: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the mean negative log likelihood of the members' average probabilities, computed from logits.

    Exact where probabilities underflow: it stays in logarithms, so nothing is floored.

    Shapes: member_logits (member, batch, class), labels (batch,), weights (member,).

    >>> import torch
    >>> round(logits_nll(torch.tensor([[[0.0, 800.0]]]), torch.tensor([0])), 3)
    800.0
    """
    member_logits = checked_finite(member_logits, "member_logits")
    members, batch, classes = member_logits.shape
    labels = checked_labels(labels, batch=batch, classes=classes).to(member_logits.device)
    weights = checked_weights(weights, members=members, like=member_logits)
    chosen = member_logits.gather(-1, labels.expand(members, batch).unsqueeze(-1)).squeeze(-1)
    log_scores = chosen - member_logits.logsumexp(-1)
    return float(-(log_scores + weights.log().unsqueeze(-1)).logsumexp(0).mean())
