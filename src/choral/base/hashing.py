"""A hash of counters: the numbers behind every draw made inside a forward pass.

Two words (from a key, a step and a site) and the number of an element give 32 bits. The same bits come from Python integers, from
numpy in blocks that stay in the processor's cache (33 ns a number against 227 by torch operations, 4,096 at a time), and
from torch operations on other devices.
"""

import ctypes
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._C import _functorch as functorch

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
        return _mapped(n, torch.as_tensor(first), torch.as_tensor(second))
    h = _mix_(_count(n, device) + first)
    return _mix_(h.add_(second))


def _mapped(n: int, first: Tensor, second: Tensor) -> Tensor:
    """Hash in numpy what vmap maps: take the words of all mapped calls, hash them, and wrap the results as the words were."""
    (firsts, wrappers), (seconds, others) = _unwrapped(first), _unwrapped(second)
    assert [level for level, _ in wrappers] == [level for level, _ in others], "both words have the same key and step"
    found = _from_numpy(_hashed_many(n, firsts.reshape(-1), seconds.reshape(-1)).reshape(*firsts.shape, n))
    while functorch.is_functorch_wrapped_tensor(found):  # a running transform has wrapped it in its own way
        found = functorch.get_unwrapped(found)
    for level, axis in wrappers:
        found = functorch._wrap_for_grad(found, level) if axis is None else functorch._add_batch_dim(found, 0, level)
    return found


def _unwrapped(word: Tensor) -> tuple[_Block, list[tuple[int, int | None]]]:
    """Return the values a scalar has in all mapped calls, and its wrappers: their levels and mapped axes, outermost first.

    Those of torch.func.grad map nothing.
    """
    wrappers: list[tuple[int, int | None]] = []
    while functorch.is_functorch_wrapped_tensor(word):
        axis = functorch.maybe_get_bdim(word) if functorch.is_batchedtensor(word) else None
        wrappers.append((functorch.maybe_get_level(word), axis))
        word = functorch.get_unwrapped(word)
    wrappers.reverse()
    values = _copied(word)
    for place, axis in enumerate(axis for _, axis in wrappers if axis is not None):
        values = np.moveaxis(values, place + axis, place)
    return values, wrappers


def _copied(words: Tensor) -> _Block:
    """Return the numbers of an int32 tensor; read from memory, since numpy() is an operation that a running transform wraps."""
    if words.numel() == 0:
        return np.empty(tuple(words.shape), np.uint32)
    span = 1 + sum((size - 1) * stride for size, stride in zip(words.shape, words.stride()))
    held = np.frombuffer(memoryview((ctypes.c_uint32 * span).from_address(words.data_ptr())).cast("B"), np.uint32)
    steps = tuple(4 * stride for stride in words.stride())
    return np.lib.stride_tricks.as_strided(held, tuple(words.shape), steps).copy()


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


def site_words(key: int, step: int, sites: _Block) -> tuple[_Block, _Block]:
    """Return the two words of several sites of a pass, as `choral.base.streams.Stream` makes those of one."""
    salt = _mixed(sites * 0x85EBCA77 + np.uint32((step * GOLDEN + 0x165667B1) & MASK32))
    first = _mixed(salt ^ np.uint32(key & MASK32))
    salt2 = _mixed(salt + sites * 0x27D4EB2F + np.uint32(step & MASK32))
    return first, _mixed(salt2 + np.uint32((key >> 32) & MASK32) + first)


def _mixed(h: _Block) -> _Block:
    _mix_block(h, np.empty_like(h))
    return h


def hashed_sites(key: int, step: int, sites: _Block, owners: npt.NDArray[np.intp], counted: _Block) -> _Block:
    """Return the hash values of several sites of a pass, one site after the other.

    Args:
        key: of the pass.
        step: of the pass.
        sites: their numbers (site,).
        owners: the place in `sites` of each value (value,).
        counted: what the count of each value adds, `multiples` of every site (value,).
    """
    words = site_words(key, step, sites)
    found, spare = np.empty(len(owners), np.uint32), np.empty(min(len(owners), _BLOCK), np.uint32)
    for start in range(0, len(owners), _BLOCK):
        some = slice(start, start + _BLOCK)
        h, t = found[some], spare[: len(owners) - start]
        np.add(counted[some], words[0][owners[some]], out=h)
        _mix_block(h, t)
        np.add(h, words[1][owners[some]], out=h)
        _mix_block(h, t)
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
