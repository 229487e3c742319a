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
    made: list[tuple[str, Any]] = []
    hooks = [
        network.get_submodule(name).register_forward_hook(lambda *a, name=name: made.append((name, a[2])))
        for name in names
    ]
    try:
        with torch.enable_grad():
            output = run()
    finally:
        for hook in hooks:
            hook.remove()
    told = [(name, t) for name, found in made if (t := _tensor(found)) is not None]
    if not isinstance(output, Tensor) or not output.requires_grad or len(told) < len(made):
        return [(name, True) for name, _ in made]
    try:
        gradients = torch.autograd.grad(output.float().sum(), [t for _, t in told], allow_unused=True)
    except Exception:  # functions of the user's without a backward, for one
        return [(name, True) for name, _ in made]
    return [(name, gradient is not None) for (name, _), gradient in zip(told, gradients)]


def _tensor(found: Any) -> Tensor | None:
    """Return what a layer gave, the first of several; None if no gradient goes through it."""
    first = found[0] if isinstance(found, tuple) and found else found
    return first if isinstance(first, Tensor) and first.requires_grad else None
