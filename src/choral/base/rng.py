"""Seeds by place: (root seed, path in the plan, purpose) -> key -> generator.

choral draws from no global generator. A key depends on the path only, so branch 3 of 4 equals branch 3 of 40, and a resumed run equals an
uninterrupted one. Draws *inside* a forward pass are in `choral.base.draws`.
"""

import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Self

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


LOCK = threading.RLock()
"""Global generators are lent to one thread at a time; a draw that another one makes meanwhile outside of choral is disturbed."""


class _Dispatching:
    dispatch: Callable[..., Any]  # (operation, args, kwargs) to the result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, args, kwargs or {})


class DispatchMode(_Dispatching, TorchDispatchMode):
    """A mode whose subclasses define `dispatch`.

    torch hides a class that defines `__torch_dispatch__` itself from its compiler, but imports the compiler for that; so modes have such
    a class only if the compiler is loaded.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Return a new mode."""
        mode: Any = cls
        return super().__new__(_hidden(mode) if "torch._dynamo" in sys.modules else mode)


@cache
def _hidden(mode: type) -> Any:
    return type(mode.__name__, (mode,), {"__torch_dispatch__": _Dispatching.__torch_dispatch__})


class _Lent(DispatchMode):
    """Lends a generator to the operations of the block, in this thread, that draw from a global one, and notes which drew."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self._generator = generator
        self.names: list[str] = []

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation, which draws from the lent generator."""
        given = any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values()))
        if given or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        like = next((a.device for a in args if isinstance(a, torch.Tensor)), kwargs.get("device"))
        device = torch.device(like or "cpu").type
        taking = _taking_generator(func) if device in ("cpu", "meta") else None
        if taking is not None:
            before = self._generator.get_state()
            found = taking(*args, **kwargs | {"generator": self._generator})
            after = self._generator.get_state()
        else:  # it knows no other than the global one, whose draws are then those of the lent one
            states: Any = torch if device in ("cpu", "meta") else torch.get_device_module(device)
            with LOCK, torch.random.fork_rng():
                torch.manual_seed(int(torch.randint(1 << 62, (), generator=self._generator)))
                before = states.get_rng_state()
                found = func(*args, **kwargs)
                after = states.get_rng_state()
        if not torch.equal(before, after):
            self.names.append(func.overloadpacket.__name__)
        return found


def _taking_generator(func: Any) -> Any | None:
    given = [(a.name, str(a.type)) for a in func._schema.arguments if a.name != "generator"]
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        wanted = [(a.name, str(a.type)) for a in other._schema.arguments if a.name != "generator"]
        if wanted == given and len(wanted) < len(other._schema.arguments):
            return other
    return None


@contextmanager
def seeded(seed: int, *place: int | str) -> Iterator[list[str]]:
    """Seed code that draws from torch's global generator with key(seed, *place), without changing the generator; yields the names of functions
    that drew.
    """
    with _Lent(generator(seed, *place)) as lent:
        yield lent.names


class _Global(NamedTuple):
    """How a global generator is read, set and seeded."""

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    seed: Callable[[int], Any]


GLOBAL = {
    "torch": _Global(
        lambda: (torch.get_rng_state(),),
        lambda state: torch.set_rng_state(*state),
        torch.default_generator.manual_seed,
    ),
    "numpy": _Global(np.random.get_state, np.random.set_state, lambda key: np.random.seed(key % (1 << 32))),
    "random": _Global(random.getstate, random.setstate, random.seed),
}


def global_states() -> dict[str, Any]:
    """Return the states of the generators of torch, numpy and Python."""
    with LOCK:  # another thread may have seeded them for a moment
        return {name: generator.get() for name, generator in GLOBAL.items()}


def moved(before: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Return the generators that were used since."""
    with LOCK:
        return {n for n in names if not all(map(np.array_equal, before[n], GLOBAL[n].get()))}


@contextmanager
def elsewhere(key: int) -> Iterator[None]:
    """Seed the global generators of numpy and Python with a key, for user code, and restore them afterwards."""
    with LOCK:
        before = global_states()
        try:
            for name in ("numpy", "random"):
                GLOBAL[name].seed(key)
            yield
        finally:
            for name in ("numpy", "random"):
                GLOBAL[name].put(before[name])
