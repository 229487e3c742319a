"""torch.func.vmap without its advice to torch's developers.

Where an operation has no batching rule, vmap runs it call by call and warns that this is slow. Whether that is so is measured
here before a network is mapped, so the warning has no reader. Its switch belongs to the process; it is turned off when
something is first mapped, and stays off.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functorch


def vmap(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the function mapped over the first axis of its arguments, as torch.func.vmap does."""
    _functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]  # torch's stub lacks it
    return torch.func.vmap(function, **options)
