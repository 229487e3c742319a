"""Validation by folds: every network is measured on the points that are held out of its own training."""

from collections.abc import Sequence
from typing import Any

import torch

from choral.data.sources import Source
from choral.data.tensors import hashed
from choral.engine.task import Task
from choral.engine.validation import Rules, Validation
from choral.plan.early_stopping import Measure
from choral.plan.state import State


class Folds:
    """Measures networks on the points held out of each.

    Args:
        task: structure, transforms, likelihood, device.
        source: all points, with targets as they are in the data and the part that each belongs to.
        measure: what is measured.
        combine: how members become one prediction.
    """

    def __init__(self, task: Task, source: Source, measure: Measure, combine: str):
        assert source.folds is not None
        self.source, self.part = source, source.folds
        self.count = int(self.part.max()) + 1
        pieces = [source.piece(self.rows(fold)) for fold in range(self.count)]
        self.parts = [Validation(task, piece, measure, combine) for piece in pieces]

    def rows(self, fold: int) -> torch.Tensor:
        """Return the numbers of the points that a fold holds out."""
        return (self.part == fold).nonzero().flatten()

    def values(self, states: Sequence[State], keys: Sequence[int], *, together: bool) -> list[float]:
        """Return the measure of each network on its own points; together, their mean over all points."""
        found = [0.0] * len(states)
        folds = [int(self.part[state.held[0]]) for state in states if state.held is not None]
        assert len(folds) == len(states), "every network holds points out"
        for fold in sorted(set(folds)):
            some = [i for i, own in enumerate(folds) if own == fold]
            values = self.parts[fold].values([states[i] for i in some], [keys[i] for i in some], together=together)
            for i, value in zip(some, values):
                found[i] = value
        if not together:
            return found
        sizes = [self.parts[fold].source.mass() for fold in folds]
        return [sum(v * s for v, s in zip(found, sizes)) / sum(sizes)] * len(states)

    def identity(self, rules: Rules) -> dict[str, Any]:
        """Return what a later call into the same folder must repeat."""
        stop = None if rules.stop is None else rules.stop.to_dict()
        groups = self.source.groups
        held = {} if groups is None else {"groups": hashed([groups.numpy()])}
        return (
            rules.identity(None, None) | held | {"folds": self.count, "stop": stop, "restore_best": rules.restore_best}
        )
