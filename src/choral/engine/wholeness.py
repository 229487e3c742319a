"""Find out, before anything is trained, whether a batch taken in parts is the batch: on a few points, whole and in two parts."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from choral.base import batches, draws, rng
from choral.base.errors import InputError
from choral.data.sources import Source
from choral.engine.parts import STATISTICS, Parts, Piece, is_batch_norm
from choral.engine.task import Task
from choral.plan.phases import Phase
from choral.plan.walk import trainings

_ROWS = 8
_WHOLE, _HALVES = Parts(), Parts(accumulate=2)
_CLOSE = 1e-3  # of the largest gradient
_CLOSE_IN_HALF = 0.1


def refuse_whole(task: Task, source: Source, plan: Phase) -> None:
    """Raise InputError for a network, or a loss, that looks at a batch as a whole, where batches are taken in parts."""
    parts, size = task.parts, min((phase.batch_size for phase in trainings(plan)), default=0)
    count = min(size, source.drawn(), _ROWS)
    if (parts.group is None and parts.accumulate == 1) or count < 2 or task.structure.own_batches:
        return
    network = copy.deepcopy(task.blueprint.network()).train()
    x, y = source.example(count)
    x, y = batches.moved(x, task.device), y.to(task.device)
    halves = _HALVES.of(x, y, None, task.likelihood, None)
    with rng.seeded(0, "try") as lent:
        _refuse_changing(task, network, halves)
    if lent.count:  # draws that cannot be counted by row are refused when they are made
        return
    for module in network.modules():  # whose statistics are seen to in another way
        if any(name in module._buffers for name in STATISTICS):
            module.eval()
    whole = _gradient(task, network, _WHOLE.of(x, y, None, task.likelihood, None))
    apart = _gradient(task, network, halves)
    close = _CLOSE if task.precision == "fp32" and task.floats in (torch.float32, torch.float64) else _CLOSE_IN_HALF
    if torch.isfinite(whole).all() and (whole - apart).abs().max() > close * whole.abs().max().clamp_min(1e-12):
        raise InputError(
            "the network or the loss looks at a batch as a whole (a mean over its rows, say), so that parts of it, taken one after the other or by "
            "several processes, would train something else; let each row be computed by itself, or train without data_parallel and accumulate."
        )


def _refuse_changing(task: Task, network: nn.Module, halves: Iterable[Piece]) -> None:
    """Raise InputError for buffers that forward makes of the rows it sees; BatchNorm's are seen to."""
    before = {n: b.clone() for n, b in _buffers(network)}
    found: list[dict[str, Tensor]] = []
    for piece in halves:
        _put(network, before)
        with torch.no_grad():
            _loss(task, network, piece)
        found.append({n: b.clone() for n, b in _buffers(network)})
    _put(network, before)
    for name in before:
        first, second = (held[name] for held in found)
        moved = not torch.equal(before[name], first)
        if (task.parts.accumulate > 1 and moved) or not torch.equal(first, second):
            raise InputError(
                f"buffer {name.removeprefix('network.')!r} is changed by every call of the network in training, so that parts of a batch would leave another one than the whole "
                "batch; train without data_parallel and accumulate, or keep the buffer as it is in forward."
            )


def _buffers(network: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Return the buffers but for those of BatchNorm."""
    for prefix, module in network.named_modules():
        tracked = set(STATISTICS) if is_batch_norm(module) else set[str]()
        for key, buffer in module.named_buffers(recurse=False):
            if key not in tracked:
                yield (f"{prefix}.{key}" if prefix else key), buffer


def _put(network: nn.Module, values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in _buffers(network):
            if name in values and buffer.shape == values[name].shape:
                buffer.copy_(values[name])


def _loss(task: Task, network: nn.Module, piece: Piece) -> Tensor:
    with draws.keyed(0, part=piece.part):
        loss = task.forward_loss(network, batches.mapped(torch.clone, piece.x), piece.y.clone())
    return loss.sum() * piece.share


def _gradient(task: Task, network: nn.Module, pieces: Iterable[Piece]) -> Tensor:
    """Return the gradient of all parameters in one row."""
    trained = [p for p in network.parameters() if p.requires_grad]
    with torch.enable_grad(), rng.seeded(0, "try"):
        found = [torch.autograd.grad(_loss(task, network, piece), trained, allow_unused=True) for piece in pieces]
    sums = [sum((g for g in each if g is not None), torch.zeros_like(p)) for p, each in zip(trained, zip(*found))]
    return torch.cat([g.detach().reshape(-1).double() for g in sums])
