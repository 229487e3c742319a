"""Layers that draw in a part of the network that all members share."""

from typing import Any

from torch import Tensor, nn

from choral.base import draws
from choral.layers.joint.network import Foldable


class CommonDraws(Foldable):
    """A layer that draws once for all members, so that what they share is computed once.

    Args:
        layer: what draws; taken over.
    """

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer returns under the draws that belong to no member."""
        with draws.common():
            result: Tensor = self.layer(x)
        return result

    def __getattr__(self, name: str) -> Any:
        """Return a setting of the layer: forward code may read it (`dropout.p`)."""
        return getattr(super().__getattr__("layer"), name) if name != "layer" else super().__getattr__(name)

    def plain(self) -> nn.Module:
        """Return the layer."""
        return self.layer
