"""Streams of draws, and what else a forward pass is told from outside: one value in one context variable.

The running stream, whether sampled layers use their means, and the component all patched layers take: they hold within a block of
code, for the thread (or asynchronous task) that entered it, and nobody else sees them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from choral.base.errors import InputError
from choral.base.hashing import GOLDEN, MASK32, bits, mix, mix_int, signed
from choral.base.keeping import Drawn, Kept


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
            return bits(n, first, second, device).view(tuple(shape))
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
        found = [bits(part.rows * each, _moved(first, start), second, device) for start in starts]
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


def dropout(x: Tensor, rate: float, *, rows: int | None = 0) -> Tensor:
    """Return x with elements zeroed with probability `rate` and the rest scaled by 1 / (1 - rate).

    Args:
        x: activations, or weights.
        rate: of zeroes.
        rows: the axis of the batch; None for weights, which all rows share.
    """
    if rate <= 0:
        return x
    if rate >= 1:
        return x * 0
    return x * (keep_mask(x.shape, rate, device=x.device, rows=rows).to(x.dtype) * (1.0 / (1.0 - rate)))


def dropped(x: Tensor, rate: Rate, shape: Sequence[int]) -> Tensor:
    """Return x with what draws of a shape say dropped, in a keyed block; a rate of 0 draws too, so that all rates draw alike."""
    stream = _now.get().stream
    assert stream is not None, "rates from outside come with a key"
    keep = _bits(shape, x.device, stream, 0) >= rate.threshold
    return x * (keep.to(x.dtype) * rate.scale)


def remembered(source: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return a value drawn from a tensor, or the one drawn here from the same tensor in an earlier call, where those are kept.

    It must depend on nothing but the tensors of its layer and the running stream; not on the input. In prediction a tensor has one value
    in a pass, also if its layer is called for one chunk of the batch after the other.
    """
    stream = _now.get().stream
    if stream is None or torch.is_grad_enabled():
        return _kept(source, make)
    if id(source) not in stream.values:
        stream.values[id(source)] = (
            source,
            _kept(source, make),
        )  # with the source, whose number no other tensor gets then
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
        kept.put(place, Drawn.of(value, source, stream.site))
        return value
    stream.site = found.site
    return found.value


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
