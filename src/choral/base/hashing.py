"""A hash of counters: the numbers behind every draw made inside a forward pass.

Two words (from a key, a step and a site) and the number of an element give 32 bits. The same bits come from Python integers, from
numpy in blocks that stay in the processor's cache (33 ns a number against 227 by torch operations, 4,096 at a time), and
from torch operations on other devices.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF
GOLDEN = 0x9E3779B1
_BLOCK = 1 << 15  # numbers hashed at once: they stay in the processor's cache
_KEPT = 1 << 20  # numbers of a count kept for the next draw of the same size, at most

Word = int | Tensor
"""Half of what a site is hashed from: an integer, or an int32 scalar, which vmap may map."""
_Block = npt.NDArray[np.uint32]


def signed(value: int) -> int:
    """Return the int32 with the same 32 bits."""
    value &= MASK32
    return value - (1 << 32) if value >= 1 << 31 else value


def mix_int(value: int) -> int:
    """Return the bits of an integer, mixed."""
    value &= MASK32
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & MASK32
    value = ((value ^ (value >> 15)) * 0x735A2D97) & MASK32
    return value ^ (value >> 15)


def mix(h: Tensor) -> Tensor:
    """Return the same for the int32 numbers of a tensor."""
    h = (h ^ ((h >> 16) & 0xFFFF)) * 0x21F0AAAD
    h = (h ^ ((h >> 15) & 0x1FFFF)) * 0x735A2D97
    return h ^ ((h >> 15) & 0x1FFFF)


def bits(n: int, first: Word, second: Word, device: torch.device) -> Tensor:
    """Return n int32 hash values, uniform over all 2^32 patterns; where vmap maps the words, it maps the values."""
    if isinstance(first, int) and isinstance(second, int):
        if n == 1:  # no tensor is needed to hash one number
            return torch.full((1,), signed(mix_int(mix_int(first) + second)), dtype=torch.int32, device=device)
        if device.type == "cpu":
            return _from_numpy(_hashed(n, first, second))
    elif device.type == "cpu":
        return _mapped(torch.as_tensor(first), torch.as_tensor(second), n)
    h = _mix_(_count(n, device) + first)
    return _mix_(h.add_(second))


@torch.library.custom_op("choral::hashed", mutates_args=())
def _mapped(first: Tensor, second: Tensor, n: int) -> Tensor:
    """Return the values (..., n) of words (...), hashed in numpy."""
    firsts, seconds = (word.contiguous().numpy().view(np.uint32).reshape(-1) for word in (first, second))
    return _from_numpy(_hashed_many(n, firsts, seconds).reshape(*first.shape, n))


@_mapped.register_fake
def _(first: Tensor, second: Tensor, n: int) -> Tensor:
    return first.new_empty((*first.shape, n))


@_mapped.register_vmap
def _(info: Any, axes: tuple[int | None, ...], first: Tensor, second: Tensor, n: int) -> tuple[Tensor, int]:
    words = [
        word.expand(info.batch_size, *word.shape) if axis is None else word.movedim(axis, 0)
        for word, axis in zip((first, second), axes)
    ]
    return _mapped(*words, n), 0


def _from_numpy(found: _Block) -> Tensor:
    return torch.from_numpy(found.view(np.int32))


def _hashed(n: int, first: int, second: int) -> _Block:
    found = np.empty(n, np.uint32)
    size = min(n, _BLOCK)
    counted, spare = multiples(size), np.empty(size, np.uint32)
    for start in range(0, n, _BLOCK):
        h = found[start : start + _BLOCK]
        t = spare[: len(h)]
        np.add(counted[: len(h)], (first + start * GOLDEN) & MASK32, out=h)
        _mix_block(h, t)
        np.add(h, second & MASK32, out=h)
        _mix_block(h, t)
    return found


def _hashed_many(n: int, firsts: _Block, seconds: _Block) -> _Block:
    """Return the values of several pairs of words (pair, n)."""
    if n > _BLOCK:
        return np.stack([_hashed(n, int(a), int(b)) for a, b in zip(firsts, seconds)])
    found = np.empty((len(firsts), n), np.uint32)
    rows = max(1, _BLOCK // max(n, 1))
    counted, spare = multiples(n), np.empty((min(rows, len(firsts)), n), np.uint32)
    for start in range(0, len(firsts), rows):
        some = slice(start, start + rows)
        h = found[some]
        np.add(counted, firsts[some, None], out=h)
        _mix_block(h, spare[: len(h)])
        np.add(h, seconds[some, None], out=h)
        _mix_block(h, spare[: len(h)])
    return found


@lru_cache(maxsize=64)
def multiples(n: int) -> _Block:
    """Return what the numbers 0 to n - 1 of elements add to the first word; not to be written into."""
    return np.arange(n, dtype=np.uint32) * np.uint32(GOLDEN)


def _mix_block(h: _Block, t: _Block) -> None:
    """Mix in place; t is overwritten."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        np.bitwise_xor(h, np.right_shift(h, shift, out=t), out=h)
        np.multiply(h, factor, out=h)
    np.bitwise_xor(h, np.right_shift(h, 15, out=t), out=h)


def _count(n: int, device: torch.device) -> Tensor:
    return _kept_count(n, device) if n <= _KEPT else _new_count(n, device)


def _new_count(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.int32, device=device) * signed(GOLDEN)


_kept_count = lru_cache(maxsize=64)(_new_count)


def _mix_(h: Tensor) -> Tensor:
    h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF)).mul_(0x21F0AAAD)
    h.bitwise_xor_((h >> 15).bitwise_and_(0x1FFFF)).mul_(0x735A2D97)
    return h.bitwise_xor_((h >> 15).bitwise_and_(0x1FFFF))
