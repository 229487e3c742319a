"""Seeds that come from a place: (root seed, path in the plan, purpose) -> key -> generator.

No draw in choral uses a global generator. A key depends on the path alone, never on how many siblings there
are or on who executes them, so branch 3 of 4 equals branch 3 of 40, sequential equals vectorised, and a resumed
run equals an unbroken one. Draws made *inside* a forward pass are in `choral.draws`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

Place = tuple[int | str, ...]


def key(seed: int, *place: int | str) -> int:
    """Return the 63-bit key of a place under a root seed.

    >>> key(0, "fork", 3) == key(0, "fork", 3), key(0, "fork", 3) == key(0, "fork", 4)
    (True, False)
    >>> key(0, 1, 23) == key(0, 12, 3)
    False
    """
    text = repr((int(seed), *place)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *place: int | str) -> torch.Generator:
    """Return a CPU generator seeded by the key of a place."""
    return torch.Generator().manual_seed(key(seed, *place))


@contextmanager
def seeded(seed: int, *place: int | str) -> Iterator[None]:
    """Seed torch's global CPU generator for a block and restore it afterwards.

    Only for code that is not ours and draws from the global generator: a user's network factory.
    """
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(key(seed, *place))
        yield
