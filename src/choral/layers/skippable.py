"""A layer that each network of a stack may have or pass over, so that networks of different depths have equal shapes."""

import torch
from torch import Tensor, nn


class Skippable(nn.Module):
    """A layer, or nothing, as the buffer `used` says; inputs and outputs have equal shapes.

    >>> layer = Skippable(nn.Linear(2, 2))
    >>> layer.used.fill_(False)
    tensor(False)
    >>> layer(torch.ones(1, 2)).tolist()
    [[1.0, 1.0]]
    """

    used: Tensor

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.register_buffer("used", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer makes of x, or x."""
        return torch.where(self.used, self.layer(x), x)
