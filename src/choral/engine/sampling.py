"""Which training points a network sees, in which order, and with which targets."""

from collections.abc import Sequence

import torch

from choral.base import rng
from choral.base.draws import Part
from choral.data.sources import Source
from choral.data.tensors import Sampling, bounds
from choral.plan.state import State
from choral.structures.base import Structure


def target_shift(states: Sequence[State]) -> torch.Tensor | None:
    """Return what is added to the targets, (point, ...) for one branch and (branch, point, ...) for several."""
    values = [state.shift for state in states if state.shift is not None]
    return None if not values else values[0] if len(states) == 1 else torch.stack(values)


def weights_of(source: Source, subsets: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the weights of all points, (point,) for one branch and (branch, point) for several; None if all count alike.

    They average 1 over the points that a branch is trained on.
    """
    held = source.weights
    if held is None:
        return None
    each = [held / (held if s is None else held[s]).mean() for s in subsets]
    return each[0] if len(each) == 1 else torch.stack(each)


def parts_in(points: int, batch_size: int, among: tuple[int, int]) -> list[tuple[int, Part | None]]:
    """Return where this process's part of each batch begins in the order, and which rows of the batch it is.

    >>> parts_in(10, 6, (1, 2))
    [(3, Part(start=3, rows=3, of=6)), (8, Part(start=2, rows=2, of=4))]
    """
    whole, own = bounds(points, batch_size), bounds(points, batch_size, among)
    if among[1] == 1:
        return [(a, None) for a, _ in whole]
    return [(c, Part(c - a, d - c, b - a)) for (a, b), (c, d) in zip(whole, own)]


def for_members(values: torch.Tensor, structure: Structure, *, stacked: bool) -> torch.Tensor:
    """Return values (..., point) or (branch, ...) for structures whose members have batches of their own: a row for each of them.

    Shapes: (point, ...) -> (member, point, ...); stacked, (branch, point, ...) -> (branch * member, point, ...).
    """
    if not structure.own_batches:
        return values
    if not stacked:
        return values.expand(structure.members, *values.shape)
    return values.repeat_interleave(structure.members, 0)


def picked(shift: torch.Tensor, order: torch.Tensor, start: int, y: torch.Tensor) -> torch.Tensor:
    """Return the shift, or weights, of the points of one batch, which begins at `start` of the order."""
    if order.dim() == 1:
        return shift[order[start : start + len(y)]]
    index = order[:, start : start + y.shape[1]]
    return shift[torch.arange(len(order)).unsqueeze(1), index]


def order_of(
    key: int, epoch: int, points: int, subset: torch.Tensor | None, sampling: Sampling | None = None
) -> torch.Tensor:
    """Return the points in the order of one epoch: each once, or as a rule draws them."""
    generator = rng.generator(key, "order", epoch)
    order = torch.randperm(points, generator=generator) if sampling is None else sampling.order(generator, subset)
    return order if subset is None else subset[order]
