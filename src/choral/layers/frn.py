"""Filter response normalization: a normalization that needs no batch and keeps no running statistics."""

from typing import Any

import torch
from torch import Tensor, nn

from choral.base.arguments import typed
from choral.base.errors import InputError


class _Normalize(torch.autograd.Function):
    """The layer's function with a gradient of its own: a third of the passes over the maps that recorded operations take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, tau: Tensor, eps: Tensor) -> Tensor:
        y = x * (weight * _inverse(x, eps)) + bias
        return torch.maximum(y, tau)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, tau, eps = inputs
        ctx.save_for_backward(x, weight, tau, eps, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, tau, eps, output = ctx.saved_tensors
        inverse = _inverse(x, eps)  # again, rather than saved: what depends on the inputs can be differentiated twice
        scale = weight * inverse
        above = torch.ops.aten.threshold_backward(gradient, output - tau, 0)  # zero where tau is what is returned
        along = (above * x).sum((-2, -1), keepdim=True)
        back = along * scale * inverse.square()
        to_x = torch.addcmul(above * scale, x, back, value=-1 / (x.shape[-2] * x.shape[-1]))
        to_bias = above.sum((-2, -1), keepdim=True)
        to_tau = gradient.sum((-2, -1), keepdim=True) - to_bias
        sizes = weight.shape, weight.shape, weight.shape, eps.shape
        parts = [p.sum_to_size(s) for p, s in zip((along * inverse, to_bias, to_tau, -back / 2), sizes)]
        return to_x, *parts


def _inverse(x: Tensor, eps: Tensor) -> Tensor:
    """Return one over the root mean square of every map."""
    return torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + eps)


class FilterResponseNorm(nn.Module):
    """Divide every channel of an image by its root mean square, then scale, shift and threshold it.

    With nu^2 the mean of x^2 over height and width, z = max(gamma * x / sqrt(nu^2 + eps) + beta, tau): each example is
    normalized on its own, so training and evaluation are the same function.

    Args:
        channels: number of channels, at least 1; `weight` is the paper's gamma, `bias` its beta, `tau` its threshold.
        eps: the constant under the root, above 0.
        learned_eps: add the absolute value of one learned scalar (starting at 1e-4) to eps, as the paper advises
            where the maps are as small as 1x1.

    Shapes: (batch, channel, height, width) -> the same.

    Reference: Singh & Krishnan, "Filter Response Normalization Layer", 2020, arXiv:1911.09737, section 3.

    >>> x = torch.tensor([3.0, -4.0]).view(1, 1, 1, 2)  # root mean square 5 / sqrt(2)
    >>> FilterResponseNorm(1, eps=1e-12)(x).flatten()
    tensor([0.8485, 0.0000], grad_fn=<ViewBackward0>)
    """

    @typed
    def __init__(self, channels: int, *, eps: float = 1e-6, learned_eps: bool = False):
        super().__init__()
        if channels < 1 or not eps > 0:
            raise InputError(
                f"FilterResponseNorm: channels={channels!r}, eps={eps!r}; give a count and a number above 0."
            )
        self.channels = channels
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.tau = nn.Parameter(torch.empty(channels))
        self.extra_eps = nn.Parameter(torch.empty(1)) if learned_eps else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set gamma to one, beta and tau to zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.tau)
        if self.extra_eps is not None:
            nn.init.constant_(self.extra_eps, 1e-4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized, thresholded maps."""
        eps = x.new_full((1,), self.eps) if self.extra_eps is None else self.eps + self.extra_eps.abs()
        found: Tensor = _Normalize.apply(x, *(p.view(-1, 1, 1) for p in (self.weight, self.bias, self.tau)), eps)
        return found

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{self.channels}, eps={self.eps}, learned_eps={self.extra_eps is not None}"
