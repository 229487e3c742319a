"""How many threads torch's operations get: one for small networks, the user's number for large ones where it gains.

Two threads wait for each other after every operation. Below 33 million operations in a forward pass (8 million where products of
many networks go together) that took longer than they gained: a perceptron of 3 x 128, batch 128, trains 1.27 times slower with two
than with one on a free machine, and 3.7 times on a busy one. Above it they gain up to 2.0 times on a free machine and lose up to 10
times on a busy one, so that a short trial decides.

`torch.set_num_threads` also sets what every new thread of the process begins with. The functions below it, found in torch's own
library, concern the calling thread alone, which is where torch runs the operations of a forward and a backward pass.
"""

import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from choral.base.errors import InputError

_SMALL = 1 << 25  # operations of one forward pass below which one thread is enough
_SMALL_STACK = 1 << 23  # the same where products of many networks are one operation
_GAIN = 0.9  # of the time of one thread that several may take at most, to be worth their cores
_TRIED = 1 << 29  # operations of a pass in a trial: 6 milliseconds with one thread
_SHARE = 0.05  # of the passes there will be that a trial may cost
_TURNS, _RUNS = 3, 4  # of a trial: several threads must win every turn


@cache
def _setters() -> tuple[Callable[[int], Any], Callable[[int], int]] | None:
    """Return the functions that set the threads of OpenMP and MKL for the calling thread; None where torch has others."""
    try:
        library = ctypes.CDLL(torch._C.__file__)
        return library.omp_set_num_threads, library.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None


def using(count: int) -> AbstractContextManager[None]:
    """Give torch's operations this many threads within the block, and the user's number afterwards.

    It holds for the calling thread. Where torch was built without OpenMP or MKL, threads begun meanwhile by others see it too.

    >>> before = torch.get_num_threads()
    >>> with using(3):
    ...     torch.get_num_threads()
    3
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()  # asked first: torch settles the number of a new thread when it is asked
    return nullcontext() if count == before else _using(count, before)


@contextmanager
def _using(count: int, before: int) -> Iterator[None]:
    setters = _setters()
    if setters is None:
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
        return
    for_openmp, for_mkl = setters
    own = for_mkl(count)
    for_openmp(count)
    try:
        yield
    finally:
        for_openmp(before)
        for_mkl(own)


def checked(threads: int | None) -> int | None:
    """Return a number of threads as the user gave it; InputError if it is none."""
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise InputError(f"threads is {threads!r}; give 1 or more, or None to leave the choice to choral.")
    return threads


class _Counting(TorchDispatchMode):
    """Counts the operations of this thread; torch's own counter would put hooks into the modules of all threads."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=made)
        return made


def operations(network: nn.Module, rows: int, run: Callable[[], Any]) -> float:
    """Return the floating-point operations of one row in a forward pass: every weight is used once, or as torch counts.

    torch knows no formula for recurrent layers.

    >>> layer = nn.Linear(3, 4, bias=False)
    >>> operations(layer, 5, lambda: layer(torch.ones(5, 3)))
    24.0
    """
    with _Counting() as counted:
        run()
    return max(counted.total / rows, 2.0 * sum(p.numel() for p in network.parameters()))


class Threads:
    """Settles how many threads passes get: one for small ones; for others one, or all that the user allows, by a trial.

    The trial is made once for every number the user allows, so that equal passes later get equal threads and sums equal bits.
    """

    def __init__(self) -> None:
        self._gains: dict[int, bool] = {}
        self._trying = threading.Lock()

    def of(
        self,
        operations: float,
        rows: int,
        run: Callable[[int], Any],
        *,
        together: int = 1,
        passes: float = math.inf,
    ) -> int:
        """Return the number of threads for forward passes.

        Args:
            operations: floating-point operations of one row and network.
            rows: of a pass.
            run: takes a pass of some rows.
            together: networks whose products are one operation.
            passes: how many there will be; a few are not worth a trial.
        """
        most, small = torch.get_num_threads(), _SMALL if together == 1 else _SMALL_STACK
        operations *= together
        affordable = _SHARE * passes * operations * rows / (2 * _TURNS * _RUNS)
        if most == 1 or min(operations * rows, affordable) < small:
            return 1
        with self._trying:
            if most not in self._gains:
                tried = max(1, min(rows, round(min(_TRIED, affordable) / operations)))
                self._gains[most] = gain(lambda: run(tried), most)
        return most if self._gains[most] else 1


def gain(run: Callable[[], Any], many: int) -> bool:
    """Return whether many threads are faster than one by a tenth, on this machine as busy as it is now."""
    return all(_time(run, many) < _GAIN * _time(run, 1) for _ in range(_TURNS))


def _time(run: Callable[[], Any], count: int) -> float:
    """Return the seconds of some runs; the longest is left out, as one that was interrupted."""
    seconds = []
    with using(count):
        run()  # wakes the threads and finds the caches of the other number
        for _ in range(_RUNS):
            started = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - started)
    return sum(sorted(seconds)[:-1])
