"""Streams of the members of a joint network: each draws numbers of its own, however members are run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from choral.base.hashing import mix, mix_int, signed
from choral.base.streams import Stream, now, under


class Branch:
    """Streams of the members of a joint network, taken from one site of the running stream; see `branch`."""

    def __init__(self, outer: Stream | None):
        self._outer = outer
        self._words = outer.next_words() if outer else (0, 0)

    @contextmanager
    def member(self, index: int | Tensor) -> Iterator[None]:
        """Give the block the draws of member `index`: an integer, or an int32 scalar mapped by vmap."""
        if self._outer is None:
            yield
            return
        low, high = self._words
        if isinstance(low, int) and isinstance(index, int):
            key: int | Tensor = mix_int(low + index * 0x9E3779B1) | mix_int(high ^ (index * 0x85EBCA77)) << 32
        else:
            index = torch.as_tensor(index, dtype=torch.int32)
            key = torch.stack((mix(low + index * signed(0x9E3779B1)), mix(high ^ (index * signed(0x85EBCA77)))))
        stream = Stream(key, self._outer.step)
        try:
            with under(stream=stream, outer=self._outer):
                yield
        finally:
            self._outer.caught += stream.caught


@contextmanager
def common() -> Iterator[None]:
    """Give the block, within a member's, the draws of the joint network: the same for all members that run together."""
    outer = now().outer
    if outer is None:
        yield
        return
    with under(stream=outer, outer=None):
        yield


def branch() -> Branch:
    """Return streams for the members of a joint network, so that each member draws numbers of its own.

    A member's draws depend on the running key, step and its index alone: not on how many members there are, nor on
    whether they run one after the other or together under vmap. Outside of a `keyed` block it changes nothing.

    >>> from choral.base.draws import keyed, uniform
    >>> with keyed(7):
    ...     members = branch()
    ...     with members.member(0):
    ...         a = uniform((3,), like=torch.zeros(()))
    ...     with members.member(1):
    ...         b = uniform((3,), like=torch.zeros(()))
    >>> torch.equal(a, b)
    False
    """
    return Branch(now().stream)
