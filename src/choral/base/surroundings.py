"""What the caller has switched on in torch is switched off within choral: results are the same wherever a function is called.

Within an autocast of the caller's every step would train on the weights of the first, since torch keeps their rounded copies until
the outermost autocast ends; without gradients nothing is trained; a default device would take the tensors of the engine along.
The default type of numbers stays: it decides the type of the networks a factory builds, as it does anywhere.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_DEVICES = ("cpu", "cuda", "mps", "xpu")
_CPU = torch.device("cpu")


def are_plain() -> bool:
    """Return whether torch is in the state it starts with, as far as results depend on it.

    >>> are_plain()
    True
    >>> with torch.no_grad():
    ...     are_plain()
    False
    """
    learns = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    return learns and _on_cpu() and not any(map(torch.is_autocast_enabled, _DEVICES))


def _on_cpu() -> bool:
    return torch.empty(0).device == _CPU  # a tenth of what get_default_device takes


@contextmanager
def plain() -> Iterator[None]:
    """Put torch into that state within the block: gradients on, no inference mode, no autocast, new tensors on the CPU."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(full_precision())
        if not _on_cpu():  # the context looks at every call of torch
            stack.enter_context(_CPU)
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """End the caller's autocast within the block."""
    with ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, _DEVICES):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield
