"""State: everything the next phase needs of one network, and nothing else."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from choral.base.types import Params, Slots


@dataclass(frozen=True)
class State:
    """The weights of one network on their way through a plan.

    Attributes:
        params: trainable tensors by name.
        buffers: the network's buffers by name.
        slots: named extra tensors: 'mask' (held at zero where False), 'anchor', 'mean', ... each a dict by name.
        memory: the optimiser's memory, a flat dict (`plan.optimiser.memory_of`).
        form: how this network's shapes differ from the built one (JSON types), None if they do not.

    Tensors are in plain memory order here, whatever order a network on the device prefers: files know no other, and sums
    over another order round differently, so that a resumed run would part from an unbroken one.
    """

    params: Params
    buffers: Params
    slots: Slots = field(default_factory=dict)
    memory: Params = field(default_factory=dict)
    form: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        # one order of names everywhere, so that operators draw in the same order before and after a resume
        for part in ("params", "buffers", "memory"):
            object.__setattr__(self, part, _settled(getattr(self, part)))
        object.__setattr__(self, "slots", {s: _settled(v) for s, v in sorted(self.slots.items())})

    def having(self, **changes: Any) -> "State":
        """Return the state with some fields replaced."""
        return replace(self, **changes)

    def with_slots(self, **slots: Params) -> "State":
        """Return the state with these slots set."""
        return replace(self, slots=self.slots | slots)

    @property
    def stored(self) -> int:
        """Parameters that are at work: masked ones do not count."""
        mask = self.slots.get("mask", {})
        return sum(int(mask[n].sum()) if n in mask else p.numel() for n, p in self.params.items())

    def flat(self) -> dict[str, Tensor]:
        """Return all tensors under 'part/name' keys; `State.from_flat` is the way back."""
        tensors = {f"params/{n}": t for n, t in self.params.items()}
        tensors |= {f"buffers/{n}": t for n, t in self.buffers.items()}
        tensors |= {f"memory/{n}": t for n, t in self.memory.items()}
        for slot, values in self.slots.items():
            tensors |= {f"slots/{slot}/{n}": t for n, t in values.items()}
        return tensors

    @staticmethod
    def from_flat(tensors: dict[str, Tensor], form: dict[str, Any] | None = None) -> "State":
        """Return the state whose `flat` gave these tensors."""
        parts: dict[str, Params] = {"params": {}, "buffers": {}, "memory": {}}
        slots: Slots = {}
        for full, tensor in tensors.items():
            part, name = full.split("/", 1)
            if part == "slots":
                slot, name = name.split("/", 1)
                slots.setdefault(slot, {})[name] = tensor
            else:
                parts[part][name] = tensor
        return State(parts["params"], parts["buffers"], slots, parts["memory"], form)


def _settled(tensors: Params) -> Params:
    return {name: tensors[name].contiguous() for name in sorted(tensors)}
