"""Let a part of a network that is computed a second time draw what it drew the first time.

`torch.utils.checkpoint` keeps no activations of a part and runs it again in the backward pass, when the stream of the forward pass has gone on or
is closed. torch's generator is put back for it; draws by counting have no generator, so the place in their stream is kept here, with all else
that the part was told. torch has no hook for it, so the function that prepares the second run is exchanged while keyed blocks run. Members are the bytes that they are without `checkpoint`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint

from choral.base.catching import Catch
from choral.base.streams import Circumstances, Stream, now, under

_prepare: Any = checkpoint._checkpoint_without_reentrant_generator
_counting, _blocks = threading.Lock(), 0


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


@contextmanager
def replaying() -> Iterator[None]:
    """Let `torch.utils.checkpoint` ask for the second run here while the block runs, in all threads."""
    global _blocks
    with _counting:
        _blocks += 1
        checkpoint._checkpoint_without_reentrant_generator = _prepared  # type: ignore[assignment]  # it takes any arguments
        checkpoint.CheckpointFunction.apply = classmethod(_applied)  # type: ignore[method-assign, assignment]  # a method of torch's
    try:
        yield
    finally:
        with _counting:
            _blocks -= 1
            if not _blocks:
                checkpoint._checkpoint_without_reentrant_generator = _prepare
                del checkpoint.CheckpointFunction.apply  # the inherited one shows again
