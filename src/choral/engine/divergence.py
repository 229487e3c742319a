"""What is wrong with a state that diverged: the loss of an epoch can be finite when its last update is not."""

import torch
from torch import Tensor

from choral.engine.blueprint import Blueprint
from choral.plan.state import State


def unfinite(state: State, blueprint: Blueprint) -> str:
    """Return which weight or buffer of a state holds NaN or infinity, in a few words; nothing if all are finite.

    A buffer may hold infinities by design (a mask of attention): those that a newly built network holds too do not count.
    """
    for name, p in state.params.items():
        if not _is_finite(p):
            return f"{name} holds {_worst(p)}"
    odd = [name for name, b in state.buffers.items() if not _is_finite(b)]
    if odd:
        built = blueprint.fresh(0, "finite").buffers
        for name in odd:
            if name not in built or _is_finite(built[name]):
                return f"the buffer {name} holds {_worst(state.buffers[name])}"
    return ""


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _worst(tensor: Tensor) -> str:
    return "NaN" if bool(tensor.isnan().any()) else "infinity"
