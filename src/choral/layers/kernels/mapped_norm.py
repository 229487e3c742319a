"""Batch normalisation in training that stays one pass over the data when members are mapped by `torch.func.vmap`.

torch's own rule normalises all members together and then scales and shifts them in passes of their own, forward and
backward. Members are only further channels, so one normalisation with their scales side by side does it all.
"""

from typing import Any

import torch
from torch import Tensor


class _BatchNorm(torch.autograd.Function):
    """Normalisation by the statistics of the batch; also returns the means and the inverse standard deviations."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, ctx.eps = inputs
        _, mean, inverse = output
        ctx.mark_non_differentiable(mean, inverse)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.wanted = [True, weight is not None, bias is not None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        settings = (None, None, mean, inverse, True, ctx.eps, ctx.wanted)
        grads = torch.ops.aten.native_batch_norm_backward(gradient, x, weight, *settings)
        return (*(g if wanted else None for g, wanted in zip(grads, ctx.wanted)), None)

    @staticmethod
    def vmap(
        info: Any, axes: tuple[int | None, ...], x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        members = info.batch_size
        x = x.unsqueeze(1).expand(-1, members, *x.shape[1:]) if axes[0] is None else x.movedim(axes[0], 1)
        scale, shift = (
            None if t is None else (t.repeat(members) if axis is None else t.movedim(axis, 0).flatten())
            for t, axis in ((weight, axes[1]), (bias, axes[2]))
        )
        y, mean, inverse = _BatchNorm.apply(x.flatten(1, 2), scale, shift, eps)
        return (
            y.unflatten(1, (members, -1)),
            mean.unflatten(0, (members, -1)),
            inverse.unflatten(0, (members, -1)),
        ), (1, 0, 0)


def mapped(x: Tensor) -> bool:
    """Return whether x is being transformed by torch.func on a device where this normalisation was measured faster."""
    return torch._C._are_functorch_transforms_active() and x.device.type == "cpu"


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    momentum: float | Tensor,
    eps: float,
) -> Tensor:
    """Return what `F.batch_norm` returns in training, and update the running statistics in place as it does.

    Shapes: x (batch, channel, ...), momentum (), all others (channel,); any of them may have an axis that vmap maps.

    >>> batch_norm(torch.tensor([[0.0], [2.0]]), None, None, None, None, momentum=0.1, eps=0.0).tolist()
    [[-1.0], [1.0]]
    """
    y, mean, inverse = _BatchNorm.apply(x, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            count = x.numel() / x.shape[1]
            unbiased = (inverse.pow(-2) - eps) * (count / (count - 1))
            running_mean.mul_(1 - momentum).add_(mean * momentum)
            running_var.mul_(1 - momentum).add_(unbiased * momentum)
    return y
