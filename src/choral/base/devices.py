"""All that depends on the device of torch. Nothing here synchronizes with a device."""

from functools import lru_cache

import torch
from torch import Tensor

from choral.base.errors import InputError

_SHARE = 0.5  # of a device's free memory that data may take: the rest is for weights and activations


def usable(device: str | torch.device) -> torch.device:
    """Return a device that is present; 'auto' is CUDA, MPS or the CPU, the first that is. Raises InputError for any other."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device is {str(device)!r}, which cannot be used here; give 'auto'.") from error
    return place


def is_processor(device: torch.device) -> bool:
    """Return whether torch computes where Python runs, so that a call costs little and returns when it is done."""
    return device.type in ("cpu", "meta")


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...] | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a tensor, copied to a device once; never to be written into."""
    return torch.tensor(values, dtype=dtype).to(device)


def holds(device: torch.device, size: int) -> bool:
    """Return whether a device has room for this many bytes of data besides its computations."""
    if is_processor(device):
        return True
    free = getattr(torch.get_device_module(device.type), "mem_get_info", None)
    return free is not None and size <= _SHARE * int(free(device)[0])


def placed(tensor: Tensor, device: torch.device, *, resident: bool) -> Tensor:
    """Return data where a device reads it fastest: on it, or in pinned memory of the host."""
    if is_processor(device):
        return tensor
    return tensor.to(device) if resident else tensor.pin_memory()


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the copy of a pinned one continues while Python does."""
    if tensor.device == device:
        return tensor
    return tensor.to(device, non_blocking=tensor.device.type == "cpu" and tensor.is_pinned())
