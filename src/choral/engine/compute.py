"""Compute: where a run is trained, and how its arithmetic is done. Store: a run folder at a URL."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from choral.base.errors import InputError
from choral.base.order import Calls
from choral.base.rng import DispatchMode
from choral.objectives.limits import COUNT, NOT_NEGATIVE, Limit, Limited, Limits

Executor = Literal["auto", "sequential", "vectorized"]
OnExisting = Literal["resume", "overwrite", "extend"]
"""What happens to a run that the folder holds: it continues, it is removed, or members are added to it."""


_SECONDS = Limit(lambda given: 0 < given < math.inf, "a number of seconds above 0")


@dataclass(frozen=True, kw_only=True)
class Compute(Limited):
    """Where and how a run is trained. Up to rounding, and apart from `time_limit`, the members do not depend on it.

    Args:
        device: 'auto' (the first available of CUDA, MPS and the CPU), or a device of torch.
        precision: 'fp32', or 'bf16' by autocast.
        executor: 'sequential', 'vectorized' (members of equal shapes are trained together), or 'auto'.
        threads: threads of torch's operations; None chooses. A resumed run keeps its number.
        time_limit: seconds after which training ends, at the end of an epoch; members that were not started are left out. The same
            call with a larger limit, or none, continues.
        accumulate: parts of a batch whose gradients are accumulated, for less memory; BatchNorm takes statistics of each part.
        data_parallel: whether the processes of torch's default group (`torchrun`) share every batch; each makes the same call.
        cluster: `choral.Ray()` trains members on a Ray cluster; `run_dir` must be visible to all its machines.
        checkpoint_seconds: least time between two checkpoints; 0 takes one after every epoch.

    >>> Compute(device="cpu", threads=2).executor
    'auto'
    """

    limits: ClassVar[Limits] = {
        "threads": COUNT,
        "accumulate": COUNT,
        "time_limit": _SECONDS,
        "checkpoint_seconds": NOT_NEGATIVE,
    }

    device: Any = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    executor: Executor = "auto"
    threads: int | None = None
    time_limit: float | None = None
    accumulate: int = 1
    data_parallel: bool = False
    cluster: Any = None
    checkpoint_seconds: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.device, str | torch.device):
            raise InputError(f"device is {self.device!r}; give 'auto', 'cpu' or a present 'cuda'.")
        object.__setattr__(self, "device", str(self.device))
        if self.data_parallel and self.executor == "vectorized":
            raise InputError(
                "executor='vectorized' trains stacks of networks in one process; with data_parallel=True leave it out."
            )


@dataclass(frozen=True)
class Store(Limited):
    """A run folder that is not a path of this machine, and how long it is waited for.

    Args:
        url: as fsspec knows it, such as 's3://bucket/run'.
        timeout_seconds: after which a call counts as failed.
        tries: of each call, before it is an error.
        options: what the file system is told, such as endpoint_url; the words of fsspec's storage options.

    >>> Store("memory://run").url
    'memory://run'
    """

    limits: ClassVar[Limits] = {"timeout_seconds": _SECONDS, "tries": COUNT}

    url: str
    timeout_seconds: float = 60.0
    tries: int = 4
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "://" not in self.url:
            raise InputError(
                f"Store: url is {self.url!r}; give one with ://, such as 's3://bucket/run', or a path as run_dir."
            )

    def __str__(self) -> str:
        return self.url


def is_far(run_dir: Any) -> bool:
    """Return whether a run folder is a URL rather than a path of this machine."""
    return isinstance(run_dir, Store) or (isinstance(run_dir, str) and "://" in run_dir)


_SMALL = 1 << 25  # operations of one forward pass below which one thread is enough
_SMALL_STACK = 1 << 23  # the same where products of many networks are one operation


@contextmanager
def using(count: int) -> Iterator[None]:
    """Give torch's operations this many threads within the block, and the user's number afterwards."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Counting(DispatchMode):
    """Counts floating-point operations of this thread: in all, and of each module named by `calls` without the modules within it."""

    def __init__(self, calls: Calls | None = None, formulas: Mapping[Any, Any] | None = None):
        super().__init__()
        self._calls, self._formulas = calls, flop_registry | dict(formulas or {})
        self.total, self.modules = 0.0, dict[str, Counter[Any]]()

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Count an operation."""
        made = func(*args, **kwargs)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            with suppress(
                AssertionError, IndexError, TypeError, ValueError
            ):  # of shapes that a formula is not made for
                count = formula(*args, **kwargs, out_val=made)
                self.total += count
                if self._calls is not None and self._calls.stack:
                    self.modules.setdefault(self._calls.name, Counter())[func._overloadpacket] += count
        return made


def operations(network: nn.Module, counted: "Counting", rows: int) -> float:
    """Return the floating-point operations of one row in a forward pass: every weight is used once (recurrent layers), or as torch counts."""
    return max(counted.total / max(rows, 1), 2.0 * sum(p.numel() for p in network.parameters()))


def threads_for(operations: float, rows: int, *, together: int = 1) -> int:
    """Return the number of threads for forward passes of some rows: one for small ones, all that the user allows for others.

    Threads wait for each other after every operation: an MLP of 3 x 128, batch 128, trains 1.27 times slower with two than with
    one on a free machine, and 3.7 times on a busy one. The rule looks at sizes alone, so that equal calls give equal bits.
    `operations` are those of one row and network; `together` counts networks whose products are one operation.
    """
    small = _SMALL if together == 1 else _SMALL_STACK
    return 1 if operations * together * rows < small else torch.get_num_threads()
