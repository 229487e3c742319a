"""Loss scaling: half precision loses small gradients, so losses are multiplied before the backward pass and gradients divided after it."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

NAME = "loss_scale/"  # in a branch's memory, beside what the optimizer remembers
_FIRST, _LEAST, _PATIENCE = 2.0**16, 2.0**-14, 2000  # the scale doubles after so many steps in which nothing overflowed


class LossScale:
    """The factor of one network's losses; a step whose gradients overflow is left out and halves it.

    Args:
        memory: what a branch remembers; its scale is taken up again.

    >>> scale = LossScale({})
    >>> weight = torch.zeros(1, requires_grad=True)
    >>> (scale.factor * 3 * weight).sum().backward()
    >>> scale.divide([weight]), float(weight.grad)
    (True, 3.0)
    """

    def __init__(self, memory: Mapping[str, Tensor]):
        held: tuple[float, float] = tuple(memory[NAME].tolist()) if NAME in memory else (_FIRST, 0.0)
        self.factor, self._good = held

    def divide(self, params: Iterable[Tensor]) -> bool:
        """Divide the gradients in place; return whether they are finite, so that a step can be taken."""
        grads = [p.grad for p in params if p.grad is not None]
        torch._foreach_mul_(grads, 1 / self.factor)
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(grads, float("inf"))])
        finite = bool(norms.isfinite().all())
        self._good = self._good + 1 if finite else 0.0
        if not finite:
            self.factor = max(self.factor / 2, _LEAST)
        elif self._good >= _PATIENCE:
            self.factor, self._good = self.factor * 2, 0.0
        return finite

    def memory(self) -> dict[str, Tensor]:
        """Return what must be remembered."""
        return {NAME: torch.tensor([self.factor, self._good], dtype=torch.float64)}
