"""State: all that the next phase needs of a network."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from torch import Tensor

from choral.base.errors import InputError
from choral.base.types import Params, Slots


class Role(Enum):
    """What the engine does with a slot, besides keeping it."""

    KEPT = "nothing"
    MASK = "weights of the same name are held at zero where it is False"
    SUBSET = "the network is trained on these points alone, given by their numbers"
    HELD = "the network is validated on these points, given by their numbers, and sees them in no other place"
    SHIFT = "it is added to the targets, (point, ...)"


_ROLES: dict[str, Role] = {}


def slot(name: str, role: Role = Role.KEPT) -> str:
    """Declare a slot with a role; return its name.

    >>> slot("mask", Role.MASK)
    'mask'
    """
    if _ROLES.setdefault(name, role) is not role:
        raise InputError(
            f"the slot {name!r} has the role {_ROLES[name].name} already and cannot have {role.name}; give it another name."
        )
    return name


@dataclass(frozen=True)
class State:
    """The weights of one network during a plan.

    Attributes:
        params: trainable tensors by name.
        buffers: the network's buffers by name.
        slots: named extra tensors ('mask', 'anchor', 'mean', ...), each a dict by name; see `Role` for those the engine reads.
        memory: the optimizer state, a flat dict (`plan.optimizers.Stepper.memories`).
        form: how the shapes differ from those of the built network (JSON types), None if they do not.

    Tensors are contiguous here, whatever memory format a network on the device prefers. Files store no other format, and sums over another
    format round differently, so a resumed run would differ from an uninterrupted one.
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

    def playing(self, role: Role) -> Params:
        """Return the tensors of the slots with a role, by name."""
        return {n: t for name, held in self.slots.items() if _ROLES.get(name) is role for n, t in held.items()}

    @property
    def mask(self) -> Params:
        """Masks by name, True for weights in use; weights without a mask are all in use."""
        return self.playing(Role.MASK)

    @property
    def subset(self) -> Tensor | None:
        """Numbers of its training rows, None for all."""
        return next(iter(self.playing(Role.SUBSET).values()), None)

    @property
    def held(self) -> Tensor | None:
        """Numbers of the rows held out of its training, None for none of its own."""
        return next(iter(self.playing(Role.HELD).values()), None)

    @property
    def shift(self) -> Tensor | None:
        """The offset of its training targets, (row, ...)."""
        return next(iter(self.playing(Role.SHIFT).values()), None)

    @property
    def stored(self) -> int:
        """Number of parameters in use, without masked ones."""
        mask = self.mask
        return sum(int(mask[n].sum()) if n in mask else p.numel() for n, p in self.params.items())

    def flat(self) -> dict[str, Tensor]:
        """Return all tensors under 'part/name' keys; `State.from_flat` is the inverse."""
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
