"""The two settings that `fit` makes for the whole process, since neither can be had for less."""

from collections.abc import Iterator
from contextlib import contextmanager

from choral.engine.denormals import flushing
from choral.engine.memory import keep_freed


@contextmanager
def settled_process(wanted: bool) -> Iterator[None]:
    """Keep freed memory from now on, and flush tiny numbers within the block; do neither unless it is wanted."""
    if not wanted:
        yield
        return
    keep_freed()
    with flushing():
        yield
