"""BatchNorm statistics for each of a fixed number of passes, where what comes before is drawn anew in every pass.

Running statistics are averages over draws, and fit none of them: behind a layer drawn from components each draw has means and
variances of its own. Passes at prediction are numbered and their draws follow from their numbers, so the statistics of each can be
estimated once after training and kept with the weights.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.base import draws
from choral.layers.functional import BATCH_NORMS, Tensors, emptied, filled, operate, own_kind


def keeps_statistics(layer: nn.Module) -> bool:
    """Return whether a layer is a BatchNorm with running statistics."""
    return own_kind(layer, BATCH_NORMS) is not None and layer._buffers.get("running_mean") is not None


class DrawnStatistics(nn.Module):
    """Means and variances by pass, used once they are known; before, the running ones are.

    Args:
        passes: how many numbered passes.
        like: running means, for their number and kind.

    Shapes: mean and var (pass, channel).
    """

    mean: Tensor
    var: Tensor
    known: Tensor

    def __init__(self, passes: int, like: Tensor):
        super().__init__()
        self.passes = passes
        self.number: int | None = None  # the pass being estimated
        self._seen = 0
        self.register_buffer("mean", torch.zeros(passes, *like.shape, dtype=like.dtype, device=like.device))
        self.register_buffer("var", torch.ones(passes, *like.shape, dtype=like.dtype, device=like.device))
        self.register_buffer("known", torch.zeros((), dtype=torch.bool, device=like.device))

    def begin(self, number: int) -> None:
        """Estimate the statistics of a pass from now on: an average in which every batch counts the same."""
        self.number, self._seen = number, 0

    def end(self) -> None:
        """Use what was estimated."""
        self.number = None
        self.known.fill_(True)

    def normalize(self, layer: Any, x: Tensor, tensors: Tensors) -> Tensor:
        """Return the layer's output in evaluation with the statistics of the running pass.

        Args:
            layer: the BatchNorm, for its settings.
            x: its input.
            tensors: its scale, shift and running statistics.
        """
        if self.number is not None:
            self._seen += 1
            own = self.mean[self.number], self.var[self.number]
            return F.batch_norm(x, *own, tensors["weight"], tensors["bias"], True, 1 / self._seen, layer.eps)
        number = draws.step()
        if number is not None:
            tensors = {
                **tensors,
                "running_mean": self._of(self.mean, number, tensors["running_mean"]),
                "running_var": self._of(self.var, number, tensors["running_var"]),
            }
        return operate(layer, x, tensors, training=False)

    def _of(self, rows: Tensor, number: int | Tensor, running: Tensor | None) -> Tensor:
        assert running is not None
        if isinstance(number, int):
            return torch.where(self.known, rows[number % self.passes], running)
        picked = rows.index_select(0, number.remainder(self.passes).reshape(1).long()).squeeze(0)
        return torch.where(self.known, picked, running)


class DrawnNorm(nn.Module):
    """A BatchNorm that is shared by all draws and has statistics for each pass.

    Args:
        layer: the BatchNorm; its tensors become this layer's own.
        passes: see `DrawnStatistics`.
    """

    def __init__(self, layer: nn.Module, *, passes: int):
        super().__init__()
        self._plain = (emptied(layer),)
        for name, p in layer._parameters.items():
            self.register_parameter(name, p)
        for name, b in layer._buffers.items():
            self.register_buffer(name, b, persistent=name not in layer._non_persistent_buffers_set)
        assert isinstance(layer.running_mean, Tensor)
        self.drawn = DrawnStatistics(passes, layer.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        """Return what BatchNorm returns."""
        tensors = {**self._parameters, **self._buffers}
        if self.training:
            return operate(self._plain[0], x, tensors, training=True)
        return self.drawn.normalize(self._plain[0], x, tensors)

    def plain(self) -> nn.Module:
        """Return the BatchNorm with its running statistics."""
        return filled(self._plain[0], {**self._parameters, **self._buffers})
