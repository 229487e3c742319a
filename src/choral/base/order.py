"""Which of a network's layers run, in what order, which of them read the inputs and which the output needs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_ENDS: ContextVar[tuple[tuple[str, ...], str]] = ContextVar("ends", default=((), ""))


@contextmanager
def with_ends(first: tuple[str, ...], last: str) -> Iterator[None]:
    """Let conversions take layers for those that read the inputs and give the output, instead of those declared first and last."""
    token = _ENDS.set((first, last))
    try:
        yield
    finally:
        _ENDS.reset(token)


def first_layers(names: Sequence[str]) -> list[str]:
    """Return the layers that read the inputs: those that a dry run found, none perhaps, or the one that is declared first."""
    found = _ENDS.get()[0]
    return [n for n in found if n in names] if found else list(names[:1])


def output_last(names: Sequence[str]) -> list[str]:
    """Return layers in the order of declaration, but the one that gives the output, if it is known, at the end.

    >>> with with_ends((), "head"):
    ...     output_last(["head", "body", "aside"])
    ['body', 'aside', 'head']
    """
    last = _ENDS.get()[1]
    return [*(n for n in names if n != last), last] if last in names else list(names)


class Called(NamedTuple):
    """A call of a layer: whether the output needs it, and whether it reads nothing that other layers or bare parameters gave."""

    layer: str
    needed: bool
    reads_input: bool


def executed(network: nn.Module, names: Sequence[str], run: Callable[[], Any]) -> list[Called]:
    """Return the calls of layers in a pass, in their order.

    Where it cannot be told whether the output needs a layer (no gradients, several outputs) it is taken to.

    Args:
        network: any network, in the mode it is to run in.
        names: of its layers.
        run: runs it once; returns the output.
    """
    made: list[
        tuple[str, list[Tensor], bool]
    ] = []  # zeros added to what each gave, which the output's gradient reaches if it is needed

    def probed(name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
            probes: list[Tensor] = []

            def added(value: Any) -> Any:
                if isinstance(value, Tensor) and value.is_floating_point() and torch.is_grad_enabled():
                    probes.append(torch.zeros((), dtype=value.dtype, device=value.device, requires_grad=True))
                    return value + probes[-1]
                return type(value)(map(added, value)) if type(value) in (tuple, list) else value

            changed = added(found)
            given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
            made.append((name, probes, not any(t.requires_grad for t in given)))
            return changed

        return hook

    hooks = [network.get_submodule(name).register_forward_hook(probed(name), with_kwargs=True) for name in names]
    torchs = [m for m in network.modules() if type(m).__module__.startswith("torch.")]
    layers = [network.get_submodule(name) for name in names]
    trained = {p for m in (*layers, *torchs) for p in m.parameters(recurse=m in layers) if p.requires_grad}
    try:
        for p in trained:
            p.requires_grad_(False)  # so that a tensor has a gradient only if a layer or a bare parameter gave it
        with torch.enable_grad():
            output = run()
    finally:
        for p in trained:
            p.requires_grad_()
        for hook in hooks:
            hook.remove()
    probes = [probe for _, each, _ in made for probe in each]
    reached = {id(probe) for probe in probes}
    if isinstance(output, Tensor) and output.requires_grad:
        with suppress(Exception):  # functions of the user's without a backward, for one
            gradients = torch.autograd.grad(output.float().sum(), probes, allow_unused=True)
            reached = {id(probe) for probe, gradient in zip(probes, gradients) if gradient is not None}
    return [Called(name, not each or any(id(p) in reached for p in each), reads) for name, each, reads in made]
