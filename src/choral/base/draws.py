"""Random draws inside a forward pass, by counting instead of by state.

A draw is a hash of (key, step, site, element): the n-th random call of a forward pass is site n. It needs no
generator state, so it works under `torch.func.vmap` with one key per member and gives the same numbers under every
executor, after a resume and on every device. Layers call `uniform`, `normal`, `integers` or `dropout`; within a
`keyed` block these follow the key, outside of one they use torch's own generator, so that the layers also work in
anybody's own training loop. Draws for each row of a batch say which axis is the batch (`rows`), so that a part of a batch
(`part`) draws what it would draw in the whole one; those without, such as weights, are the same for all parts. `keyed` also catches `torch.nn.functional.dropout` and its relatives in networks that are
not ours.

Streams of the members of a joint network: each draws numbers of its own, however members are run.

Let a part of a network that is computed a second time draw what it drew the first time.

`torch.utils.checkpoint` keeps no activations of a part and runs it again in the backward pass, when the stream of the forward pass has gone on or
is closed. torch's generator is put back for it; draws by counting have no generator, so the place in their stream is kept here, with all else
that the part was told. Installed once, in torch's module, where `checkpoint` looks for what prepares the second run. Outside of
a keyed block it changes nothing. Members are the bytes that they are without `checkpoint`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint

from choral.base.ahead import Ahead
from choral.base.catching import Catch
from choral.base.hashing import mix, mix_int, signed
from choral.base.keeping import Kept
from choral.base.streams import (
    Circumstances,
    Part,
    Rate,
    Stream,
    dropout,
    folded,
    index,
    integers,
    keep_mask,
    normal,
    now,
    remembered,
    repeated,
    step,
    under,
    uniform,
    words,
)


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


_prepare: Any = checkpoint._checkpoint_without_reentrant_generator


def _placed(stream: Stream | None) -> Stream | None:
    """Return a stream of its own at the place where one stands."""
    if stream is None:
        return None
    found = Stream(stream.key, stream.step)
    found.site = stream.site
    return found


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs, whenever it is called, with the draws that come next at this place of the program."""
    told = now()
    if told.stream is None:
        return function
    catching = any(isinstance(mode, Catch) for mode in _get_current_function_mode_stack())
    part = function if told.holding is None else told.holding(function)
    begun = told._replace(stream=_placed(told.stream), outer=_placed(told.outer))

    def again(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(under(**_copy(begun)._asdict()))
            if catching:
                stack.enter_context(Catch())
            return part(*args, **kwargs)

    return again


def _copy(begun: Circumstances) -> Circumstances:
    """Return circumstances whose streams may be used up: a part can be computed more than twice."""
    return begun._replace(stream=_placed(begun.stream), outer=_placed(begun.outer))


def _prepared(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _prepare(replayed(function), *args, **kwargs)


def _applied(cls: type, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """Compute a part as `use_reentrant=True` asks for it; in a keyed block in the other way, whose gradients can be asked for one by one."""
    if now().stream is None or cls is not checkpoint.CheckpointFunction:
        return super(checkpoint.CheckpointFunction, cls).apply(function, preserve, *args)  # type: ignore[misc]  # cls is a subclass
    return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


def install() -> None:
    """Let torch ask for the second run here."""
    checkpoint._checkpoint_without_reentrant_generator = _prepared  # type: ignore[assignment]  # it takes any arguments
    checkpoint.CheckpointFunction.apply = classmethod(_applied)  # type: ignore[method-assign, assignment]  # a method of torch's


__all__ = [
    "Ahead",
    "Branch",
    "Part",
    "Rate",
    "branch",
    "common",
    "dropout",
    "folded",
    "index",
    "integers",
    "keep_mask",
    "keyed",
    "normal",
    "remembered",
    "repeated",
    "step",
    "uniform",
    "words",
]


install()


@contextmanager
def keyed(
    key: int | Tensor,
    step: int | Tensor = 0,
    *,
    catch: bool = True,
    part: Part | None = None,
    kept: Kept | None = None,
    dropout: Rate | None = None,
    ahead: Ahead | None = None,
) -> Iterator[Stream]:
    """Make every draw of the block follow (key, step).

    Args:
        key: an integer key, or the int32 words of one (`words`), which may be batched by vmap.
        step: any integer; another step gives other draws. An int32 scalar may be mapped by vmap.
        catch: also redirect torch's own dropout functions; leave out when the network is known to have none,
            since catching costs a few microseconds for each torch call.
        part: which rows of a batch the block is given; None for all.
        kept: drawn weights of earlier calls, if there are any.
        dropout: what dropout layers drop instead of what they say themselves.
        ahead: what earlier passes of the same kind have drawn, so that this one draws it at once; for integers alone.
    """
    stream = Stream(key, step, ahead)
    told: dict[str, Any] = {"stream": stream, "part": part, "dropout": dropout}
    with under(**told) if kept is None else under(**told, kept=kept):
        if catch:
            with Catch():
                yield stream
        else:
            yield stream
