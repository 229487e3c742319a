"""Which parameters reach a network's outputs: members are copies, some of them converted, and both must compute what was given.

A copy keeps what modules hold, not what functions remember: a forward that was replaced by a closure, for one, goes on calling the
network it was made for. A converted layer acts when it is called, not when its weights are read past it.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from choral.base import batches, draws, rng
from choral.base.batches import Batch
from choral.base.errors import ConversionError, InputError
from choral.base.interface import Interface, is_lazy
from choral.base.order import executed
from choral.engine.blueprint import evaluating
from choral.layers.packed.networks import ends_of
from choral.structures.base import Independent, Structure

_TYPES = ("to", "type_as", "__get__", "detach")  # which read no numbers of a weight, or none that are trained


def refuse_strays(network: nn.Module, interface: Interface, batch: Batch) -> None:
    """Raise InputError for a network that other parameters reach than those of a copy of it reach the copy.

    Args:
        network: as its maker wrote it, not yet copied.
        interface: how it is called.
        batch: a few points.
    """
    if is_lazy(network):
        return
    own, other = (_reached(one, interface, batch) for one in (network, copy.deepcopy(network)))
    if own is None or other is None:
        return
    lost = [name for name, p in network.named_parameters() if p.requires_grad and (not own or name in own - other)]
    if lost:
        raise InputError(
            f"build: every member is a copy of the network, and in a copy {lost[0]!r} no longer takes part in the outputs: a function, such as a "
            "forward that was replaced by another one, remembers the network it was made for; write it as a method of the module's class."
        )


def refuse_hidden(network: nn.Module, interface: Interface, batch: Batch) -> None:
    """Raise InputError for layers kept where torch does not see them, such as a list, and needed: they would not be trained, copied or saved.

    Args:
        network: as its maker wrote it.
        interface: how it is called.
        batch: a few points.
    """
    known = set(network.modules())
    hidden = [(where, m) for module in known for where, m in _kept_in(module) if m not in known and not is_lazy(m)]
    params = [(where, p) for where, module in hidden for p in module.parameters() if p.requires_grad]
    if not params or is_lazy(network):
        return
    try:
        with torch.enable_grad(), rng.seeded(0, "look"), draws.keyed(0):
            outputs = interface.call(network, batches.mapped(_plainly, batch))
            found = torch.autograd.grad(outputs.float().sum(), [p for _, p in params], allow_unused=True)
    except Exception:  # as in the others
        return
    needed = [where for (where, _), gradient in zip(params, found) if gradient is not None]
    if needed:
        raise InputError(
            f"build: forward uses layers that are kept in {needed[0]}, where torch does not see them, so they would not be trained, copied or saved "
            "with the network; keep them in an nn.ModuleList or nn.ModuleDict."
        )


def _kept_in(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules in lists, tuples and dicts that a module has as attributes."""
    for name, value in vars(module).items():
        if name.startswith("_") and name in nn.Module().__dict__:
            continue
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        yield from ((f"self.{name} of {type(module).__name__}", m) for m in held if isinstance(m, nn.Module))


def with_ends_of(network: nn.Module, interface: Interface, batch: Batch) -> Interface:
    """Return the interface with the layers that read a network's inputs and give its output, where others are declared first and last.

    Args:
        network: plain, without hooks; not changed.
        interface: how it is called, and which of its outputs counts.
        batch: a few points.
    """
    names = [name for name, _ in ends_of(network)]
    if len(names) < 2 or is_lazy(network):
        return interface
    try:
        with evaluating(network), rng.seeded(0, "look"), draws.keyed(0):
            called = executed(network, names, lambda: interface.call(network, batches.mapped(_plainly, batch)))
    except Exception:  # forward code of the user's may fail in any way under gradients; training will tell
        return interface
    order = [call.layer for call in called if call.needed]
    first = tuple(dict.fromkeys(call.layer for call in called if call.needed and call.reads_input)) or ("",)
    return replace(
        interface,
        first=first if order and first != (names[0],) else (),
        last=order[-1] if order and order[-1] != names[-1] else "",
    )


def left_plain(network: nn.Module, structure: Structure) -> list[str]:
    """Return the layers, with their kinds, whose weights a structure that is meant to convert all of them left as they are.

    Args:
        network: the joint network.
        structure: what converted it.
    """
    if not structure.converts_all:
        return []
    ours = [name for name, module in network.named_modules() if name and _is_ours(module)]
    within = "network." if _is_ours(network) else ""
    found: dict[str, str] = {}
    for name, module in network.named_modules():
        whole = any(p.dim() > 1 and p.requires_grad for p in module.parameters(recurse=False))
        if not whole or _is_ours(module) or any(name.startswith(f"{other}.") for other in ours if other != within[:-1]):
            continue
        layer = name.partition(".parametrizations")[0]
        found[layer.removeprefix(within)] = type(network.get_submodule(layer)).__name__
    return [f"{layer!r} ({kind})" if layer else f"parameters of {kind}" for layer, kind in found.items()]


def refuse_uncalled(network: nn.Module, structure: Structure, x: Batch, plain: Callable[[], nn.Module]) -> None:
    """Raise ConversionError for converted layers and parameters that are read from elsewhere, where their conversion does nothing.

    Args:
        network: the joint network.
        plain: makes the network that was converted.
        structure: what converted it.
        x: a few points, as the plain network reads them.
    """
    layers = {name: module for name, module in network.named_modules() if name and _is_ours(module)}
    if not layers or isinstance(structure, Independent):
        return
    called: set[nn.Module] = set()
    reads = _Reads({id(p): (name, layer) for name, layer in layers.items() for p in layer.parameters()})

    def enter(module: nn.Module, _: Any) -> None:
        called.add(module)
        reads.running.append(module)

    def leave(*_: Any) -> None:
        reads.running.pop()

    hooks = [m.register_forward_pre_hook(enter) for m in network.modules()]
    hooks += [m.register_forward_hook(leave) for m in network.modules()]
    try:
        with torch.enable_grad(), rng.seeded(0, "look"), draws.keyed(0), reads:
            ready, _ = structure.feed(x, None)
            used = _with_gradient(network, structure.unfold(network(ready)))
    except Exception:  # forward code of the user's may fail in any way under gradients; training will tell
        return
    finally:
        for hook in hooks:
            hook.remove()
    within_ours = "network." if _is_ours(network) else ""
    running = {name for name, module in layers.items() if module in called}
    idle = {n for n in layers if n not in running and not any(n.startswith(f"{other}.") for other in running)}
    unused = [name for name, p in network.named_parameters() if p.requires_grad and name not in used]
    needed = _needed(plain, x) if idle or unused else set()
    for name in layers:
        past = name in idle and any(p.startswith(f"{name}.") for p in used)
        lost = name in idle and any(p.startswith(f"{name.removeprefix(within_ours)}.") for p in needed)
        if past or lost or name in reads.found:
            name = name.removeprefix(within_ours)
            raise ConversionError(
                f"layer {name!r} is converted for {type(structure).__name__}, but the network reads its weights past its call (by "
                f"torch.nn.functional, say), where the conversion does nothing; let forward use self.{name}(...) alone, or use another method."
            )
    stale = next((name for name in unused if name.removeprefix(within_ours) in needed), None)
    if stale is not None:
        raise ConversionError(
            f"parameter {stale.removeprefix(within_ours)!r} is converted for {type(structure).__name__}, but forward reads what it was before from a "
            "list, dict or other object; let forward read it from the module that it is registered in, or use another method."
        )


def _needed(plain: Callable[[], nn.Module], x: Batch) -> set[str]:
    """Return the parameters that the outputs of a plain network with its interface depend on."""
    try:
        with torch.enable_grad(), rng.seeded(0, "look"), rng.elsewhere(0), draws.keyed(0):
            network = plain().eval()
            return _with_gradient(network, network(x))
    except Exception:  # as above
        return set()


class _Reads(TorchFunctionMode):
    """Notes which layers' weights are computed with while neither the layer nor another module of choral's runs."""

    def __init__(self, owners: dict[int, tuple[str, nn.Module]]):
        super().__init__()
        self.owners, self.found, self.running = owners, set[str](), list[nn.Module]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outside = bool(self.running) and not _is_ours(self.running[-1])
        if outside and isinstance(result, Tensor) and getattr(func, "__name__", "") not in _TYPES:
            read = [self.owners[id(a)] for a in args if id(a) in self.owners]
            self.found |= {name for name, layer in read if layer not in self.running}
        return result


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("choral.layers.")


def _reached(network: nn.Module, interface: Interface, batch: Batch) -> set[str] | None:
    """Return the parameters that a network's outputs depend on; None where that cannot be told."""
    try:
        with evaluating(network), torch.enable_grad(), rng.seeded(0, "look"), draws.keyed(0):
            outputs = interface.call(network, batches.mapped(_plainly, batch))
            return _with_gradient(network, outputs) if outputs.requires_grad else None
    except Exception:  # forward code of the user's may fail in any way under gradients; training will tell
        return None


def _plainly(tensor: Tensor) -> Tensor:
    """Return a copy with its axes in order: some kernels of torch are wrong for others (`choral.layers.kernels.pointwise`)."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _with_gradient(network: nn.Module, outputs: Tensor) -> set[str]:
    """Return the names of parameters that outputs depend on."""
    named: dict[str, Any] = {n: p for n, p in network.named_parameters() if p.requires_grad}
    if not outputs.requires_grad or not named:
        return set()
    found = torch.autograd.grad(outputs.float().sum(), list(named.values()), allow_unused=True)
    return {name for name, gradient in zip(named, found) if gradient is not None}
