"""Let the processes that share every batch agree on what they do, before anything is trained."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from choral.base.errors import InputError
from choral.engine.identity import differences, identity_of
from choral.engine.job import Job
from choral.engine.parts import Parts


def in_agreement(parts: Parts, make: Callable[[], Job], *, seed: int, executor: str) -> Job:
    """Return the job that this process makes; InputError in all of them if one fails, or makes another job than the first.

    Args:
        parts: who the others are.
        make: understands the call of this process.
        seed, executor: as in `choral.fit`.
    """
    if parts.group is None:
        return make()
    job, failed, own = None, None, None
    try:
        job = make()
        own = identity_of(job.task, job.source, job.recipe, seed=seed, executor=executor, watched=job.watched)
    except Exception as error:  # the others wait to hear of it, whatever it is
        failed = error
    told: list[Any] = [None] * parts.group.size
    dist.all_gather_object(told, (None if failed is None else str(failed), own))
    if failed is not None:
        raise failed
    assert job is not None
    for rank, (said, other) in enumerate(told):
        if said is not None:
            raise InputError(f"process {rank} of {parts.group.size} cannot take part: {said}")
        apart = differences(told[0][1], other)
        if apart:
            how = apart[0].replace(" was changed", " is another").replace(" was ", " is ").replace(", now ", " and ")
            raise InputError(
                f"processes 0 and {rank} are to share every batch of one run, but were given different ones ({how}); give every process the same call "
                "with all of the data: choral shares batches out itself."
            )
    return job
