"""Drawn values kept from one call to the next.

What is drawn at a site of a pass depends on its key, its step and the tensors it is made from. Where these stay the same from call to
call, as in prediction, it need not be drawn again: one row of a Bayesian perceptron of 3 x 512, 10 passes, in a tenth of the time.
"""

import threading
from collections.abc import Hashable
from typing import NamedTuple

from torch import Tensor


class Drawn(NamedTuple):
    """A drawn value, what it was made from, and the number of the site after it."""

    value: Tensor
    source: Tensor
    site: int
    version: int  # of the source, which may be written into

    @staticmethod
    def of(value: Tensor, source: Tensor, site: int) -> "Drawn":
        """Return a value drawn from a tensor as it is now."""
        return Drawn(value, source, site, _version(source))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class Kept:
    """Drawn values by their sites, up to a number of bytes; what comes later is drawn anew each time.

    Args:
        most: bytes, at most.
    """

    def __init__(self, most: int):
        self.most, self.bytes = most, 0
        self._held: dict[Hashable, Drawn] = {}
        self._filling = threading.Lock()

    def get(self, place: Hashable, source: Tensor) -> Drawn | None:
        """Return what was drawn at a place from the same tensor."""
        found = self._held.get(place)
        same = found is not None and found.source is source and found.version == _version(source)
        return found if same else None

    def clear(self) -> None:
        """Forget everything."""
        with self._filling:
            self._held, self.bytes = {}, 0

    def put(self, place: Hashable, drawn: Drawn) -> None:
        """Keep a value if there is room."""
        size = drawn.value.numel() * drawn.value.element_size()
        with self._filling:
            if place not in self._held and self.bytes + size <= self.most:
                self._held[place] = drawn
                self.bytes += size
