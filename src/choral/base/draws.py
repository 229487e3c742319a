"""Random draws inside a forward pass, by counting instead of by state.

A draw is a hash of (key, step, site, element): the n-th random call of a forward pass is site n. It needs no
generator state, so it works under `torch.func.vmap` with one key per member and gives the same numbers under every
executor, after a resume and on every device. Layers call `uniform`, `normal`, `integers` or `dropout`; within a
`keyed` block these follow the key, outside of one they use torch's own generator, so that the layers also work in
anybody's own training loop. Draws for each row of a batch say which axis is the batch (`rows`), so that a part of a batch
(`part`) draws what it would draw in the whole one; those without, such as weights, are the same for all parts. `keyed` also catches `torch.nn.functional.dropout` and its relatives in networks that are
not ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor

from choral.base.catching import Catch
from choral.base.keeping import Kept
from choral.base.members import Branch, branch, common
from choral.base.recomputing import replaying
from choral.base.streams import (
    Part,
    Rate,
    Stream,
    dropout,
    folded,
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


@contextmanager
def keyed(
    key: int | Tensor,
    step: int | Tensor = 0,
    *,
    catch: bool = True,
    part: Part | None = None,
    kept: Kept | None = None,
    dropout: Rate | None = None,
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
    """
    stream = Stream(key, step)
    told: dict[str, Any] = {"stream": stream, "part": part, "dropout": dropout}
    kept_too = {} if kept is None else {"kept": kept}
    with under(**told, **kept_too), replaying(), Catch() if catch else nullcontext():
        yield stream
