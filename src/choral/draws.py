"""Random draws inside a forward pass, by counting instead of by state.

A draw is a hash of (key, step, site, element): the n-th random call of a forward pass is site n. It needs no
generator state, so it works under `torch.func.vmap` with one key per member and gives the same numbers under every
executor, after a resume and on every device. Layers call `uniform`, `normal`, `integers` or `dropout`; within a
`keyed` block these follow the key, outside of one they use torch's own generator, so that the layers also work in
anybody's own training loop. `keyed` also catches `torch.nn.functional.dropout` and its relatives in networks that are
not ours.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MASK32 = 0xFFFFFFFF
_GOLDEN = 0x9E3779B1
_BLOCK = 1 << 15  # numbers hashed at once: they stay in the processor's cache
_KEPT = 1 << 20  # numbers of a count kept for the next draw of the same size, at most


def _signed(value: int) -> int:
    value &= _MASK32
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix_int(value: int) -> int:
    value &= _MASK32
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & _MASK32
    value = ((value ^ (value >> 15)) * 0x735A2D97) & _MASK32
    return value ^ (value >> 15)


def words(*keys: int) -> Tensor:
    """Return the keys as int32 words for `keyed`: shape (2,) for one key, (key, 2) for several.

    >>> words(5).shape, words(5, 6, 7).shape
    (torch.Size([2]), torch.Size([3, 2]))
    """
    pairs = [(_signed(k), _signed(k >> 32)) for k in keys]
    return torch.tensor(pairs[0] if len(pairs) == 1 else pairs, dtype=torch.int32)


class _Stream:
    """The key of the running forward pass and the number of draws made so far."""

    def __init__(self, key: int | Tensor, step: int | Tensor):
        self.key = key
        self.step = step
        self.site = 0
        self.caught = 0
        self.drawn = 0  # numbers, in all draws

    def next_words(self) -> tuple[Any, Any]:
        """Return the two words of the next site: Python ints for an int key, else scalar tensors."""
        if isinstance(self.step, Tensor):
            return self._mapped_words(self.step)
        salt = _mix_int(self.step * _GOLDEN + self.site * 0x85EBCA77 + 0x165667B1)
        salt2 = _mix_int(salt + self.site * 0x27D4EB2F + self.step)
        self.site += 1
        if isinstance(self.key, int):
            low = _mix_int((self.key & _MASK32) ^ salt)
            return _signed(low), _signed(_mix_int((self.key >> 32) + salt2 + low))
        first = _mix(self.key[0] ^ _signed(salt))
        return first, _mix(self.key[1] + _signed(salt2) + first)

    def _mapped_words(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same words for a step that is an int32 scalar, which vmap may map."""
        salt = _mix(step * _signed(_GOLDEN) + _signed(self.site * 0x85EBCA77 + 0x165667B1))
        salt2 = _mix(salt + _signed(self.site * 0x27D4EB2F) + step)
        self.site += 1
        key = (_signed(self.key), _signed(self.key >> 32)) if isinstance(self.key, int) else self.key
        low, high = key[0], key[1]
        first = _mix(salt ^ low)
        return first, _mix(salt2 + high + first)


_stack: list[_Stream] = []


def _count(n: int, device: torch.device) -> Tensor:
    return _kept_count(n, device) if n <= _KEPT else _new_count(n, device)


def _new_count(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.int32, device=device) * _signed(_GOLDEN)


_kept_count = lru_cache(maxsize=64)(_new_count)


def _mix(h: Tensor) -> Tensor:
    h = (h ^ ((h >> 16) & 0xFFFF)) * 0x21F0AAAD
    h = (h ^ ((h >> 15) & 0x1FFFF)) * 0x735A2D97
    return h ^ ((h >> 15) & 0x1FFFF)


def _mix_(h: Tensor) -> Tensor:
    h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF)).mul_(0x21F0AAAD)
    h.bitwise_xor_((h >> 15).bitwise_and_(0x1FFFF)).mul_(0x735A2D97)
    return h.bitwise_xor_((h >> 15).bitwise_and_(0x1FFFF))


def _bits(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return int32 hash values, uniform over all 2^32 patterns, for the next site of the running stream."""
    first, second = _stack[-1].next_words()
    n = 1
    for size in shape:
        n *= size
    _stack[-1].drawn += n
    if n == 1 and isinstance(first, int):  # no tensor is needed to hash one number
        return torch.full(tuple(shape), _signed(_mix_int(_mix_int(first) + second)), dtype=torch.int32, device=device)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if isinstance(first, int) and device.type == "cpu":
            return _hash_blocks(n, first, second).view(tuple(shape))
        h = _mix_(_count(n, device) + first)
        return _mix_(h.add_(second)).view(tuple(shape))


def _hash_blocks(n: int, first: int, second: int) -> Tensor:
    """Return the same hash values by numpy, which is faster at each step and whose blocks stay in the cache."""
    found = np.empty(n, np.uint32)
    size = min(n, _BLOCK)
    counted, shifted = _counted(size), np.empty(size, np.uint32)
    for start in range(0, n, _BLOCK):
        h = found[start : start + _BLOCK]
        t = shifted[: len(h)]
        np.add(counted[: len(h)], (first + start * _GOLDEN) & _MASK32, out=h)
        _mix_block(h, t)
        np.add(h, second & _MASK32, out=h)
        _mix_block(h, t)
    return torch.from_numpy(found.view(np.int32))


@lru_cache(maxsize=64)
def _counted(n: int) -> npt.NDArray[np.uint32]:
    return np.arange(n, dtype=np.uint32) * np.uint32(_GOLDEN)


def _mix_block(h: npt.NDArray[np.uint32], t: npt.NDArray[np.uint32]) -> None:
    """Mix in place; t is overwritten."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        np.bitwise_xor(h, np.right_shift(h, shift, out=t), out=h)
        np.multiply(h, factor, out=h)
    np.bitwise_xor(h, np.right_shift(h, 15, out=t), out=h)


def active() -> bool:
    """Return whether a `keyed` block is running."""
    return bool(_stack)


def uniform(shape: Sequence[int], *, like: Tensor) -> Tensor:
    """Return uniform draws on (0, 1), open at both ends, in `like`'s dtype and device."""
    if not _stack:
        return torch.rand(tuple(shape), dtype=like.dtype, device=like.device)
    # 23 bits and a half step: every value and its distance to 0 and 1 is exact in float32
    bits = (_bits(shape, like.device) >> 9) & 0x7FFFFF
    return ((bits.to(torch.float32) + 0.5) * 2.0**-23).to(like.dtype)


def normal(shape: Sequence[int], *, like: Tensor) -> Tensor:
    """Return standard normal draws in `like`'s dtype and device (within 5.2 standard deviations when keyed)."""
    if not _stack:
        return torch.randn(tuple(shape), dtype=like.dtype, device=like.device)
    bits = (_bits(shape, like.device) >> 9).bitwise_and_(0x7FFFFF)
    centred = bits.to(torch.float32).add_(0.5 - 2.0**22).mul_(2.0**-22)
    return torch.erfinv(centred).mul_(2.0**0.5).to(like.dtype)


def integers(high: int, shape: Sequence[int], *, device: torch.device) -> Tensor:
    """Return integer draws (int64), uniform on 0..high-1."""
    if not _stack:
        return torch.randint(high, tuple(shape), device=device)
    bits = (_bits(shape, device).to(torch.int64) & _MASK32) * high
    return bits >> 32


def index(high: int, *, device: torch.device) -> int | Tensor:
    """Return one draw, uniform on 0..high-1: the number that `integers` gives, as a Python int where the key is one.

    >>> with keyed(7):
    ...     index(5, device=torch.device("cpu"))
    4
    >>> with keyed(7):
    ...     integers(5, (1,), device=torch.device("cpu")).tolist()
    [4]
    """
    if _stack and isinstance(_stack[-1].key, int) and isinstance(_stack[-1].step, int):
        first, second = _stack[-1].next_words()
        return (_mix_int(_mix_int(first) + second) * high) >> 32
    return integers(high, (1,), device=device)


def keep_mask(shape: Sequence[int], rate: float, *, device: torch.device) -> Tensor:
    """Return a boolean mask that is False with probability `rate`, element by element."""
    if not _stack:
        return torch.rand(tuple(shape), device=device) >= rate
    threshold = min(int(rate * 2.0**32), _MASK32) - (1 << 31)
    return _bits(shape, device) >= threshold


def dropout(x: Tensor, rate: float) -> Tensor:
    """Return x with elements zeroed with probability `rate` and the rest scaled by 1 / (1 - rate)."""
    if rate <= 0:
        return x
    if rate >= 1:
        return x * 0
    return x * (keep_mask(x.shape, rate, device=x.device).to(x.dtype) * (1.0 / (1.0 - rate)))


def _dropout_channels(x: Tensor, rate: float, dims: int) -> Tensor:
    """Drop whole channels; the channel axis is `dims + 1` from the end and the axes before it are batch axes."""
    if rate <= 0:
        return x
    if rate >= 1:
        return x * 0
    shape = tuple(x.shape[: x.dim() - dims]) + (1,) * dims
    return x * (keep_mask(shape, rate, device=x.device).to(x.dtype) * (1.0 / (1.0 - rate)))


def _alpha_dropout(x: Tensor, rate: float, shape: Sequence[int]) -> Tensor:
    """Drop to the negative saturation value of SELU and correct mean and variance (Klambauer et al., 2017)."""
    if rate <= 0:
        return x
    saturation = -1.7580993408473766
    keep = keep_mask(shape, rate, device=x.device).to(x.dtype)
    a = ((1 - rate) * (1 + rate * saturation**2)) ** -0.5
    return a * (x * keep + saturation * (1 - keep)) - a * saturation * rate


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention whose dropout follows the running key."""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return dropout(scores.softmax(-1), dropout_p) @ value


def _caught(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return dropout(x, p) if training else x


def _caught_functional(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return dropout(input, p) if training else input


def _caught_channels(dims: int) -> Callable[..., Tensor]:
    def catch(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return _dropout_channels(input, p, dims) if training else input

    return catch


def _caught_alpha(by_channel: bool) -> Callable[..., Tensor]:
    def catch(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
        if not training:
            return input
        shape = tuple(input.shape[:2]) + (1,) * (input.dim() - 2) if by_channel else tuple(input.shape)
        return _alpha_dropout(input, p, shape)

    return catch


_CAUGHT: dict[Any, Callable[..., Tensor]] = {
    torch.dropout: _caught,
    F.dropout: _caught_functional,
    F.dropout1d: _caught_channels(1),
    F.dropout2d: _caught_channels(2),
    F.dropout3d: _caught_channels(3),
    F.alpha_dropout: _caught_alpha(by_channel=False),
    F.feature_alpha_dropout: _caught_alpha(by_channel=True),
    torch.rand_like: lambda x, **_: uniform(x.shape, like=x),
    torch.randn_like: lambda x, **_: normal(x.shape, like=x),
    torch.bernoulli: lambda x, **_: (uniform(x.shape, like=x) < x).to(x.dtype),
}


class _Catch(TorchFunctionMode):
    """Send the random functions of torch.nn.functional to the running stream."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        replacement = _CAUGHT.get(func)
        if replacement is not None:
            _stack[-1].caught += 1
            return replacement(*args, **kwargs)
        if func is F.scaled_dot_product_attention and (kwargs.get("dropout_p") or (len(args) > 4 and args[4])):
            _stack[-1].caught += 1
            return _attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with _inside_attention():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def _inside_attention() -> Iterator[None]:
    """Let multi-head attention find our dropout: while torch runs it, a function mode does not see what it calls."""

    def attention(*args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("dropout_p") or (len(args) > 4 and args[4]):
            _stack[-1].caught += 1
            return _attention(*args, **kwargs)
        return plain(*args, **kwargs)

    def drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        _stack[-1].caught += 1
        return _caught_functional(input, p, training)

    plain, plain_drop = F.scaled_dot_product_attention, F.dropout
    F.scaled_dot_product_attention, F.dropout = attention, drop
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.dropout = plain, plain_drop


@contextmanager
def keyed(key: int | Tensor, step: int | Tensor = 0, *, catch: bool = True) -> Iterator[_Stream]:
    """Make every draw of the block follow (key, step).

    Args:
        key: an integer key, or the int32 words of one (`words`), which may be batched by vmap.
        step: any integer; another step gives other draws. An int32 scalar may be mapped by vmap.
        catch: also redirect torch's own dropout functions; leave out when the network is known to have none,
            since catching costs a few microseconds for each torch call.
    """
    stream = _Stream(key, step)
    _stack.append(stream)
    try:
        if catch:
            with _Catch():
                yield stream
        else:
            yield stream
    finally:
        _stack.pop()


def step() -> int | Tensor | None:
    """Return the step of the running block, None outside of one."""
    return _stack[-1].step if _stack else None


@contextmanager
def repeated(key: int) -> Iterator[None]:
    """Make the draws of the block follow `key` and the running step, whatever the running key; outside of one, torch's own.

    >>> with keyed(1, step=3), repeated(7):
    ...     a = index(100, device=torch.device("cpu"))
    >>> with keyed(2, step=3), repeated(7):
    ...     a == index(100, device=torch.device("cpu"))
    True
    """
    if not _stack:
        yield
        return
    outer = _stack[-1]
    _stack.append(stream := _Stream(key, outer.step))
    try:
        yield
    finally:
        _stack.pop()
        outer.drawn += stream.drawn


class Branch:
    """Streams of the members of a joint network, taken from one site of the running stream; see `branch`."""

    def __init__(self, outer: _Stream | None):
        self._outer = outer
        self._words = outer.next_words() if outer else (0, 0)

    @contextmanager
    def member(self, index: int | Tensor) -> Iterator[None]:
        """Give the block the draws of member `index`: an integer, or an int32 scalar mapped by vmap."""
        if self._outer is None:
            yield
            return
        low, high = self._words
        if isinstance(low, int) and isinstance(index, int):
            key: int | Tensor = _mix_int(low + index * 0x9E3779B1) | _mix_int(high ^ (index * 0x85EBCA77)) << 32
        else:
            index = torch.as_tensor(index, dtype=torch.int32)
            key = torch.stack((_mix(low + index * _signed(0x9E3779B1)), _mix(high ^ (index * _signed(0x85EBCA77)))))
        _stack.append(stream := _Stream(key, self._outer.step))
        try:
            yield
        finally:
            _stack.pop()
            self._outer.caught += stream.caught


def branch() -> Branch:
    """Return streams for the members of a joint network, so that each member draws numbers of its own.

    A member's draws depend on the running key, step and its index alone: not on how many members there are, nor on
    whether they run one after the other or together under vmap. Outside of a `keyed` block it changes nothing.

    >>> with keyed(7):
    ...     members = branch()
    ...     with members.member(0):
    ...         a = uniform((3,), like=torch.zeros(()))
    ...     with members.member(1):
    ...         b = uniform((3,), like=torch.zeros(()))
    >>> torch.equal(a, b)
    False
    """
    return Branch(_stack[-1] if _stack else None)
