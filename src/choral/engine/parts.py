"""Batches taken in parts: by several processes at once, or by one process one part after the other.

Each part has the draws, the share of the loss and, between processes, the BatchNorm statistics that its rows have in the whole
batch, so the gradient is that of the whole batch to rounding. Processes take the same steps on the summed gradient and so hold the
same weights; only the first one writes.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from choral.base import batches, draws, rng
from choral.base.batches import Batch
from choral.base.draws import Part
from choral.base.errors import InputError
from choral.engine.compute import Compute
from choral.objectives.likelihoods import Likelihood
from choral.plan.cost import batches_in
from choral.plan.phases import Phase
from choral.plan.walk import trainings
from choral.structures.base import Structure

T = TypeVar("T")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of BatchNorm."""


@dataclass(frozen=True)
class Group:
    """The processes that train together: torch's default process group."""

    rank: int
    size: int

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes, in place."""
        dist.all_reduce(tensor)
        return tensor

    def agreed(self, value: T) -> T:
        """Return the first process's value in all of them."""
        held: list[Any] = [value]
        dist.broadcast_object_list(held)
        return held[0]


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch, and what they are of it."""

    x: Batch
    y: Tensor
    weights: Tensor | None
    part: Part | None  # None for a whole batch
    share: Tensor | float  # of the loss
    first: bool  # whether penalties are counted with this one


@dataclass(frozen=True)
class Parts:
    """How a batch is taken.

    Args:
        accumulate: parts that each process takes one after the other.
        group: the processes that share each batch; None for one.
        whole_norm: whether BatchNorm takes statistics of the whole batch, or of each part.
    """

    accumulate: int = 1
    group: Group | None = None
    whole_norm: bool = True

    @property
    def writes(self) -> bool:
        """Whether this process writes what the run leaves."""
        return self.group is None or self.group.rank == 0

    @property
    def among(self) -> tuple[int, int]:
        """Number of this process, and how many there are."""
        return (0, 1) if self.group is None else (self.group.rank, self.group.size)

    @property
    def environment(self) -> dict[str, int]:
        """What decides the last bits of sums, where it is not the usual."""
        found = {"processes": self.among[1], "accumulate": self.accumulate}
        return {name: count for name, count in found.items() if count > 1}

    def agreed(self, value: T) -> T:
        """Return the first process's value."""
        return value if self.group is None else self.group.agreed(value)

    def summed(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        return tensor if self.group is None else self.group.total(tensor.clone())

    def of(
        self, x: Batch, y: Tensor, weights: Tensor | None, likelihood: Likelihood, part: Part | None
    ) -> Sequence[Piece]:
        """Return a batch in parts.

        Args:
            x, y, weights: what this process is given of the batch.
            likelihood: what the loss is a mean of.
            part: where that lies in the batch; None if it is all of it.
        """
        if part is None and self.accumulate == 1:
            return (Piece(x, y, weights, None, 1.0, first=True),)
        begin, whole = (0, len(y)) if part is None else (part.start, part.of)
        cuts = [len(y) * i // self.accumulate for i in range(self.accumulate + 1)]
        found = [
            Piece(
                batches.part(x, slice(a, b)),
                y[a:b],
                None if weights is None else weights[a:b],
                Part(begin + a, b - a, whole),
                (b - a) / whole,
                first=begin + a == 0,
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
        return [
            Piece(
                piece.x,
                piece.y,
                piece.weights,
                piece.part,
                own[0] / mass.clamp_min(least) * (weight / whole) * (len(piece.y) / own[1].clamp_min(least)),
                first=piece.first,
            )
            for piece, own in zip(pieces, sums)
        ]

    def gather(self, params: Mapping[str, Tensor]) -> None:
        """Give every process the sum of the gradients; a parameter that none of them used keeps none."""
        if self.group is None:
            return
        used = torch.tensor([float(p.grad is not None) for p in params.values()])
        flat = [(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in params.values()]
        by_type: dict[torch.dtype, list[int]] = {}
        for i, t in enumerate(flat):
            by_type.setdefault(t.dtype, []).append(i)
        self.group.total(used)
        for numbers in by_type.values():
            joined = self.group.total(torch.cat([flat[i] for i in numbers]))
            for i, own in zip(numbers, joined.split([flat[i].numel() for i in numbers])):
                flat[i] = own
        for p, grad, times in zip(params.values(), flat, used.tolist()):
            if times:
                made = torch.empty_like(p)  # in the layout of the weights, which the optimizer relies on
                made.copy_(grad.view(p.shape))
                p.grad = made

    def share_statistics(self, network: nn.Module) -> None:
        """Give every process the mean of the running statistics, where BatchNorm takes those of each part: all hold one network."""
        if self.group is None or self.whole_norm:
            return
        with torch.no_grad():
            for name, held in network.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    held.copy_(
                        self.group.total(held.detach().clone(memory_format=torch.contiguous_format)) / self.group.size
                    )

    def norms(self, part: Part | None) -> AbstractContextManager[Any]:
        """Return the context in which BatchNorm takes the statistics it should."""
        return _WholeNorm(part) if self.group is not None and part is not None and self.whole_norm else nullcontext()


class _Summed(torch.autograd.Function):
    """The sum over processes; so is its gradient, since each process has its own part of the loss. What vmap maps is summed at once."""

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
        if func is not F.batch_norm:
            return func(*args, **(kwargs or {}))
        return self._normalized(*args, **(kwargs or {}))

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
    group = None
    if compute.data_parallel:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "data_parallel=True, but this process belongs to no group; start it with torchrun and call "
                "torch.distributed.init_process_group('gloo') first ('nccl' on GPUs), or use the shell: torchrun -m choral fit ..."
            )
        group = Group(dist.get_rank(), dist.get_world_size())
    return Parts(compute.accumulate, group, compute.batch_norm == "whole")


def check_parts(parts: Parts, structure: Structure, network: nn.Module, points: int, plan: Phase) -> None:
    """Raise InputError, before anything is trained, where batches cannot be taken in parts."""
    size = parts.among[1]
    if size == 1 and parts.accumulate == 1:
        return
    if not structure.by_row:
        raise InputError(
            f"{type(structure).__name__} lays rows of a batch out among its members, so a part of a batch is not a part of what they "
            "read; train without data_parallel and accumulate, or use another method."
        )
    if parts.accumulate > 1 and parts.whole_norm and _normalizes(network):
        raise InputError(
            f"accumulate={parts.accumulate}, but the network has BatchNorm, whose statistics over the whole batch are not known part by "
            "part; give batch_norm='part' to let each part have its own, or train with accumulate=1."
        )
    for phase in trainings(plan):
        last = points - (batches_in(points, phase.batch_size) - 1) * phase.batch_size if phase.epochs else size
        if min(phase.batch_size, last) < size:
            raise InputError(
                f"a batch of {min(phase.batch_size, last)} row(s) cannot be shared by {size} processes; give another batch_size "
                f"(it is {phase.batch_size} for {points} points), or fewer processes."
            )


def _normalizes(network: nn.Module) -> bool:
    """Return whether a network has BatchNorm."""
    norms = nn.modules.batchnorm._BatchNorm
    return any(
        isinstance(m, norms) or (is_batch_norm(m) and any(n in m._buffers for n in STATISTICS))
        for m in network.modules()
    )


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module is one, or one of choral's layers in the place of one."""
    plain = getattr(module, "_plain", ())
    kind = nn.modules.batchnorm._BatchNorm
    instance = any(isinstance(one, nn.modules.instancenorm._InstanceNorm) for one in (module, *plain))
    ours = type(module).__module__.startswith("choral.layers.")
    return (ours or isinstance(module, kind)) and not instance


def refuse_whole(
    parts: Parts,
    network: nn.Module,
    loss: Callable[[nn.Module, Batch, Tensor], Tensor],
    x: Batch,
    y: Tensor,
    likelihood: Likelihood,
    close: float,
) -> None:
    """Raise InputError for a network, or a loss, that looks at a batch as a whole, where batches are taken in parts.

    Args:
        parts: how batches are taken.
        network: the joint network, which is copied.
        loss: of a network on inputs and targets.
        x, y: a few rows.
        likelihood: what the loss is a mean of.
        close: what gradients may differ by, as a share of the largest.
    """
    if (parts.group is None and parts.accumulate == 1) or len(y) < 2:
        return

    def tried(count: int) -> nn.Module:
        """Return a copy of the network after a batch in so many parts; BatchNorm, whose statistics are seen to, keeps those that it has."""
        made = copy.deepcopy(network).train()
        for module in made.modules():
            module.training = not is_batch_norm(module) or not any(name in module._buffers for name in STATISTICS)
        for piece in Parts(accumulate=count).of(x, y, None, likelihood, None):
            if not piece.first and parts.accumulate == 1:  # of another process
                for name, buffer in made.named_buffers():
                    buffer.copy_(network.get_buffer(name))
            with torch.enable_grad(), draws.keyed(0, part=piece.part):
                total = loss(made, batches.mapped(torch.clone, piece.x), piece.y.clone()).sum()
                (total * piece.share).backward()
        return made

    with rng.seeded(0, "try") as lent:
        one, other = tried(1), tried(2)
    for name, buffer in one.named_buffers():
        if not torch.equal(buffer, other.get_buffer(name)):
            raise InputError(
                f"buffer {name.removeprefix('network.')!r} is changed by every call of the network in training, so that parts of a batch would leave another one than the whole "
                "batch; train without data_parallel and accumulate, or keep the buffer as it is in forward."
            )
    found = [
        torch.cat([torch.zeros(1), *(p.grad.reshape(-1) for p in made.parameters() if p.grad is not None)]).double()
        for made in (one, other)
    ]
    off = found[0] - found[1] if len(found[0]) == len(found[1]) else found[0]
    # draws that cannot be counted by row are refused when they are made
    if not lent.count and found[0].isfinite().all() and off.abs().max() > close * found[0].abs().max().clamp_min(1e-12):
        raise InputError(
            "the network or the loss looks at a batch as a whole (a mean over its rows, say), so that parts of it, taken one after the other or by "
            "several processes, would train something else; let each row be computed by itself, or train without data_parallel and accumulate."
        )
