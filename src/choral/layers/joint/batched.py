"""The linear maps of all members as one batched matrix product, with gradients in the layout of the weights."""

from typing import Any

import torch
from torch import Tensor


class _BatchedLinear(torch.autograd.Function):
    """x W^T + b for every member.

    Written by hand because autograd's rule for `baddbmm` gives the gradient of W^T: turning it around costs a strided copy
    of all weights in every step.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = torch.bmm(x, weight.mT)
        return y if bias is None else y.add_(bias.unsqueeze(1))  # baddbmm first writes the bias everywhere

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if needs[0] else None,
            torch.bmm(gradient.mT, x) if needs[1] else None,
            gradient.sum(1) if needs[2] else None,
        )


def by_hand(x: Tensor) -> bool:
    """Return whether gradients written by hand may be used: transforms of torch.func and autocast need plain formulas."""
    transformed = torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled(x.device.type)
    return torch.is_grad_enabled() and not transformed


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b for every member.

    Shapes: x (member, row, input), weight (member, output, input), bias (member, output) -> (member, row, output).

    >>> batched_linear(torch.ones(2, 1, 3), torch.ones(2, 4, 3), None)[0, 0, 0].item()
    3.0
    """
    if by_hand(x):
        return _BatchedLinear.apply(x, weight, bias)
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
