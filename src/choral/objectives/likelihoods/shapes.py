"""How targets stand to outputs: a missing last axis means one target, and nothing is ever broadcast."""

import torch
from torch import Tensor

from choral.base.errors import InputError


def columns(values: Tensor) -> Tensor:
    """Return (member, batch) as (member, batch, 1); other shapes stay."""
    return values.unsqueeze(-1) if values.dim() == 2 else values


def aligned(targets: Tensor, means: Tensor) -> Tensor:
    """Return targets in the shape of what they are compared with, (member, batch, target, ...).

    A missing target axis is added; anything else that differs is refused, so that no broadcast can hide it.

    >>> aligned(torch.zeros(2, 5), torch.zeros(2, 5, 1)).shape
    torch.Size([2, 5, 1])
    """
    if targets.shape == means.shape:
        return targets
    if targets.dim() == means.dim() - 1 and means.shape[2] == 1:
        targets = targets.unsqueeze(2)
    if targets.shape != means.shape:
        raise InputError(
            f"targets are (batch, ...) = {tuple(targets.shape[1:])} and the network predicts {tuple(means.shape[1:])}; make the "
            "last layer give one mean for each target."
        )
    return targets


def check_real(targets: Tensor, outputs: tuple[int, ...], *, each: int, what: str) -> None:
    """Raise InputError unless so many outputs for each target fit the shapes of both.

    Args:
        targets: (point, ...).
        outputs: shape of the outputs for one point; the first axis holds them.
        each: outputs for one target.
        what: what the outputs of a target are, in words.
    """
    shape = tuple(targets.shape[1:]) or (1,)
    given = outputs or (1,)
    if len(shape) < len(given):
        shape = (1, *shape)
    if given[0] != each * shape[0] or given[1:] != shape[1:]:
        wanted = (each * shape[0], *shape[1:])
        raise InputError(
            f"the network gives outputs of shape {given} for one point and y has targets of shape {shape}; {what} takes "
            f"{wanted}. Change the last layer, or give the likelihood that fits."
        )
    if not targets.is_floating_point():
        return
    if not torch.isfinite(targets).all():
        raise InputError("y holds NaN or infinite values; fill or drop these rows first.")


def check_varied(targets: Tensor) -> None:
    """Raise InputError if every target is the same number: there is nothing to learn."""
    if len(targets) > 1 and bool((targets == targets[:1]).all()):
        raise InputError(
            f"every target in y is {float(targets.flatten()[0]):g}, so there is nothing to learn; check which column y is."
        )
