"""Streams of random draws by counting, and the context that forward passes run in.

A draw is a hash of two words (from a key, a step and a site) and the number of the element. The context holds the running stream,
whether sampled layers use their means, and the component that patched layers take. It is valid within a block of code, in the thread
or asynchronous task that entered it.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Parameter

from choral.base.errors import InputError

MASK32 = 0xFFFFFFFF
GOLDEN = 0x9E3779B1
_BLOCK = 1 << 15  # numbers hashed at once: they stay in the processor's cache
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


def hashed(n: int, first: int | Tensor, second: int | Tensor, device: torch.device) -> Tensor:
    """Return n int32 hash values of two words (integers, or int32 scalars), uniform over all 2^32 patterns.

    Where vmap maps the words, it maps the values.
    """
    if device.type != "cpu":
        return mix(mix(torch.arange(n, dtype=torch.int32, device=device) * signed(GOLDEN) + first) + second)
    if isinstance(first, int) and isinstance(second, int):
        pair = (np.array([word & MASK32], np.uint32) for word in (first, second))
        return torch.from_numpy(_hashed_blocks(n, *pair)[0])
    return _hashed_words(torch.as_tensor(first), torch.as_tensor(second), n)


@torch.library.custom_op("choral::hashed", mutates_args=())
def _hashed_words(first: Tensor, second: Tensor, n: int) -> Tensor:
    """Return the values (..., n) of words (...)."""
    firsts, seconds = (word.contiguous().numpy().view(np.uint32).reshape(-1) for word in (first, second))
    return torch.from_numpy(_hashed_blocks(n, firsts, seconds).reshape(*first.shape, n))


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


def _hashed_blocks(n: int, firsts: _Block, seconds: _Block) -> npt.NDArray[np.int32]:
    """Return the values (pair, n) of pairs of words; numpy takes a seventh of the time of torch's operations."""
    found = np.empty((len(firsts), n), np.uint32)
    rows, size = max(1, _BLOCK // max(n, 1)), min(n, _BLOCK)
    counted, spare = _counted(size), np.empty((min(rows, len(firsts)), size), np.uint32)
    for top in range(0, len(firsts), rows):
        first, second = firsts[top : top + rows, None], seconds[top : top + rows, None]
        for start in range(0, n, _BLOCK):
            h = found[top : top + rows, start : start + _BLOCK]
            t = spare[: h.shape[0], : h.shape[1]]
            np.add(counted[: h.shape[1]], first + np.uint32(start * GOLDEN & MASK32), out=h)
            _mix_block(h, t)
            np.add(h, second, out=h)
            _mix_block(h, t)
    return found.view(np.int32)


@lru_cache(maxsize=64)
def _counted(n: int) -> _Block:
    """Return what the numbers 0 to n - 1 of elements add to the first word; not to be written into."""
    return np.arange(n, dtype=np.uint32) * np.uint32(GOLDEN)


def _mix_block(h: _Block, t: _Block) -> None:
    """Mix in place; t is overwritten."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        np.bitwise_xor(h, np.right_shift(h, shift, out=t), out=h)
        np.multiply(h, factor, out=h)
    np.bitwise_xor(h, np.right_shift(h, 15, out=t), out=h)


def words(*keys: int) -> Tensor:
    """Return the keys as int32 words for `keyed`: shape (2,) for one key, (key, 2) for several.

    >>> words(5).shape, words(5, 6, 7).shape
    (torch.Size([2]), torch.Size([3, 2]))
    """
    pairs = [(signed(k), signed(k >> 32)) for k in keys]
    return torch.tensor(pairs[0] if len(pairs) == 1 else pairs, dtype=torch.int32)


class Stream:
    """The key of the running forward pass and the number of draws made so far.

    Args:
        key: as in `choral.base.draws.keyed`.
        step: as there.
    """

    def __init__(self, key: int | Tensor, step: int | Tensor):
        self.key = key
        self.step = step
        self.site = 0
        self.caught = 0
        self.drawn = 0  # numbers, in all draws
        self.values: dict[int, tuple[Tensor, Tensor]] = {}  # tensors that values were drawn from, and these

    def copy(self) -> "Stream":
        """Return a stream at the same place."""
        found = Stream(self.key, self.step)
        found.site = self.site
        return found

    @property
    def by_number(self) -> bool:
        """Whether key and step are numbers, so that nothing it draws is mapped."""
        return isinstance(self.key, int) and isinstance(self.step, int)

    def next_words(self) -> tuple[Any, Any]:
        """Return the two words of the next site: Python ints for an int key, else scalar tensors."""
        if isinstance(self.step, Tensor):
            return self._mapped_words(self.step)
        salt = mix_int(self.step * GOLDEN + self.site * 0x85EBCA77 + 0x165667B1)
        salt2 = mix_int(salt + self.site * 0x27D4EB2F + self.step)
        self.site += 1
        if isinstance(self.key, int):
            low = mix_int((self.key & MASK32) ^ salt)
            return signed(low), signed(mix_int((self.key >> 32) + salt2 + low))
        first = mix(self.key[0] ^ signed(salt))
        return first, mix(self.key[1] + signed(salt2) + first)

    def generator(self, device: torch.device) -> torch.Generator:
        """Return a generator for the next site, for functions of torch that draw in ways of their own."""
        if now().part is not None:
            raise InputError(
                "the network draws by a function of torch whose numbers cannot be counted by row, so parts of a batch cannot draw what the "
                "whole would; draw with choral.base.draws, or train without data_parallel and accumulate."
            )
        first, second = self.next_words()
        if not isinstance(first, int):
            raise InputError(
                "the network draws by a function of torch that cannot draw for several members at once, such as uniform_ or bernoulli_; "
                "draw with nn.Dropout, torch.rand_like or torch.bernoulli, or use a method whose members are networks of their own with "
                "executor='sequential'."
            )
        return torch.Generator(device).manual_seed((first & MASK32) << 32 | second & MASK32)

    def _mapped_words(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same words for a step that is an int32 scalar, which vmap may map."""
        salt = mix(step * signed(GOLDEN) + signed(self.site * 0x85EBCA77 + 0x165667B1))
        salt2 = mix(salt + signed(self.site * 0x27D4EB2F) + step)
        self.site += 1
        key = (signed(self.key), signed(self.key >> 32)) if isinstance(self.key, int) else self.key
        low, high = key[0], key[1]
        first = mix(salt ^ low)
        return first, mix(salt2 + high + first)


@dataclass(frozen=True)
class Part:
    """Which rows of a batch a forward pass is given, so that rows draw what they would draw in the whole batch.

    Args:
        start: the first of them.
        rows: how many.
        of: rows of the whole batch.
    """

    start: int
    rows: int
    of: int


@dataclass(frozen=True)
class Rate:
    """A rate of dropout as draws use it, for one network or, as tensors that vmap maps, for many.

    Attributes:
        threshold: a draw of 32 bits below it drops.
        scale: of what is kept.
    """

    threshold: int | Tensor
    scale: float | Tensor

    @staticmethod
    def of(rate: float) -> "Rate":
        """Return a rate from 0 to below 1.

        >>> Rate.of(0.5).scale
        2.0
        """
        return Rate(_threshold(rate), 1.0 / (1.0 - rate))


class Kept:
    """Drawn values kept from one call to the next, by their sites, up to a number of bytes.

    Where key, step and source stay the same, as in prediction, a weight need not be drawn again: one row of a Bayesian perceptron of
    3 x 512 takes a tenth of the time.

    Args:
        most: bytes, at most.
    """

    def __init__(self, most: int):
        self.most, self.bytes = most, 0
        self._held: dict[Hashable, tuple[Tensor, int, Tensor, int]] = {}

    def get(self, place: Hashable, source: Tensor) -> tuple[Tensor, int] | None:
        """Return the value drawn at a place from the same, unchanged tensor, and the number of the site after it."""
        value, site, known, version = self._held.get(place, (None, 0, None, 0))
        return (value, site) if value is not None and known is source and version == _version(source) else None

    def put(self, place: Hashable, source: Tensor, value: Tensor, site: int) -> None:
        """Keep a value if there is room."""
        if place not in self._held and self.bytes + value.nbytes <= self.most:
            self._held[place] = value, site, source, _version(source)
            self.bytes += value.nbytes

    def clear(self) -> None:
        """Forget everything."""
        self._held, self.bytes = {}, 0


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class Circumstances(NamedTuple):
    """What a forward pass is told from outside; a tuple, since every pass makes one."""

    stream: Stream | None = None
    means: bool = False  # whether sampled layers use the center of their posteriors
    component: int | Tensor | None = None  # what patched layers take if they all take the same
    outer: Stream | None = None  # what members of a joint network were given streams from
    kept: Kept | None = None  # drawn weights of earlier calls
    part: Part | None = None  # None gives it whole batches
    folded: int = 1  # members laid one after the other on the batch axis
    rows: int = 1  # of each of them there, at the beginning
    dropout: "Rate | None" = None  # what dropout layers drop, whatever they say themselves
    # gives a part of a network, which is computed again later, the tensors that are put in now
    holding: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None


_NONE = Circumstances()
_now: ContextVar[Circumstances] = ContextVar("choral_circumstances", default=_NONE)


def now() -> Circumstances:
    """Return the circumstances of this place in the program."""
    return _now.get()


@contextmanager
def under(**changes: Any) -> Iterator[None]:
    """Change some circumstances for a block of code."""
    token = _now.set(_now.get()._replace(**changes))
    try:
        yield
    finally:
        _now.reset(token)


def _bits(shape: Sequence[int], device: torch.device, stream: Stream, rows: int | None = None) -> Tensor:
    """Return int32 hash values, uniform over all 2^32 patterns, for the next site of a stream."""
    first, second = stream.next_words()
    n = math.prod(shape)
    stream.drawn += n
    part = None if rows is None else _now.get().part
    with torch._C.DisableTorchFunctionSubclass():  # whole numbers have no gradient
        if part is None or rows is None:
            return hashed(n, first, second, device).view(tuple(shape))
        blocks = math.prod(shape[:rows]) * (_now.get().folded if rows == 0 else 1)
        if n % (blocks * part.rows):
            raise InputError(
                f"the network draws numbers of shape {tuple(shape)} for {part.rows} rows of a batch of {part.of}, and their first axis is "
                "not the batch, so parts of a batch cannot draw what the whole would; put the batch axis first, or train without "
                "data_parallel and accumulate."
            )
        each = n // (blocks * part.rows)
        # numbers are counted in the whole batch
        starts = [(block * part.of + part.start) * each for block in range(blocks)]
        found = [hashed(part.rows * each, _moved(first, start), second, device) for start in starts]
        return (found[0] if len(found) == 1 else torch.cat(found)).view(tuple(shape))


def _moved(first: Any, start: int) -> Any:
    """Return the first word of a site whose count begins at `start`."""
    step = signed(start * GOLDEN)
    return signed(first + step) if isinstance(first, int) else first + step


@contextmanager
def folded(members: int, rows: int = 1) -> Iterator[None]:
    """Say that members, of so many rows each, lie one after the other on the batch axis of what the block computes."""
    with under(folded=members, rows=rows):
        yield


def uniform(shape: Sequence[int], *, like: Tensor, rows: int | None = None) -> Tensor:
    """Return uniform draws on (0, 1), open at both ends, in `like`'s dtype and device."""
    stream = _now.get().stream
    if stream is None:
        return torch.rand(tuple(shape), dtype=like.dtype, device=like.device)
    # 23 bits and a half step: every value and its distance to 0 and 1 is exact in float32
    bits = (_bits(shape, like.device, stream, rows) >> 9) & 0x7FFFFF
    return ((bits.to(torch.float32) + 0.5) * 2.0**-23).to(like.dtype)


def normal(shape: Sequence[int], *, like: Tensor, rows: int | None = None) -> Tensor:
    """Return standard normal draws in `like`'s dtype and device (within 5.2 standard deviations when keyed)."""
    stream = _now.get().stream
    if stream is None:
        return torch.randn(tuple(shape), dtype=like.dtype, device=like.device)
    bits = _bits(shape, like.device, stream, rows) >> 9
    if not stream.by_number:  # mapped: what writes into tensors cannot be recorded
        centered = ((bits & 0x7FFFFF).to(torch.float32) + (0.5 - 2.0**22)) * 2.0**-22
        return (torch.erfinv(centered) * 2.0**0.5).to(like.dtype)
    whole = bits.bitwise_and_(0x7FFFFF).to(torch.float32)
    return whole.add_(0.5 - 2.0**22).mul_(2.0**-22).erfinv_().mul_(2.0**0.5).to(like.dtype)


def integers(high: int, shape: Sequence[int], *, device: torch.device, rows: int | None = None) -> Tensor:
    """Return integer draws (int64), uniform on 0..high-1."""
    stream = _now.get().stream
    if stream is None:
        return torch.randint(high, tuple(shape), device=device)
    bits = (_bits(shape, device, stream, rows).to(torch.int64) & MASK32) * high
    return bits >> 32


def index(high: int, *, device: torch.device) -> int | Tensor:
    """Return one draw, uniform on 0..high-1: the number that `integers` gives, as a Python int where the key is one.

    >>> from choral.base.draws import keyed
    >>> with keyed(7):
    ...     index(5, device=torch.device("cpu"))
    4
    >>> with keyed(7):
    ...     integers(5, (1,), device=torch.device("cpu")).tolist()
    [4]
    """
    stream = _now.get().stream
    if stream is not None and isinstance(stream.key, int) and isinstance(stream.step, int):
        first, second = stream.next_words()
        return (mix_int(mix_int(first) + second) * high) >> 32
    return integers(high, (1,), device=device)


def keep_mask(shape: Sequence[int], rate: float, *, device: torch.device, rows: int | None = None) -> Tensor:
    """Return a boolean mask that is False with probability `rate`, element by element."""
    stream = _now.get().stream
    if stream is None:
        return torch.rand(tuple(shape), device=device) >= rate
    return _bits(shape, device, stream, rows) >= _threshold(rate)


def _threshold(rate: float) -> int:
    return min(int(rate * 2.0**32), MASK32) - (1 << 31)


def dropout(x: Tensor, rate: float | Rate, *, rows: int | None = 0, shape: Sequence[int] | None = None) -> Tensor:
    """Return x with elements zeroed with probability `rate` and the rest scaled by 1 / (1 - rate).

    Args:
        x: activations, or weights.
        rate: of zeros; a `Rate` draws also for zero, so that all rates draw alike, and needs a keyed block.
        rows: the axis of the batch; None for weights, which all rows share.
        shape: of the draws, which are broadcast to x; None for one draw per element.
    """
    shape = x.shape if shape is None else shape
    if isinstance(rate, Rate):
        stream = _now.get().stream
        assert stream is not None, "rates from outside come with a key"
        keep, scale = _bits(shape, x.device, stream, rows) >= rate.threshold, rate.scale
    elif 0 < rate < 1:
        keep, scale = keep_mask(shape, rate, device=x.device, rows=rows), 1.0 / (1.0 - rate)
    else:
        return x if rate <= 0 else x * 0
    return x * (keep.to(x.dtype) * scale)


def remembered(source: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return a value drawn from a tensor, or the one drawn here from the same tensor in an earlier call, where those are kept.

    It must depend on nothing but the tensors of its layer and the running stream; not on the input. In prediction a tensor has one value
    in a pass, also if its layer is called for one chunk of the batch after the other.
    """
    stream = _now.get().stream
    if stream is None or torch.is_grad_enabled():
        return _kept(source, make)
    if id(source) not in stream.values:
        stream.values[id(source)] = source, _kept(source, make)  # holding the source keeps its id from being reused
    return stream.values[id(source)][1]


def _kept(source: Tensor, make: Callable[[], Tensor]) -> Tensor:
    held = _now.get()
    stream, kept = held.stream, held.kept
    if kept is None or stream is None or not stream.by_number or not isinstance(source, Parameter):
        return make()  # mapped calls have many values, and a part of a stacked parameter is another tensor each time
    place = (stream.key, stream.step, stream.site)
    found = kept.get(place, source)
    if found is None:
        value = make()
        kept.put(place, source, value, stream.site)
        return value
    value, stream.site = found
    return value


def step() -> int | Tensor | None:
    """Return the step of the running block, None outside of one."""
    stream = _now.get().stream
    return None if stream is None else stream.step


@contextmanager
def repeated(key: int) -> Iterator[None]:
    """Make the draws of the block follow `key` and the running step, whatever the running key; outside of one, torch's own.

    >>> from choral.base.draws import keyed
    >>> with keyed(1, step=3), repeated(7):
    ...     a = index(100, device=torch.device("cpu"))
    >>> with keyed(2, step=3), repeated(7):
    ...     a == index(100, device=torch.device("cpu"))
    True
    """
    outer = _now.get().stream
    if outer is None:
        yield
        return
    stream = Stream(key, outer.step)
    try:
        with under(stream=stream):
            yield
    finally:
        outer.drawn += stream.drawn


class Branch:
    """Streams of the members of a joint network, taken from one site of the running stream; see `branch`."""

    def __init__(self, outer: Stream | None):
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
            key: int | Tensor = mix_int(low + index * 0x9E3779B1) | mix_int(high ^ (index * 0x85EBCA77)) << 32
        else:
            index = torch.as_tensor(index, dtype=torch.int32)
            key = torch.stack((mix(low + index * signed(0x9E3779B1)), mix(high ^ (index * signed(0x85EBCA77)))))
        stream = Stream(key, self._outer.step)
        try:
            with under(stream=stream, outer=self._outer):
                yield
        finally:
            self._outer.caught += stream.caught


@contextmanager
def common() -> Iterator[None]:
    """Give the block, within a member's, the draws of the joint network: the same for all members that run together."""
    outer = now().outer
    if outer is None:
        yield
        return
    with under(stream=outer, outer=None):
        yield


def branch() -> Branch:
    """Return streams for the members of a joint network, so that each member draws numbers of its own.

    A member's draws depend on the running key, step and its index alone: not on how many members there are, nor on
    whether they run one after the other or together under vmap. Outside of a `keyed` block it changes nothing.

    >>> from choral.base.draws import keyed, uniform
    >>> with keyed(7):
    ...     members = branch()
    ...     with members.member(0):
    ...         a = uniform((3,), like=torch.zeros(()))
    ...     with members.member(1):
    ...         b = uniform((3,), like=torch.zeros(()))
    >>> torch.equal(a, b)
    False
    """
    return Branch(now().stream)
