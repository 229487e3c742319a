"""Look at the plain network once, before anything is converted or trained: what it reads, in which type, and what it returns."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import batches, devices, draws, rng
from choral.base.batches import Batch
from choral.base.errors import ChoralError, ConversionError, InputError
from choral.base.interface import Interface, is_lazy, pick, why_not_read
from choral.base.portrait import Function
from choral.base.types import Build
from choral.data.inputs import Transforms, checked_transforms, prepare
from choral.data.sources import Source
from choral.engine.blueprint import bare, called_once, floats_of
from choral.engine.reaching import refuse_hidden, refuse_strays, with_ends_of
from choral.layers.convert import holds
from choral.layers.joint.network import channels_last
from choral.structures.base import Independent, Structure


@dataclass(frozen=True)
class Seen:
    """What was found out.

    Attributes:
        interface: how the network is called, and which of its outputs counts.
        transforms: of input batches, checked.
        floats: the type in which it reads real numbers.
        device: where it runs.
    """

    interface: Interface
    transforms: Transforms
    floats: torch.dtype
    device: torch.device

    def ready(self, x: Batch) -> Batch:
        """Return a batch as the plain network reads it."""
        moved = batches.moved(x, self.device)
        return prepare(moved, self.transforms, training=False, floats=self.floats)


def look(
    build: Build | nn.Module,
    source: Source,
    structure: Structure,
    *,
    inputs: Any,
    output: Any,
    device: torch.device,
) -> Seen:
    """Build the plain network and run it on the first points; the source gives real numbers in its type from now on.

    Args:
        build: the factory, or a network.
        source: training data.
        structure: how members will share the network.
        inputs: transforms as the user gave them.
        output: which part of the outputs counts, as the user gave it.
        device: where to run.
    """
    with rng.seeded(0, "look"), draws.keyed(0):
        network = nn.Module.to(bare(build), device)  # a network may have a `to` of its own
        _refuse_extra_state(network)
        _refuse_complex(network)
        if not isinstance(structure, Independent):
            _refuse_synchronized(network)
        source.settle(floats_of(network))
        x, y = source.example()
        seen = Seen(Interface(), checked_transforms(inputs, x), floats_of(network), device)
        batch = seen.ready(x)
        given = batches.mapped(torch.clone, batch)
        reads = Interface(
            spread=not isinstance(batch, Tensor),
            output=_chosen(output),
            reads=batches.described(batch),
            columns=source.columns,
            target=tuple(y.shape[1:]),
            scale=_scale(x),
        )
        if isinstance(x, Tensor) and x.dtype == torch.uint8 and x.dim() == 2 and holds(network, nn.Embedding):
            warnings.warn(
                "x holds bytes (uint8) and the network an embedding; bytes are divided by 255, as those of images: give tokens as x.long().",
                stacklevel=2,
            )
        reads, found = _called(network, reads, batch)
    _refuse_writing(structure, given, batch)
    interface = _completed(reads, found, batches.rows(batch))
    if devices.is_processor(device):
        refuse_hidden(network, interface, given)
        refuse_strays(build if isinstance(build, nn.Module) else network, interface, given)
        interface = with_ends_of(network, interface, given)
    return Seen(interface, seen.transforms, seen.floats, device)


def _called(network: nn.Module, reads: Interface, batch: Batch) -> tuple[Interface, Any]:
    """Return what a network returns for a batch, and how it is called: with images in plain memory order if it cannot read channels last."""
    given = batches.mapped(torch.clone, batch)
    images = any(t.dim() == 4 for t in batches.leaves(batch))
    try:
        laid = channels_last(copy.deepcopy(network)) if images and not is_lazy(network) else network
        return reads, called_once(laid, reads, batch)
    except ChoralError:
        raise
    except Exception as error:  # forward code of the user's may fail in any way
        if images:
            reads = replace(reads, avoids=("channels_last",))
            with suppress(Exception):
                return reads, called_once(network, reads, batches.mapped(batches.in_order, given))
        raise InputError(why_not_read(network, given, error)) from error


def _scale(x: Any) -> str:
    """Return what numbers a single input holds, as `Interface` has it."""
    if not isinstance(x, Tensor) or not x.numel():
        return ""
    if x.dtype == torch.uint8:
        return "bytes"
    return "" if not x.is_floating_point() else "unit" if float(x.min()) >= 0 and float(x.max()) <= 1 else "free"


def _chosen(output: Any) -> str | int | Function | None:
    if (
        output is None
        or isinstance(output, str | Function)
        or (isinstance(output, int) and not isinstance(output, bool))
    ):
        return output
    if callable(output):
        return Function.of(output)
    raise InputError(
        f"output is {output!r}; give the name or position of the network's output among what it returns, or a function."
    )


def _completed(reads: Interface, found: Any, rows: int) -> Interface:
    """Return the interface with what the outputs tell."""
    outputs = pick(found, reads.output)
    if not outputs.dim() or len(outputs) != rows:
        raise InputError(
            f"the network gave outputs of shape {tuple(outputs.shape)} for {rows} points; make it return (batch, outputs), "
            "one row for each point."
        )
    return replace(reads, column=outputs.dim() == 1)


def _refuse_extra_state(network: nn.Module) -> None:
    """Raise InputError for modules that keep something beside parameters and buffers, which a saved member would lose."""
    for name, module in network.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(
                f"module {name!r} ({type(module).__name__}) keeps state of its own (get_extra_state), which members are not saved "
                "with; register it as a buffer instead."
            )


def _refuse_complex(network: nn.Module) -> None:
    """Raise InputError for complex numbers among what is trained: optimizers, penalties and masks are for real ones."""
    for name, p in network.named_parameters():
        if p.is_complex() and p.requires_grad:
            raise InputError(
                f"build: parameter {name!r} is {str(p.dtype).removeprefix('torch.')}, and members have real parameters; keep its real and "
                "imaginary parts as one, and let forward join them by torch.view_as_complex."
            )


def _refuse_synchronized(network: nn.Module) -> None:
    """Raise ConversionError for statistics of many processes, which members of one network would have in common."""
    for name, module in network.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ConversionError(
                f"layer {name!r} (SyncBatchNorm) would mix the statistics of members; build the network with nn.BatchNorm2d (or 1d, 3d): "
                "Compute(data_parallel=True) takes its statistics over the whole batch of all processes."
            )


@contextmanager
def running_in(network: nn.Module) -> Iterator[list[str]]:
    """Give a list that holds, at any time, the modules being run, innermost last; after an error, those it came from."""
    running: list[str] = []
    named = {module: f"{name!r} ({type(module).__name__})" for name, module in network.named_modules()}

    def enter(module: nn.Module, _: Any) -> None:
        running.append(named[module])

    def leave(*_: Any) -> None:
        running.pop()

    hooks = [m.register_forward_pre_hook(enter) for m in named] + [m.register_forward_hook(leave) for m in named]
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def _refuse_writing(structure: Structure, given: Batch, after: Batch) -> None:
    """Raise InputError for forward code that writes into its input where members read the same one."""
    if structure.members > 1 and not batches.equal(given, after):
        raise InputError(
            f"the network writes into its input, which the {structure.members} members of {type(structure).__name__} share; let "
            "forward begin with a copy of it (x = x.clone()), or use a method whose members are networks of their own."
        )
