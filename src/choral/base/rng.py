"""Seeds that come from a place: (root seed, path in the plan, purpose) -> key -> generator.

No draw in choral uses a global generator. A key depends on the path alone, never on how many siblings there
are or on who executes them, so branch 3 of 4 equals branch 3 of 40, sequential equals vectorized, and a resumed
run equals an unbroken one. Draws made *inside* a forward pass are in `choral.base.draws`.
"""

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode


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


class _Draws(TorchDispatchMode):
    """Note the operations of the block that draw from a global generator, and lend them one if there is one to lend.

    Modes are seen by their own thread alone.
    """

    def __init__(self, generator: torch.Generator | None = None):
        super().__init__()
        self._generator = generator
        self.names: list[str] = []

    @property
    def count(self) -> int:
        """How many operations have drawn."""
        return len(self.names)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _has_generator(args, kwargs):
            return func(*args, **kwargs)
        if _draws(func, args):
            self.names.append(func.overloadpacket.__name__)
        if self._generator is None:
            return func(*args, **kwargs)
        taking = _taking_generator(func)
        if taking is None or _elsewhere(args, kwargs):
            with _borrowed(self._generator):
                return func(*args, **kwargs)
        return taking(*args, **kwargs | {"generator": self._generator})


def _has_generator(args: Any, kwargs: Any) -> bool:
    return any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values()))


def _taking_generator(func: Any) -> Any | None:
    """Return the overload of an operation that takes a generator, or None."""
    if any(a.name == "generator" for a in func._schema.arguments):
        return func
    given = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        wanted = [(a.name, str(a.type)) for a in other._schema.arguments if a.name != "generator"]
        if wanted == given and len(wanted) < len(other._schema.arguments):
            return other
    return None


def _elsewhere(args: Any, kwargs: Any) -> bool:
    """Return whether an operation runs on a device that a generator of the processor does not serve."""
    devices = [a.device for a in args if isinstance(a, torch.Tensor)] + [torch.device(kwargs.get("device") or "cpu")]
    return any(device.type not in ("cpu", "meta") for device in devices)


_global_generator = threading.Lock()


@contextmanager
def _borrowed(generator: torch.Generator) -> Iterator[None]:
    """Lend torch's global generators to an operation that knows no other; its draws are those of `generator`.

    The one place where choral touches them, one thread at a time; a draw that another thread makes meanwhile outside of choral is
    disturbed.
    """
    with _global_generator, torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        yield


@contextmanager
def seeded(seed: int, *place: int | str) -> Iterator[_Draws]:
    """Make code that is not ours and draws from torch's global generator draw from the generator of a place instead.

    The numbers are those that `torch.manual_seed(key(seed, *place))` would give. The global generator itself is not touched, so
    other threads neither disturb the block nor are disturbed by it.
    """
    with _Draws(generator(seed, *place)) as lent:
        yield lent


_other_generators = threading.RLock()


@contextmanager
def elsewhere(key: int) -> Iterator[None]:
    """Seed the global generators of numpy and Python by a key, for code that is not ours, and give them back as they were.

    One thread at a time; a draw that another thread makes meanwhile outside of choral is disturbed.
    """
    with _other_generators:
        before = np.random.get_state(), random.getstate()
        np.random.seed(key % (1 << 32))
        random.seed(key)
        try:
            yield
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def _draws(func: Any, args: Any) -> bool:
    """Return whether an operation that can draw does: not without values, and some layers for their dropout alone."""
    if any(isinstance(a, torch.Tensor) and a.is_meta for a in args):
        return False
    named = dict(zip((a.name for a in func._schema.arguments), args))
    if func.overloadpacket.__name__.startswith(("lstm", "gru", "rnn_")):
        return bool(named.get("train")) and float(named.get("dropout") or 0) > 0
    if "scaled_dot_product" in func.overloadpacket.__name__:
        return float(named.get("dropout_p") or 0) > 0
    if "rrelu" in func.overloadpacket.__name__:
        return bool(named.get("training"))
    if func.overloadpacket.__name__ == "native_dropout":  # which nested tensors go through in evaluation too
        return named.get("train") is not False
    return True


@contextmanager
def watched() -> Iterator[list[str]]:
    """Note the operations of the block, of this thread alone, that draw from a global generator of torch."""
    with _Draws() as watch:
        yield watch.names
