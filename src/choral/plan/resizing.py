"""Resize: branches of a fork that differ in depth and width, in networks of equal shapes."""

import itertools
from dataclasses import dataclass

import torch
from torch import nn

from choral.base.errors import PlanError
from choral.base.types import Params
from choral.layers.skippable import Skippable
from choral.plan.phases import Context, Operator
from choral.plan.sparse import MASK, both_masks
from choral.plan.state import State


@dataclass(frozen=True, kw_only=True)
class Resize(Operator):
    """Cut a network to the depth and width of its branch's variant; what is cut stays in place, unused, so that branches stack.

    `depth` counts hidden layers: the first is always there, and of the others (`Skippable`) as many are used as are left. `width`
    counts units of each hidden layer: weights of the others are held at zero. A variant without them, or a network without such
    layers for the depth, leaves the network as it is.
    """

    @property
    def reads(self) -> tuple[str, ...]:
        """Depth and width."""
        return ("depth", "width")

    @property
    def gives(self) -> tuple[str, ...]:
        """The mask of units that are cut."""
        return ()

    def apply(self, state: State, context: Context) -> State:
        """Return the state with layers switched off and units masked."""
        depth, width = context.variant.get("depth"), context.variant.get("width")
        network = context.network(state)
        if depth is not None:
            blocks = [name for name, m in network.named_modules() if isinstance(m, Skippable)]
            used = {f"{name}.used": torch.tensor(i < depth - 1) for i, name in enumerate(blocks)}
            state = state.having(buffers=state.buffers | used)
        if width is not None:
            state = state.with_slots(**{MASK: both_masks(state.mask, _masks(network, int(width)))})
        return state


def _masks(network: nn.Module, width: int) -> Params:
    """Return masks of a chain of linear maps in which units from `width` on are cut."""
    chain = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    found: Params = {}
    for (name, one), (after, other) in itertools.pairwise(chain):
        if one.out_features != other.in_features:
            raise PlanError(
                f"Resize: layer {after!r} reads {other.in_features} numbers, but {name!r} before it gives {one.out_features}; a width can be cut "
                "in plain chains of linear maps only."
            )
        units = torch.arange(one.out_features) < width
        found[f"{name}.weight"] = found.get(
            f"{name}.weight", torch.ones_like(one.weight, dtype=torch.bool)
        ) & units.unsqueeze(1)
        found[f"{after}.weight"] = torch.ones_like(other.weight, dtype=torch.bool) & units
        if one.bias is not None:
            found[f"{name}.bias"] = units
    return found
