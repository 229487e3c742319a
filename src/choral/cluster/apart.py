"""Train runs on a cluster: prepared here, their leaves trained side by side there. `fit` then finds them trained."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from choral.base.errors import InputError
from choral.cluster.calls import Call, field_of, settle_leaves
from choral.cluster.ray import Ray, RayWorkers
from choral.cluster.run import Plot, logged, plot_of, train_all
from choral.cluster.sites import opened, publish
from choral.engine.events import Callback
from choral.engine.folder import claimed


@dataclass(frozen=True)
class Asked:
    """A run that is to be trained apart.

    Attributes:
        call: what makes it what it is.
        run_dir: where it goes.
        listener: called with every event.
        overwrite: whether it starts again.
    """

    call: Call
    run_dir: Any
    listener: Callback | None = None
    overwrite: bool = False


def check_cluster(cluster: Any, run_dir: Any, **refused: Any) -> None:
    """Raise InputError for a cluster that is none, and for what a run on one cannot have.

    Args:
        cluster: what the user gave.
        run_dir: the place of the run.
        refused: further arguments that must be left out.
    """
    if not isinstance(cluster, Ray):
        raise InputError(f"cluster is {cluster!r}; give choral.Ray(), or leave it out.")
    if run_dir is None:
        raise InputError("a cluster needs run_dir, a folder or URL that all its machines see; give one.")
    if str(getattr(run_dir, "url", run_dir)).startswith("memory://"):
        raise InputError(
            "run_dir is memory://, which no other process sees; give a folder or URL that all machines see."
        )
    given = [name for name, value in refused.items() if value]
    if given:
        raise InputError(f"{given[0]} is {refused[given[0]]!r}, which a run on a cluster cannot have; leave it out.")


def train_apart(asked: Sequence[Asked], cluster: Ray) -> None:
    """Train the leaves of runs side by side on a cluster; RunError names those that could not be."""
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(cluster.connected())
        plots = [_plot(one, cluster, workers, stack.enter_context) for one in asked]
        train_all([plot for plot in plots if plot is not None], workers)


def _plot(one: Asked, cluster: Ray, workers: RayWorkers, enter: Callable[[Any], Any]) -> Plot | None:
    """Prepare a run, which is held until all are trained; return its leaves that wait."""
    call = one.call
    if call.compute.threads is None:
        call = replace(call, options=call.options | {"compute": replace(call.compute, threads=cluster.threads)})
    folder, objects = enter(opened(one.run_dir))
    enter(claimed(folder))
    job = call.job()
    plan = settle_leaves(call, job, folder, stack=None, slots=workers.slots, overwrite=one.overwrite)
    publish(objects, folder, overwrite=one.overwrite)
    if "leaves" not in plan:  # one process has trained it
        return None
    return plot_of(field_of(call, job, objects, plan), call, one.run_dir, enter(logged(folder, one.listener)))
