"""What an optimizer remembers of its parameters: taken out, put back, stacked, and laid out in memory as they are."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from choral.plan.optimizers import COUNTS


def lie_alike(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one shape lie in memory in the same order (an axis of length 1 has no order)."""
    return all(m == n or size == 1 for m, n, size in zip(a.stride(), b.stride(), a.shape))


def laid_out_like(p: Tensor, value: Tensor) -> Tensor:
    """Return a copy of a value that lies in memory as the parameter does: fused kernels pair numbers by address.

    >>> weight = torch.empty(4, 3, 2, 2).to(memory_format=torch.channels_last)
    >>> laid_out_like(weight, torch.zeros(4, 3, 2, 2)).stride() == weight.stride()
    True
    """
    return torch.empty_like(p, requires_grad=False).copy_(value)


def memory_of(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's memory as a flat dict 'entry/parameter name' -> tensor."""
    memory: dict[str, Tensor] = {}
    for name, p in params.items():
        for entry, value in optimizer.state.get(p, {}).items():
            if isinstance(value, Tensor):
                memory[f"{entry}/{name}"] = value.detach().clone()
    return memory


def restore_memory(
    optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], memory: Mapping[str, Tensor]
) -> None:
    """Put a memory taken by `memory_of` into a new optimizer over the same parameters."""
    for full, value in memory.items():
        entry, name = full.split("/", 1)
        p = params.get(name)
        if p is None:  # frozen since the memory was made
            continue
        if entry in COUNTS:  # kernels of a device read them there
            fused = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
            optimizer.state[p][entry] = value.detach().clone().to(p.device if fused else "cpu")
        else:
            optimizer.state[p][entry] = laid_out_like(p, value.detach())


def steps_of(memory: Mapping[str, Tensor]) -> tuple[tuple[str, float], ...]:
    """Return the steps that a memory says were taken of each parameter."""
    return tuple(sorted((full, float(t)) for full, t in memory.items() if full.split("/", 1)[0] in COUNTS))


def stack_memory(memories: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the memory of the stacked parameters of several networks; they have taken the same number of steps.

    A network that remembers nothing where another does (no momentum) is as one that remembers zeros.
    """
    known = {full: value for memory in memories for full, value in memory.items()}
    return {
        full: one
        if full.split("/", 1)[0] in COUNTS
        else torch.stack([memory[full] if full in memory else torch.zeros_like(one) for memory in memories])
        for full, one in known.items()
    }


def unstack_memory(memory: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """Return the memory of each of `count` networks whose parameters were stacked."""
    return [
        {full: (t if full.split("/", 1)[0] in COUNTS else t[i]).clone() for full, t in memory.items()}
        for i in range(count)
    ]
