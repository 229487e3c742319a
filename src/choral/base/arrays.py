"""Arrays of the user's as tensors."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError


def tensor_of(value: Any) -> Tensor:
    """Return an array, or whatever numpy makes one of, as a tensor that shares its memory where that can be written into.

    >>> tensor_of([1, 2]).tolist()
    [1, 2]
    """
    if isinstance(value, Tensor):
        return value.detach()
    array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
    if array.dtype.kind not in "fiubc":
        raise InputError(
            f"{str(value)[:60]!r} holds values of type {array.dtype}, not numbers; encode them as numbers."
        )
    if array.dtype.char == "g":  # wider than torch knows
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.flags.writeable:
        return torch.from_numpy(array)
    if not isinstance(
        value, np.memmap
    ):  # a view of a frame, say: torch knows no tensors that are not to be written into
        return torch.from_numpy(array.copy())
    with warnings.catch_warnings():  # a file that may be too large to copy; nothing here writes into it
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)
