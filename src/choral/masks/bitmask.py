"""Packing: sparse parameters as a bitmask and the kept values, ready for a safetensors file.

A masked tensor `w` becomes three: `w:bits` (one bit for each entry, the lowest bit of a byte first), `w:kept` (the kept
values in order) and `w:shape`. At float32 and half the weights kept that is 1/2 + 1/32 = 0.531 of the dense bytes.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError, RunError
from choral.base.types import Params


def pack_bits(mask: Tensor) -> Tensor:
    """Return the mask as bytes: entry i is bit i % 8 of byte i // 8.

    >>> pack_bits(torch.tensor([True, False, False, True, False, False, False, False, True])).tolist()
    [9, 1]
    """
    return torch.from_numpy(np.packbits(mask.detach().flatten().cpu().numpy(), bitorder="little"))


def unpack_bits(bits: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Return the mask of a shape from its bytes.

    >>> unpack_bits(torch.tensor([9, 1], dtype=torch.uint8), (3, 3)).int().tolist()
    [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    """
    flat = np.unpackbits(bits.cpu().numpy(), count=math.prod(shape), bitorder="little")
    return torch.from_numpy(flat).bool().view(shape)


def pack(values: Params, masks: Mapping[str, Tensor]) -> Params:
    """Return the tensors to store: bits, kept values and shape for masked tensors, other tensors as they are.

    Args:
        values: tensors by name; masked entries must be zero (a negative zero becomes a positive one).
        masks: bool tensors, True where kept, for some or all of the names.

    >>> packed = pack({"w": torch.tensor([0.0, 2.0]), "b": torch.ones(1)}, {"w": torch.tensor([False, True])})
    >>> {name: tensor.tolist() for name, tensor in packed.items()}
    {'w:bits': [2], 'w:kept': [2.0], 'w:shape': [2], 'b': [1.0]}
    """
    packed: Params = {}
    for name, value in values.items():
        if name not in masks:
            packed[name] = value.detach()
            continue
        mask = masks[name].bool()
        removed = value.detach()[~mask]
        if bool((removed != 0).any()):
            raise InputError(
                f"{name!r} holds {int((removed != 0).sum())} values that its mask removes; multiply it by its mask first."
            )
        packed[f"{name}:bits"] = pack_bits(mask)
        packed[f"{name}:kept"] = value.detach()[mask]
        packed[f"{name}:shape"] = torch.tensor(value.shape, dtype=torch.int64)
    return packed


def unpack(packed: Params) -> tuple[Params, dict[str, Tensor]]:
    """Return the dense values and the masks that `pack` was given, bit for bit.

    >>> values, masks = unpack(pack({"w": torch.tensor([0.0, 2.0])}, {"w": torch.tensor([False, True])}))
    >>> values["w"].tolist(), masks["w"].tolist()
    ([0.0, 2.0], [False, True])
    """
    names = [stored.removesuffix(":bits") for stored in packed if stored.endswith(":bits")]
    stored = {f"{name}:{part}" for name in names for part in ("bits", "kept", "shape")}
    values = {name: tensor for name, tensor in packed.items() if name not in stored}
    masks: dict[str, Tensor] = {}
    for name in names:
        kept = packed[f"{name}:kept"]
        mask = unpack_bits(packed[f"{name}:bits"], tuple(packed[f"{name}:shape"].tolist()))
        if int(mask.sum()) != kept.numel():
            raise RunError(f"{name!r}: the mask keeps {int(mask.sum())} values, {kept.numel()} are stored.")
        values[name] = torch.zeros(mask.shape, dtype=kept.dtype).masked_scatter_(mask, kept.cpu())
        masks[name] = mask
    return values, masks
