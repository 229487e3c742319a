"""Compute: device, precision, threads, and processes that share each batch. Store: a run folder at a URL.

A batch may be taken in parts (`Parts`), by several processes or one after the other; the gradient is that of the whole batch to rounding.
BatchNorm takes statistics over all processes, and of each part where gradients are accumulated. Only the first process writes.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from choral.base import batches
from choral.base.batches import Batch
from choral.base.devices import is_processor
from choral.base.draws import Part
from choral.base.errors import InputError
from choral.base.values import Count, NotNegative, Positive, Value
from choral.objectives.likelihoods import Likelihood
from choral.plan.cost import batches_in
from choral.plan.phases import Phase
from choral.plan.walk import trainings
from choral.structures.base import Structure

Executor = Literal["auto", "sequential", "vectorized"]
OnExisting = Literal["resume", "overwrite", "extend"]
"""What happens to a run that the folder holds: it continues, it is removed, or members are added to it."""


@dataclass(frozen=True, kw_only=True)
class Compute(Value):
    """Where and how a run is trained. Members do not depend on it, up to rounding and apart from `time_limit`.

    Args:
        device: 'auto' (the first available of CUDA, MPS and the CPU), or a device of torch.
        precision: 'fp32', or 'bf16' by autocast.
        executor: 'sequential', 'vectorized' (members of equal shapes are trained together), or 'auto'.
        threads: threads of torch's operations; None chooses. A resumed run keeps its number.
        time_limit: seconds after which training ends, at the end of an epoch; members not started yet are left out. The same
            call with a larger limit, or none, continues.
        accumulate: number of parts of a batch whose gradients are accumulated, to save memory; BatchNorm uses the statistics of each part.
        data_parallel: split every batch over the processes of torch's default group (`torchrun`), which all make the same call.
        cluster: `choral.Ray()` trains members on a Ray cluster, all of whose machines must be able to access `run_dir`.
        checkpoint_seconds: minimum time between two checkpoints; 0 writes one after every epoch.

    >>> Compute(device="cpu", threads=2).executor
    'auto'
    """

    device: Any = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    executor: Executor = "auto"
    threads: Count | None = None
    time_limit: Positive | None = None
    accumulate: Count = 1
    data_parallel: bool = False
    cluster: Any = None
    checkpoint_seconds: NotNegative = 5.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", str(self.device))
        if self.data_parallel and self.executor == "vectorized":
            raise InputError("executor='vectorized' trains in one process; leave it out with data_parallel=True.")


@dataclass(frozen=True)
class Store(Value):
    """A run folder that is not a path of this machine, and how long to wait for it.

    Args:
        url: any URL of fsspec, such as 's3://bucket/run'.
        timeout_seconds: seconds after which a call has failed.
        tries: number of tries of each call.
        options: storage options of fsspec, such as endpoint_url.

    >>> Store("memory://run").url
    'memory://run'
    """

    url: str
    timeout_seconds: Positive = 60.0
    tries: Count = 4
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "://" not in self.url:
            raise InputError(f"Store: url is {self.url!r}; give one with ://, such as 's3://bucket/run'.")

    def __str__(self) -> str:
        return self.url


def is_far(run_dir: Any) -> bool:
    """Return whether a run folder is a URL rather than a path of this machine."""
    return isinstance(run_dir, Store) or (isinstance(run_dir, str) and "://" in run_dir)


_SMALL = 1 << 25  # operations of one forward pass below which one thread is enough
_SMALL_STACK = 1 << 28  # the same of a stack, whose threads wait for each other in many short products


@cache
def keep_freed_memory() -> None:
    """Let the C library keep 64 MB of freed memory for the next operations, once in a process: LeNet-S trains 1.4 times faster.

    It returns freed memory beyond twice the largest block that it saw freed (of at most 32 MB) to the system, which clears it before it
    gives it again.
    """
    torch.empty((32 << 20) - 8192, dtype=torch.uint8)


@contextmanager
def using(count: int) -> Iterator[None]:
    """Give torch's operations this many threads within the block, and the user's number afterwards."""
    keep_freed_memory()
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(operations: float, rows: int, device: torch.device, *, together: int = 1) -> int:
    """Return the number of threads for forward passes of some rows: one for small ones, all that the user allows for others.

    An MLP of 3 x 128, batch 128, trains 1.27 times slower with two threads than with one, and 3.7 times on a busy machine; a stack of 8
    MLPs of 2 x 256 takes 0.9 of the time on a quiet machine and 2.5 on a busy one.
    `operations` are those of one row and network; `together` counts networks whose products are one operation.
    """
    small = (_SMALL if together == 1 else _SMALL_STACK) if is_processor(device) else 0
    return 1 if operations * together * rows < small else torch.get_num_threads()


T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch, and what they are of it."""

    x: Batch
    y: Tensor
    weights: Tensor | None
    part: Part | None = None  # None for a whole batch
    share: Tensor | float = 1.0  # of the loss


@dataclass(frozen=True)
class Parts:
    """How a batch is taken."""

    accumulate: int = 1  # parts that each process takes one after the other
    rank: int = 0  # number of this process in torch's default group, if processes share each batch
    size: int = 1  # how many there are

    @property
    def writes(self) -> bool:
        """Whether this process writes what the run leaves."""
        return self.rank == 0

    @property
    def environment(self) -> dict[str, int]:
        """What decides the last bits of sums, where it is not the usual."""
        return {n: count for n, count in (("processes", self.size), ("accumulate", self.accumulate)) if count > 1}

    def agreed(self, value: T) -> T:
        """Return the first process's value."""
        held: list[Any] = [value]
        if self.size > 1:
            dist.broadcast_object_list(held)
        return held[0]

    def summed(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        return tensor if self.size == 1 else _Summed.forward(tensor)

    def of(
        self, x: Batch, y: Tensor, weights: Tensor | None, likelihood: Likelihood, part: Part | None
    ) -> Sequence[Piece]:
        """Return this process's part of a batch in pieces; `part` is their place in the batch, None for all of it."""
        begin, whole = (0, len(y)) if part is None else (part.start, part.of)
        cuts = [len(y) * i // self.accumulate for i in range(self.accumulate + 1)]
        found = [
            Piece(
                batches.part(x, slice(a, b)),
                y[a:b],
                None if weights is None else weights[a:b],
                Part(begin + a, b - a, whole),
                (b - a) / whole,
            )
            for a, b in itertools.pairwise(cuts)
            if b > a
        ]
        return self._weighed(found, likelihood, whole, shared=part is not None)

    def _weighed(self, pieces: list[Piece], likelihood: Likelihood, whole: int, *, shared: bool) -> list[Piece]:
        """Return the pieces with shares by the positions that count, where some do not."""
        counted = [likelihood.counted(piece.y.unsqueeze(0)) for piece in pieces]
        if counted[0] is None:
            return pieces
        sums = []
        for piece, mask in zip(pieces, counted):
            assert mask is not None
            each = torch.ones(len(piece.y), device=piece.y.device) if piece.weights is None else piece.weights.float()
            mass = (mask.reshape(1, len(piece.y), -1).float() * each.view(1, -1, 1)).sum()
            sums.append(torch.stack((mass, each.sum())))
        total = torch.stack(sums).sum(0)
        mass, weight = self.summed(total) if shared else total
        least = torch.finfo(torch.float32).tiny
        before = [own[0] / mass.clamp_min(least) * (weight / whole) for own in sums]
        shares = [one * (len(p.y) / own[1].clamp_min(least)) for p, own, one in zip(pieces, sums, before)]
        return [replace(piece, share=share) for piece, share in zip(pieces, shares)]

    def gather(self, params: Mapping[str, Tensor]) -> None:
        """Sum gradients over processes; a parameter that none of them used keeps no gradient."""
        used = self.summed(torch.tensor([float(p.grad is not None) for p in params.values()]))
        flat = [(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in params.values()]
        joined = self.summed(torch.cat(flat))  # of several types in the widest
        for p, grad, times in zip(params.values(), joined.split([t.numel() for t in flat]), used.tolist()):
            if times:  # in the layout of the weights, which the optimizer relies on
                p.grad = torch.empty_like(p).copy_(grad.view(p.shape))

    def share_statistics(self, network: nn.Module) -> None:
        """Average running statistics over processes, if BatchNorm uses the statistics of each part."""
        if self.size == 1 or self.accumulate == 1:
            return
        with torch.no_grad():
            for name, held in network.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    held.copy_(self.summed(held) / self.size)

    def norms(self, part: Part | None) -> AbstractContextManager[Any]:
        """Return the context in which BatchNorm takes the statistics it should."""
        return _WholeNorm(part) if part is not None and self.accumulate == 1 else nullcontext()


class _Summed(torch.autograd.Function):
    """The sum over processes; its gradient is also summed, since each process has its part of the loss. Mapped values are summed at once."""

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Summed.forward(gradients[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], tensor: Tensor) -> tuple[Tensor, int]:
        return _Summed.apply(tensor), in_dims[0]


class _WholeNorm(TorchFunctionMode):
    """Let BatchNorm take means and variances over the rows of all processes."""

    def __init__(self, part: Part):
        super().__init__()
        self.part = part

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._normalized if func is F.batch_norm else func)(*args, **(kwargs or {}))

    def _normalized(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        axes = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        wide = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        count = wide.numel() / wide.shape[1] * self.part.of / self.part.rows
        mean = _Summed.apply(wide.sum(axes)) / count
        centered = wide - mean.view(shape)
        var = _Summed.apply(centered.square().sum(axes)) / count
        with torch.no_grad():
            if running_mean is not None and running_var is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((var * (count / max(count - 1.0, 1.0))).to(running_var.dtype), momentum)
        found = (centered * (var + eps).rsqrt().view(shape)).to(input.dtype)
        if weight is not None:
            found = found * weight.view(shape)
        return found if bias is None else found + bias.view(shape)


def parts_of(compute: Compute) -> Parts:
    """Return how batches are taken; raises InputError where this process belongs to no group."""
    if not compute.data_parallel:
        return Parts(compute.accumulate)
    if not (dist.is_available() and dist.is_initialized()):
        said = "data_parallel=True, but this process belongs to no group"
        raise InputError(f"{said}; start it with torchrun and call torch.distributed.init_process_group first.")
    return Parts(compute.accumulate, dist.get_rank(), dist.get_world_size())


def check_parts(parts: Parts, structure: Structure, points: int, plan: Phase) -> None:
    """Raise InputError, before training, if batches cannot be split."""
    size = parts.size
    if size == 1 and parts.accumulate == 1:
        return
    if not structure.by_row:
        kind = type(structure).__name__
        raise InputError(f"{kind} lays rows out among its members; train without data_parallel and accumulate.")
    for phase in trainings(plan):
        last = points - (batches_in(points, phase.batch_size) - 1) * phase.batch_size if phase.epochs else size
        least = min(phase.batch_size, last)
        if least < size:
            raise InputError(f"a batch of {least} row(s) cannot be shared by {size} processes; change batch_size.")
