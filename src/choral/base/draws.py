"""Random draws inside a forward pass, by counting instead of by state.

A draw is a hash of (key, step, site, element): the n-th random call of a forward pass is site n. It needs no
generator state, so it works under `torch.func.vmap` with one key per member and gives the same numbers under every
executor, after a resume and on every device. Layers call `uniform`, `normal`, `integers` or `dropout`; within a
`keyed` block these follow the key, outside of one they use torch's own generator, so that the layers also work in
anybody's own training loop. `keyed` also catches `torch.nn.functional.dropout` and its relatives in networks that are
not ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from choral.base.catching import Catch
from choral.base.streams import (
    Branch,
    Stream,
    active,
    branch,
    common,
    dropout,
    index,
    integers,
    keep_mask,
    normal,
    remembered,
    repeated,
    step,
    under,
    uniform,
    words,
)

__all__ = [
    "Branch",
    "active",
    "branch",
    "common",
    "dropout",
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


@contextmanager
def keyed(key: int | Tensor, step: int | Tensor = 0, *, catch: bool = True) -> Iterator[Stream]:
    """Make every draw of the block follow (key, step).

    Args:
        key: an integer key, or the int32 words of one (`words`), which may be batched by vmap.
        step: any integer; another step gives other draws. An int32 scalar may be mapped by vmap.
        catch: also redirect torch's own dropout functions; leave out when the network is known to have none,
            since catching costs a few microseconds for each torch call.
    """
    stream = Stream(key, step)
    with under(stream=stream):
        if catch:
            with Catch():
                yield stream
        else:
            yield stream
