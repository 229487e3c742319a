"""Checks shared by the metrics.

Every metric works in float64 and outside the autograd graph; single precision would lose the sixth digit of a sum over
50,000 rows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from choral.base.errors import InputError, NotFiniteError

PROB_FLOOR = torch.finfo(torch.float32).tiny
"""Probabilities are raised to this (1.2e-38) before a logarithm: a true class at exactly 0 costs 87.3 nats."""

_SUM_TOLERANCE = 1e-2  # bfloat16 softmax rows miss 1 by up to 0.4 %


def double(values: Tensor) -> Tensor:
    """Return the values detached and in float64 (on the CPU when their device has no float64)."""
    values = torch.as_tensor(values).detach()
    return values.to("cpu" if values.device.type == "mps" else values.device, torch.float64)


def check_level(level: float) -> None:
    """Raise InputError unless a probability to cover lies strictly between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level is {level}; it must lie strictly between 0 and 1.")


def checked_finite(values: Tensor, name: str) -> Tensor:
    """Return the values as float64; raises InputError when one is NaN or infinite."""
    values = double(values)
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise NotFiniteError(
            f"{name} holds {bad} values that are NaN or infinite; only finite numbers can be measured."
        )
    return values


def checked_probs(probs: Tensor, *, members: bool = False) -> Tensor:
    """Return probabilities as float64; raises InputError for a wrong shape, NaN, or rows that do not sum to 1."""
    name, axes = ("member_probs", "member, batch, class") if members else ("probs", "batch, class")
    probs = checked_finite(probs, name)
    if probs.ndim != 2 + members or not probs.numel():
        raise InputError(f"{name} has shape {tuple(probs.shape)}; it must be ({axes}) and hold at least one row.")
    low, high = float(probs.min()), float(probs.max())
    off = float((probs.sum(-1) - 1).abs().max())
    if low < 0 or high > 1 + _SUM_TOLERANCE or off > _SUM_TOLERANCE:
        raise InputError(
            f"{name} runs from {low:.4g} to {high:.4g} and a row misses the sum 1 by {off:.4g}; it must hold "
            "probabilities over the last axis. Pass logits through softmax first."
        )
    return probs


def checked_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """Return labels (batch,) as int64 next to the probs (..., batch, class); raises InputError when they do not fit them."""
    batch, classes = probs.shape[-2:]
    labels = torch.as_tensor(labels)
    if labels.is_floating_point() or labels.is_complex() or tuple(labels.shape) != (batch,):
        raise InputError(
            f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; it must be whole numbers of shape "
            f"(batch,) = ({batch},), one for each row of the probabilities."
        )
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= classes:
        raise InputError(
            f"labels run from {low} to {high}; with {classes} classes they must lie in 0 ... {classes - 1}."
        )
    return labels.detach().long().to(probs.device)


def checked_weights(weights: Tensor | None, values: Tensor) -> Tensor:
    """Return member weights (member,) of values (member, ...) that sum to 1; uniform when None is given."""
    members = len(values)
    if weights is None:
        return torch.full((members,), 1.0 / members, dtype=torch.float64, device=values.device)
    weights = checked_finite(weights, "weights").to(values.device)
    if tuple(weights.shape) != (members,) or float(weights.min()) < 0 or abs(float(weights.sum()) - 1) > 1e-6:
        raise InputError(
            f"weights has shape {tuple(weights.shape)} and sum {float(weights.sum()):.6g}; it must be (member,) = "
            f"({members},), nothing negative, and sum to 1."
        )
    return weights


def average(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the average over members of float64 values, uniform when no weights are given. Shapes: (member, ...) -> (...)."""
    return torch.einsum("m,m...->...", checked_weights(weights, values), values)


def mixture_log(log_scores: Tensor, weights: Tensor | None) -> Tensor:
    """Return the log of the members' average of exp(log scores), in float64. Shapes: (member, ...) -> (...)."""
    logs = checked_weights(weights, log_scores).log()
    return (log_scores.double() + logs.reshape(-1, *[1] * (log_scores.ndim - 1))).logsumexp(0)


def checked_regression(means: Tensor, variances: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, variances and targets as float64 of matching shapes (variances all 0 when None is given)."""
    given = {
        "means": means,
        "variances": torch.zeros_like(means) if variances is None else variances,
        "targets": targets,
    }
    means, variances, targets = (checked_finite(values, name).to(means.device) for name, values in given.items())
    if means.shape != variances.shape or means.shape[1:] != targets.shape or not means.ndim or not means.numel():
        raise InputError(
            f"means has shape {tuple(means.shape)}, variances {tuple(variances.shape)} and targets {tuple(targets.shape)}; they must be "
            "(member, batch, ...) twice and (batch, ...); expand a shared variance with variances.expand_as(means)."
        )
    if float(variances.min()) < 0:
        raise InputError(f"variances goes down to {float(variances.min()):.4g}; a variance is never negative.")
    return means, variances, targets


def row_chunks(batch: int, *, width: int, elements: int = 1 << 21) -> Iterator[slice]:
    """Yield slices of rows such that rows times width stays near the given number of elements."""
    rows = max(1, elements // max(1, width))
    for start in range(0, batch, rows):
        yield slice(start, min(batch, start + rows))
