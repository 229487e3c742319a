"""Which of a network's layers run, in what order, and which of them the output needs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_OUTPUT: ContextVar[str] = ContextVar("output", default="")


@contextmanager
def with_output(layer: str) -> Iterator[None]:
    """Let conversions take a layer for the one that gives the output; '' leaves them the one that is declared last."""
    token = _OUTPUT.set(layer)
    try:
        yield
    finally:
        _OUTPUT.reset(token)


def output_last(names: Sequence[str]) -> list[str]:
    """Return layers in the order of declaration, but the one that gives the output, if it is known, at the end.

    >>> with with_output("head"):
    ...     output_last(["head", "body", "aside"])
    ['body', 'aside', 'head']
    """
    last = _OUTPUT.get()
    return [*(n for n in names if n != last), last] if last in names else list(names)


def executed(network: nn.Module, names: Sequence[str], run: Callable[[], Any]) -> list[tuple[str, bool]]:
    """Return the layers that a pass calls, in that order, and whether its output needs each.

    Where that cannot be told (no gradients, several outputs) it needs all of them.

    Args:
        network: any network, in the mode it is to run in.
        names: of its layers.
        run: runs it once; returns the output.
    """
    made: list[
        tuple[str, Tensor | None]
    ] = []  # a zero added to what each gave, which the output's gradient reaches if it is needed

    def probed(name: str) -> Callable[..., Any]:
        def hook(_: nn.Module, __: Any, found: Any) -> Any:
            first = found[0] if type(found) is tuple and found else found
            told = isinstance(first, Tensor) and first.is_floating_point() and torch.is_grad_enabled()
            probe = torch.zeros((), dtype=first.dtype, device=first.device, requires_grad=True) if told else None
            made.append((name, probe))
            if probe is None:
                return None
            return (first + probe, *found[1:]) if type(found) is tuple else first + probe

        return hook

    hooks = [network.get_submodule(name).register_forward_hook(probed(name)) for name in names]
    try:
        with torch.enable_grad():
            output = run()
    finally:
        for hook in hooks:
            hook.remove()
    probes = [probe for _, probe in made if probe is not None]
    if not isinstance(output, Tensor) or not output.requires_grad or not probes:
        return [(name, True) for name, _ in made]
    try:
        gradients = iter(torch.autograd.grad(output.float().sum(), probes, allow_unused=True))
    except Exception:  # functions of the user's without a backward, for one
        return [(name, True) for name, _ in made]
    return [(name, probe is None or next(gradients) is not None) for name, probe in made]
