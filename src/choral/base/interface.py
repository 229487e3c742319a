"""How a network is called with a batch, and which tensor of its result is the output.

A dict of inputs is passed as keywords, a tuple or list by position. Networks that do not read one tensor and return (batch, ...) get hooks,
so that all callers pass one batch and get one tensor.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy as is_unsettled

from choral.base.batches import Batch, filled, in_order, in_words, leaves, made_up, mapped, named_leaves
from choral.base.errors import InputError, did_you_mean, first_line
from choral.base.values import Function, Value


@dataclass(frozen=True, kw_only=True)
class Interface(Value):
    """How a network is called and what is taken out of what it returns.

    Args:
        spread: whether a batch holds several inputs: dicts are keywords, tuples and lists positions.
        output: what is picked from an output that is not a tensor: a name, a position or a function; None takes it as it is.
        column: whether outputs (batch,) are read as (batch, 1).
        reads: what a batch looks like, as `choral.base.batches.described` says it.
        columns: the names of the columns of data frames among inputs (x, x['image']) and targets (y), in the order they are read.
        first: the layers that read the inputs, where they are others than the one declared first; ('',) where none does.
        last: the layer that gives the output, where another one is declared last; '' where it is that one.
        target: the shape of one target, () for targets (n,); None is unknown.
        avoids: ways of running the network that a dry run showed to break it: 'channels_last', or kernels of joint networks.
        scale: of the numbers of a single input in training: 'bytes', which are divided by 255, 'unit' (from 0 to 1) or 'free'; '' is unknown.
    """

    spread: bool = False
    output: str | int | Function | None = None
    column: bool = False
    reads: dict[str, Any] | None = None
    columns: dict[str, tuple[str, ...]] | None = None
    first: tuple[str, ...] = ()
    last: str = ""
    target: tuple[int, ...] | None = None
    avoids: tuple[str, ...] = ()
    scale: str = ""

    def attach(self, network: nn.Module) -> nn.Module:
        """Return the network, which from now on takes a batch and returns its output, in place."""
        if self.spread:
            network.register_forward_pre_hook(_spread, prepend=True, with_kwargs=True)
        if "channels_last" in self.avoids:
            network.register_forward_pre_hook(_contiguous, prepend=True)
        if self.output is not None or self.column:
            network.register_forward_hook(self._pick)
        return network

    def call(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the output of a network without hooks."""
        return self.picked(self.called(network, batch))

    def called(self, network: nn.Module, batch: Batch) -> Any:
        """Return all that a network without hooks returns."""
        args, kwargs = _arguments(batch) if self.spread else ((batch,), {})
        return network(*args, **kwargs)

    def check(self, batch: Batch) -> None:
        """Raise InputError for a batch of another structure than in `fit`."""
        if self.reads is None:
            return
        if isinstance(batch, Tensor) and not self.spread:
            if batch.dim() and list(batch.shape) == self.reads.get("shape"):
                raise InputError(
                    f"x has the shape {tuple(batch.shape)} of one row, without the axis over rows: x[None]."
                )
            self._check_scale(batch)
            return
        wanted = made_up(self.reads, 1)
        if sorted(name for name, _ in named_leaves(wanted)) != sorted(name for name, _ in named_leaves(batch)):
            raise InputError(f"x is {in_words(batch)}; the networks were fitted on inputs like {in_words(wanted)}.")

    def _check_scale(self, batch: Tensor) -> None:
        """Raise InputError for bytes if training had none, and for numbers beyond 1 if training had bytes, which are divided by 255."""
        small = batch.dim() < 3 and batch.numel() and self.scale == "unit"
        if batch.dtype == torch.uint8 and (self.scale == "free" or (small and int(batch.max()) <= 1)):
            said = "x holds bytes (uint8), which are divided by 255, but the networks were fitted on other numbers"
            raise InputError(f"{said}; give x.astype('float32').")
        if self.scale == "bytes" and batch.is_floating_point() and batch.numel() and float(batch.detach().max()) > 2:
            said = f"x holds real numbers up to {float(batch.detach().max()):g}, but the networks were fitted on bytes (uint8)"
            raise InputError(f"{said}, which are divided by 255; give bytes, or x / 255.")

    def in_floats(self, batch: Batch, floats: torch.dtype) -> Batch:
        """Return a batch with integers as real numbers if the network was fitted on real numbers."""
        if self.reads is None or all(t.is_floating_point() or t.dtype == torch.uint8 for t in leaves(batch)):
            return batch
        real = {name for name, leaf in named_leaves(made_up(self.reads, 0)) if leaf.is_floating_point()}
        given = named_leaves(batch)
        return filled(batch, [t.to(floats) if t.dtype == torch.int64 and name in real else t for name, t in given])

    def chosen(self, batch: Any) -> Any:
        """Return a batch of a dataset without keys that the network does not read, such as targets."""
        if not isinstance(batch, Mapping) or self.reads is None or "dict" not in self.reads:
            return batch
        return {name: part for name, part in batch.items() if name in self.reads["dict"]}

    def why_not_predicted(self, batch: Batch, error: Exception) -> str:
        """Return why networks could not read a batch, as text, with the structure they were fitted on."""
        like = "other inputs" if self.reads is None else f"rows like {in_words(made_up(self.reads, 1))}"
        return f"the networks {_unread(batch, error)}; they were fitted on {like}."

    def _pick(self, module: nn.Module, args: Any, found: Any) -> Tensor:
        return self.picked(found)

    def picked(self, found: Any) -> Tensor:
        """Return the output among what a network returned."""
        if self.output is not None:
            found = pick(found, self.output)
        return found.reshape(-1, 1) if self.column and found.dim() < 2 else found


def detach(network: nn.Module) -> nn.Module:
    """Return the original network, without the hooks of an interface."""
    ours = (_spread, _contiguous, Interface._pick)
    for module in network.modules():
        for table in (module._forward_pre_hooks, module._forward_hooks):
            for number in [n for n, hook in table.items() if getattr(hook, "__func__", hook) in ours]:
                del table[number]
                module._forward_pre_hooks_with_kwargs.pop(number, None)
    return network


def pick(found: Any, output: str | int | Function | None) -> Tensor:
    """Return the tensor that `output` selects in the result of a network; InputError lists the choices.

    >>> import torch
    >>> pick({"logits": torch.ones(1), "loss": None}, "logits")
    tensor([1.])
    """
    parts = _parts(found)
    if isinstance(output, Function):
        chosen = output(found)
    elif output is None:
        chosen = found
    else:
        chosen = parts.get(output + len(found) if isinstance(output, int) and -len(parts) <= output < 0 else output)
    if isinstance(chosen, Tensor):
        return chosen
    names = [name for name in parts if type(name) is str]
    if output is None:
        first = repr("logits" if "logits" in names else names[0]) if names else "0"
        raise InputError(f"the network returns {described(found)}; name its output: fit(..., output={first}).")
    said, near = getattr(output, "name", repr(output)), did_you_mean(str(output), names)
    raise InputError(f"output={said} picks no tensor from what the network returns, {described(found)}.{near}")


def _parts(found: Any) -> dict[Any, Any]:
    """Return what can be picked from an output, by names and positions."""
    match found:
        case Mapping():
            return dict(found)
        case tuple() | list():
            return {**dict(zip(getattr(found, "_fields", ()), found)), **dict(enumerate(found))}
    return {name: value for name, value in getattr(found, "__dict__", {}).items() if value is not None}


def described(found: Any) -> str:
    """Return the result of a network as text."""
    parts, kind = _parts(found), f"a {type(found).__name__}"
    names = [repr(name) for name in parts if type(name) is str]
    if names:
        return f"{kind} with {', '.join(names)}"
    return f"{kind} of {len(parts)} parts, 0 to {len(parts) - 1}" if parts else kind


def _arguments(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, dict):
        return (), batch
    return (batch,) if isinstance(batch, Tensor) else tuple(batch), {}


def _contiguous(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(mapped(in_order, arg) for arg in args)


def _spread(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or isinstance(args[0], Tensor):
        return None
    positions, keywords = _arguments(args[0])
    return positions, keywords | kwargs


def _unread(batch: Batch, error: Exception) -> str:
    return f"cannot read x: a batch {in_words(batch)} gave the error '{first_line(error)}'"


def why_not_read(network: nn.Module, batch: Batch, error: Exception) -> str:
    """Return why a network could not read a batch, as text."""
    if isinstance(batch, Tensor):
        return f"the network {_unread(batch, error)}; give inputs of the shape and type that its forward takes."
    wanted = ", ".join(map(str, inspect.signature(network.forward).parameters.values()))
    how = "as keywords" if isinstance(batch, dict) else "as positions"
    return f"the network {_unread(batch, error)}; its parts were passed {how}, and forward takes ({wanted})."


def is_lazy(network: nn.Module) -> bool:
    """Return whether a network has layers whose sizes its first input decides."""
    return any(is_unsettled(t) for t in (*network.parameters(), *network.buffers()))


class Called(NamedTuple):
    """A call of a module: whether the output needs it, and whether its inputs depend on no layer or parameter."""

    layer: str
    needed: bool
    reads_input: bool


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Run a block with the network in evaluation mode; every module has its own mode again afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
