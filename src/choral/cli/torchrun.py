"""A command started by torchrun: its processes share every batch of training, and the first one speaks and writes."""

import contextlib
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Processes:
    """Number of this process, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def several(self) -> bool:
        """Whether batches are shared."""
        return self.size > 1

    @property
    def speaks(self) -> bool:
        """Whether this one says and writes what comes out."""
        return self.rank == 0


def started_by_torchrun() -> bool:
    """Return whether this process is one of several that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def joined() -> Processes:
    """Return the processes that this one has joined."""
    if not started_by_torchrun():
        return Processes()
    import torch.distributed as dist

    return Processes(dist.get_rank(), dist.get_world_size())


@contextlib.contextmanager
def processes() -> Iterator[None]:
    """Join the processes that torchrun started, for a block of code; all but the first are silent in it."""
    if not started_by_torchrun():
        yield
        return
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        with contextlib.ExitStack() as stack:
            if dist.get_rank():
                nowhere = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
                stack.enter_context(contextlib.redirect_stderr(nowhere))
            yield
        # Leave together: gloo's threads still release tensors of the last exchange, which a process that ends meanwhile does not survive.
        with contextlib.suppress(RuntimeError):  # another process failed, and torchrun says so
            dist.barrier()
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still refers to the group keeps its threads
