"""How many threads torch's operations get: one for small networks, the user's number for large ones.

Two threads wait for each other after every operation. Below 33 million operations in a forward pass (8 million where products of
many networks go together) that takes longer than they gain: a perceptron of 3 x 128, batch 128, trains 1.27 times slower with two
than with one on a free machine, and 3.7 times on a busy one. The rule looks at sizes alone, so that equal calls give equal bits.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from choral.base.errors import InputError
from choral.base.order import Calls

_SMALL = 1 << 25  # operations of one forward pass below which one thread is enough
_SMALL_STACK = 1 << 23  # the same where products of many networks are one operation


@contextmanager
def using(count: int) -> Iterator[None]:
    """Give torch's operations this many threads within the block, and the user's number afterwards.

    >>> before = torch.get_num_threads()
    >>> with using(3):
    ...     torch.get_num_threads()
    3
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def checked(threads: int | None) -> int | None:
    """Return a number of threads as the user gave it; InputError if it is none."""
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise InputError(f"threads is {threads!r}; give 1 or more, or None to leave the choice to choral.")
    return threads


class Counting(TorchDispatchMode):
    """Counts the floating-point operations of this thread; torch's own counter would put hooks into the modules of all threads.

    Args:
        calls: names the module that operations belong to.
        formulas: of operations, besides those that torch has.

    Attributes:
        total: all operations.
        modules: those of each module, without the modules within it, by kind.
    """

    def __init__(self, calls: Calls | None = None, formulas: Mapping[Any, Any] | None = None):
        super().__init__()
        self._calls, self._formulas = calls, flop_registry | dict(formulas or {})
        self.total, self.modules = 0.0, dict[str, Counter[Any]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            with suppress(Exception):  # a count is not worth an error
                count = formula(*args, **(kwargs or {}), out_val=made)
                self.total += count
                if self._calls is not None and self._calls.stack:
                    self.modules.setdefault(self._calls.name, Counter())[func._overloadpacket] += count
        return made


def operations(network: nn.Module, rows: int, run: Callable[[], Any]) -> float:
    """Return the floating-point operations of one row in a forward pass: every weight is used once, or as torch counts.

    torch knows no formula for recurrent layers.

    >>> layer = nn.Linear(3, 4, bias=False)
    >>> operations(layer, 5, lambda: layer(torch.ones(5, 3)))
    24.0
    """
    with Counting() as counted:
        run()
    return max(counted.total / rows, 2.0 * sum(p.numel() for p in network.parameters()))


def threads_for(operations: float, rows: int, *, together: int = 1) -> int:
    """Return the number of threads for forward passes: one for small ones, all that the user allows for others.

    Args:
        operations: floating-point operations of one row and network.
        rows: of a pass.
        together: networks whose products are one operation.
    """
    small = _SMALL if together == 1 else _SMALL_STACK
    return 1 if operations * together * rows < small else torch.get_num_threads()
