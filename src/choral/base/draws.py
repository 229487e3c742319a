"""Random draws inside a forward pass, by counters instead of generator states.

A draw is a hash of (key, step, site, element): the n-th random call of a forward pass is site n, the same under every executor, after a
resume and on every device. Within a `keyed` block the functions here and those of torch use its key; outside they use torch's generator.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Parameter

from choral.base.errors import InputError

Word = Any  # 32 bits: a Python int, or an int32 scalar, which vmap may map
_GOLDEN = 0x9E3779B1
_BLOCK = 1 << 15  # numbers hashed at once: they stay in the processor's cache


def _signed(value: int) -> int:
    return (value + (1 << 31) & 0xFFFFFFFF) - (1 << 31)


def _mix(h: Word) -> Word:
    """Return a word, or the words of an int32 tensor, with its bits mixed."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        h = (h ^ (h >> shift & 0xFFFFFFFF >> shift)) * factor
        h = h if isinstance(h, Tensor) else _signed(h)
    return h ^ (h >> 15 & 0x1FFFF)


def _hashed(n: int, first: Word, second: Word, device: torch.device) -> Tensor:
    """Return n int32 hash values of two words, uniform over all 2^32 patterns. Where vmap maps the words, it maps the values."""
    if device.type != "cpu":
        return _mix(_mix(torch.arange(n, dtype=torch.int32, device=device) * _signed(_GOLDEN) + first) + second)
    if isinstance(first, int):
        return torch.from_numpy(
            _hashed_blocks(n, *(np.array([[_signed(word)]], np.int32) for word in (first, second)))[0]
        )
    return _hashed_words(first, second, n)


def _hashed_blocks(n: int, firsts: npt.NDArray[np.int32], seconds: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the values (pair, n) of pairs of words (pair, 1); numpy takes a seventh of the time of torch's operations."""
    firsts, seconds = firsts.view(np.uint32), seconds.view(np.uint32)
    found = np.empty((len(firsts), n), np.uint32)
    rows = max(1, _BLOCK // max(n, 1))
    for top in range(0, len(firsts), rows):
        for start in range(0, n, _BLOCK):
            h = found[top : top + rows, start : start + _BLOCK]
            counted = np.arange(start, start + h.shape[1], dtype=np.uint32) * np.uint32(_GOLDEN)
            np.add(counted, firsts[top : top + rows], out=h)
            _mix_block(h)
            np.add(h, seconds[top : top + rows], out=h)
            _mix_block(h)
    return found.view(np.int32)


@torch.library.custom_op("choral::hashed", mutates_args=())
def _hashed_words(first: Tensor, second: Tensor, n: int) -> Tensor:
    """Return the values (..., n) of words (...)."""
    pairs = (word.contiguous().numpy().reshape(-1, 1) for word in (first, second))
    return torch.from_numpy(_hashed_blocks(n, *pairs).reshape(*first.shape, n))


@_hashed_words.register_fake
def _(first: Tensor, second: Tensor, n: int) -> Tensor:
    return first.new_empty((*first.shape, n))


@_hashed_words.register_vmap
def _(info: Any, axes: tuple[int | None, ...], first: Tensor, second: Tensor, n: int) -> tuple[Tensor, int]:
    words = [
        word.expand(info.batch_size, *word.shape) if axis is None else word.movedim(axis, 0)
        for word, axis in zip((first, second), axes)
    ]
    return _hashed_words(*words, n), 0


def _mix_block(h: npt.NDArray[np.uint32]) -> None:
    """Mix in place, as `_mix` does."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        h ^= h >> shift
        h *= factor
    h ^= h >> 15


def words(*keys: int) -> Tensor:
    """Return the keys as int32 words for `keyed`: shape (2,) for one key, (key, 2) for several."""
    return torch.tensor([(_signed(k), _signed(k >> 32)) for k in keys], dtype=torch.int32).squeeze(0)


def _times(word: Word, factor: int) -> Word:
    return word * _signed(factor) if isinstance(word, Tensor) else _signed(word * factor)


class Stream:
    """The key of the running forward pass, or its two words, its step, and the number of draws made so far."""

    def __init__(self, key: int | Tensor | tuple[Word, Word], step: int | Tensor):
        words = (_signed(key), _signed(key >> 32)) if isinstance(key, int) else (key[0], key[1])
        self.low: Word = words[0]
        self.high: Word = words[1]
        self.step = step
        self.site = 0
        self.caught = 0  # calls of torch's random functions
        self.drawn = 0  # numbers, in all draws
        self.values: dict[int, tuple[Tensor, Tensor]] = {}  # tensors that values were drawn from, and these

    @property
    def by_number(self) -> bool:
        """Whether key and step are numbers, so that nothing it draws is mapped."""
        return isinstance(self.low, int) and isinstance(self.step, int)

    def next_words(self) -> tuple[Word, Word]:
        """Return the two words of the next site."""
        salt = _mix(_times(self.step, _GOLDEN) + _signed(self.site * 0x85EBCA77 + 0x165667B1))
        salt2 = _mix(salt + _signed(self.site * 0x27D4EB2F) + self.step)
        self.site += 1
        first = _mix(self.low ^ salt)
        return first, _mix(self.high + salt2 + first)


class Part(NamedTuple):
    """The part of a batch in a forward pass: its first row, its number of rows, and the rows of the whole batch."""

    start: int
    rows: int
    of: int


class Rate(NamedTuple):
    """A rate of dropout as draws use it, or tensors of rates that vmap maps: draws of 32 bits below the threshold drop, the rest is scaled."""

    threshold: int | Tensor
    scale: float | Tensor

    @staticmethod
    def of(rate: float) -> "Rate":
        """Return a rate from 0 to below 1."""
        return Rate(_threshold(rate), 1.0 / (1.0 - rate))


class Kept:
    """Values drawn from parameters, kept from call to call by their sites, up to a number of bytes: a Bayesian MLP 3 x 512 predicts a row in a tenth."""

    def __init__(self, most: int):
        self.most, self.bytes = most, 0
        self._held = dict[Hashable, tuple[Tensor, int, Tensor, int]]()

    def value(self, stream: Stream, source: Parameter, make: Callable[[], Tensor]) -> Tensor:
        """Return what was drawn at this site from the same, unchanged parameter, or make it."""
        place = (stream.low, stream.high, stream.step, stream.site)
        version = 0 if source.is_inference() else source._version
        if place in self._held:
            value, site, known, then = self._held[place]
            if known is source and then == version:
                stream.site = site
                return value
        value = make()
        if place not in self._held and self.bytes + value.nbytes <= self.most:
            self._held[place] = value, stream.site, source, version
            self.bytes += value.nbytes
        return value


class Circumstances(NamedTuple):
    """The context of a forward pass; a tuple, since every pass makes one."""

    stream: Stream | None = None
    means: bool = False  # whether sampled layers use the center of their posteriors
    component: int | Tensor | None = None  # what patched layers take if they all take the same
    outer: Stream | None = None  # what members of a joint network were given streams from
    kept: Any = None  # drawn weights of earlier calls, a `Kept` of `choral.layers.bayesian.sampling`
    part: Part | None = None  # None gives it whole batches
    folded: int = 1  # members laid one after the other on the batch axis
    rows: int = 1  # of each of them there, at the beginning
    dropout: Rate | None = None  # what dropout layers drop, whatever they say themselves
    ends: tuple[tuple[str, ...], str] = ((), "")  # layers that read inputs, and the output's, for conversions


_now: ContextVar[Circumstances] = ContextVar("choral_circumstances", default=Circumstances())  # noqa: B039  # a tuple
now = _now.get
"""Return the circumstances of this place in the program."""


@contextmanager
def under(**changes: Any) -> Iterator[None]:
    """Change some circumstances for a block of code."""
    token = _now.set(now()._replace(**changes))
    try:
        yield
    finally:
        _now.reset(token)


def _bits(shape: Sequence[int], device: torch.device, stream: Stream, rows: int | None = None) -> Tensor:
    """Return int32 hash values, uniform over all 2^32 patterns, for the next site of a stream."""
    first, second = stream.next_words()
    n, part = math.prod(shape), None if rows is None else now().part
    stream.drawn += n
    if part is None:
        return _hashed(n, first, second, device).view(tuple(shape))
    blocks = math.prod(shape[:rows]) * (now().folded if rows == 0 else 1)
    each, left = divmod(n, blocks * part.rows)
    if left:
        raise InputError(
            f"the network draws numbers of shape {tuple(shape)} for {part.rows} rows of a batch of {part.of}, and their first axis is "
            "not the batch; put it first, or train without data_parallel and accumulate."
        )
    starts = [(block * part.of + part.start) * each for block in range(blocks)]  # counted in the whole batch
    found = [_hashed(part.rows * each, first + _signed(s * _GOLDEN), second, device) for s in starts]
    return torch.cat(found).view(tuple(shape))


def uniform(shape: Sequence[int], *, like: Tensor, rows: int | None = None) -> Tensor:
    """Return uniform draws on (0, 1), open at both ends, in `like`'s dtype and device."""
    stream = now().stream
    if stream is None:
        return torch.rand(tuple(shape), dtype=like.dtype, device=like.device)
    # 23 bits and a half step: every value and its distance to 0 and 1 is exact in float32
    bits = (_bits(shape, like.device, stream, rows) >> 9) & 0x7FFFFF
    return ((bits.to(torch.float32) + 0.5) * 2.0**-23).to(like.dtype)


def normal(shape: Sequence[int], *, like: Tensor, rows: int | None = None) -> Tensor:
    """Return standard normal draws in `like`'s dtype and device (within 5.2 standard deviations when keyed)."""
    stream = now().stream
    if stream is None:
        return torch.randn(tuple(shape), dtype=like.dtype, device=like.device)
    whole = (_bits(shape, like.device, stream, rows) >> 9 & 0x7FFFFF).to(torch.float32)
    if not stream.by_number:  # mapped: what writes into tensors cannot be recorded
        return (torch.erfinv((whole + (0.5 - 2.0**22)) * 2.0**-22) * 2.0**0.5).to(like.dtype)
    return whole.add_(0.5 - 2.0**22).mul_(2.0**-22).erfinv_().mul_(2.0**0.5).to(like.dtype)


def integers(high: int, shape: Sequence[int], *, device: torch.device, rows: int | None = None) -> Tensor:
    """Return integer draws (int64), uniform on 0..high-1."""
    stream = now().stream
    if stream is None:
        return torch.randint(high, tuple(shape), device=device)
    return (_bits(shape, device, stream, rows).to(torch.int64) & 0xFFFFFFFF) * high >> 32


def index(high: int, *, device: torch.device) -> int | Tensor:
    """Return one draw, uniform on 0..high-1: the number that `integers` gives, as a Python int where the key is one."""
    stream = now().stream
    if stream is not None and stream.by_number:  # a tenth of the time
        first, second = stream.next_words()
        return (_mix(_mix(first) + second) & 0xFFFFFFFF) * high >> 32
    return integers(high, (1,), device=device)


def keep_mask(shape: Sequence[int], rate: float, *, device: torch.device, rows: int | None = None) -> Tensor:
    """Return a boolean mask that is False with probability `rate`, element by element."""
    stream = now().stream
    if stream is None:
        return torch.rand(tuple(shape), device=device) >= rate
    return _bits(shape, device, stream, rows) >= _threshold(rate)


def _threshold(rate: float) -> int:
    return min(int(rate * 2.0**32), 0xFFFFFFFF) - (1 << 31)


def dropout(x: Tensor, rate: float | Rate, *, rows: int | None = 0, shape: Sequence[int] | None = None) -> Tensor:
    """Return x with elements zeroed with probability `rate` and the rest scaled by 1 / (1 - rate).

    Args:
        x: activations, or weights.
        rate: share of zeros; a `Rate` also draws for 0, so that all rates use equally many draws, and needs a keyed block.
        rows: the axis of the batch; None for weights, which all rows share.
        shape: shape of the draws, which are broadcast to x; None for one draw per element.
    """
    shape = x.shape if shape is None else shape
    if isinstance(rate, Rate):
        stream = now().stream
        assert stream is not None, "rates from outside come with a key"
        keep, scale = _bits(shape, x.device, stream, rows) >= rate.threshold, rate.scale
    elif 0 < rate < 1:
        keep, scale = keep_mask(shape, rate, device=x.device, rows=rows), 1.0 / (1.0 - rate)
    else:
        return x if rate <= 0 else x * 0
    return x * (keep.to(x.dtype) * scale)


@contextmanager
def _inner(key: Any, around: Stream, **changes: Any) -> Iterator[None]:
    """Run a block with its own stream, and add its numbers of draws to those of the surrounding one."""
    stream = Stream(key, around.step)
    try:
        with under(stream=stream, **changes):
            yield
    finally:
        around.caught += stream.caught
        around.drawn += stream.drawn


def repeated(key: int) -> AbstractContextManager[None]:
    """Make the draws of the block follow `key` and the running step, whatever the running key; outside of one, torch's own."""
    outer = now().stream
    return nullcontext() if outer is None else _inner(key, outer)


class Branch:
    """Streams for the members of a joint network; a member's draws depend on the running key, step and its index alone."""

    def __init__(self) -> None:
        self._outer = now().stream
        self._words = self._outer.next_words() if self._outer else (0, 0)

    def member(self, index: int | Tensor) -> AbstractContextManager[None]:
        """Give the block the draws of member `index`: an integer, or an int32 scalar mapped by vmap."""
        if self._outer is None:
            return nullcontext()
        low, high = self._words
        key = _mix(low + _times(index, 0x9E3779B1)), _mix(high ^ _times(index, 0x85EBCA77))
        return _inner(key, self._outer, outer=self._outer)


def common() -> AbstractContextManager[None]:
    """Use the draws of the joint network in a block within a member's: the same for all members that run together."""
    outer = now().outer
    return nullcontext() if outer is None else under(stream=outer, outer=None)
