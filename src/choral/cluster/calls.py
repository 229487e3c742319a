"""Prepare a run that is trained leaf by leaf, list its leaves, train one; train runs on a cluster.

Train runs on a cluster: prepared here, their leaves trained side by side there. `fit` then finds them trained.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from choral.base.arguments import guarded
from choral.base.errors import DivergedError, InputError, RunError, did_you_mean, unknown_argument
from choral.base.types import Build
from choral.callbacks import one_of
from choral.cluster.leaf import Field, admit, train_leaf
from choral.cluster.leaves import leaves_of
from choral.cluster.objects import Objects, Store, is_far
from choral.cluster.ray import Ray, RayWorkers
from choral.cluster.run import Here, Plot, conclude, logged, manifests_of, plot_of, states, train_all
from choral.cluster.sites import opened, publish
from choral.engine.compute import Compute, OnExisting
from choral.engine.events import Callback
from choral.engine.executor import Settled
from choral.engine.folder import claimed, read_plan
from choral.engine.job import Job, folds_of, understood
from choral.engine.parts import Parts, parts_of
from choral.engine.preparation import settle
from choral.engine.run import WIDEST
from choral.engine.store import MemberStore
from choral.engine.validation import AUTO
from choral.plan.phases import Fork, Phase
from choral.plan.walk import Visitor, walk
from choral.recipes import recipe_of
from choral.recipes.recipe import Recipe

OPTIONS: dict[str, Any] = {
    "seed": 0,
    "transforms": (),
    "target": None,
    "output": None,
    "sample_weight": None,
    "likelihood": None,
    "validation": AUTO,
    "cv": None,
    "early_stopping": None,
    "compute": Compute(),
    "table": None,
}
"""What `fit` takes that decides the members of a run, or how they are trained, and what it is if it is left out."""


@dataclass(frozen=True)
class Call:
    """The arguments that make a run what it is, as `fit` got them: any process can understand them again."""

    build: Any
    data: Any
    recipe: Recipe
    options: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    @property
    def compute(self) -> Compute:
        """Where and how it is trained."""
        found: Compute = self["compute"]
        return found

    def job(self, parts: Parts | None = None) -> Job:
        """Return what is to be done; raises InputError or PlanError where it cannot be.

        Args:
            parts: how batches are taken, by one process if None.
        """
        names = ("target", "sample_weight", "validation", "cv", "seed", "early_stopping", "output", "likelihood")
        compute = self.compute
        return understood(
            self.build,
            self.data,
            self.recipe,
            **{name: self[name] for name in names},
            time_limit=compute.time_limit,
            inputs=self["transforms"],
            device=compute.device,
            precision=compute.precision,
            parts=parts or parts_of(replace(compute, data_parallel=False)),
        )


def call_of(build: Any, data: Any, recipe: Any, options: dict[str, Any]) -> Call:
    """Return the call that arguments of `fit` make; InputError for one that there is not."""
    options = dict(options)
    compute, device = options.get("compute") or Compute(), options.pop("device", None)
    options["compute"] = compute if device is None else replace(compute, device=device)
    for name in options:
        if name not in OPTIONS:
            raise InputError(unknown_argument("fit", name, OPTIONS))
    recipe, (folds, _) = recipe_of(recipe), folds_of(options.get("cv"))
    return Call(build, data, recipe if folds is None else recipe.in_folds(folds), OPTIONS | options)


def _leaf_call(build: Any, data: Any, recipe: Any, options: dict[str, Any]) -> Call:
    """Return the call of a run in leaves; InputError for what only one process, or a cluster, can be asked for."""
    call = call_of(build, data, recipe, options)
    for name in ("time_limit", "data_parallel", "cluster"):
        if getattr(call.compute, name):
            raise InputError(
                f"compute has {name}={getattr(call.compute, name)!r}, which a run in leaves cannot; leave it out."
            )
    return call


def cut_by(plan: Phase, stack: int | None, slots: int | None = None) -> Callable[[Settled], dict[str, Any]]:
    """Return what says how a run is cut: branches stacked in a leaf, at most.

    Args:
        plan: the plan.
        stack: as many as the user asked for; None takes all that fit into memory, or shares them out.
        slots: leaves that can be trained at once, among which the branches of the largest fork are shared.
    """
    forks: list[int] = []

    def note(phase: Phase, place: Any) -> None:
        if isinstance(phase, Fork):
            forks.append(phase.branches)

    walk(plan, None, Visitor(enter=note))
    largest = max(forks, default=1)

    def cut(settled: Settled) -> dict[str, Any]:
        if settled.name == "sequential":
            return {"stack": 1}
        most = settled.width(Fork(branches=WIDEST, body=plan), WIDEST)
        shared = -(-largest // slots) if slots else WIDEST
        return {"stack": min(most, stack or shared)}

    return cut


def cut_for(call: Call, run_dir: Any, parts: Parts) -> Callable[[Settled], dict[str, Any]] | None:
    """Return how `fit` cuts a new run into leaves: not at all in a folder of this machine."""
    if not is_far(run_dir):
        return None
    if parts.group is not None:
        raise InputError(
            f"data_parallel=True trains in a folder of this machine, and run_dir is {run_dir}; give a path, or leave one of them out."
        )
    if call.compute.time_limit is not None:
        raise InputError(
            f"time_limit is {call.compute.time_limit!r}, a clock of one process, but a run in {run_dir} is trained leaf by leaf; leave it out."
        )
    return cut_by(call.recipe.plan, None)


def settle_leaves(
    call: Call, job: Job, folder: Path, *, stack: int | None, slots: int | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Return the settled plan of a run in leaves, written into its folder; RunError if the folder holds a run of another kind."""
    if stack is not None and call.compute.executor == "sequential" and stack > 1:
        raise InputError(
            f"stack is {stack}, but executor='sequential' trains one network at a time; leave one of them out."
        )
    plan, _ = settle(
        folder,
        job,
        seed=call["seed"],
        table=call["table"],
        executor=call.compute.executor,
        threads=call.compute.threads,
        overwrite=overwrite,
        cut=cut_by(call.recipe.plan, stack, slots),
    )
    _check_cut(folder, plan, stack)
    return plan


def _check_cut(folder: Path, plan: dict[str, Any], stack: int | None) -> None:
    """Raise RunError for a run that was begun as a whole, unless it is finished, and for one that is cut otherwise than asked for."""
    if "leaves" not in plan and not (folder / "results.json").exists():
        raise RunError(
            f"{folder} holds a run that was begun as a whole, and its checkpoints are not those of leaves; finish it with choral.fit as it "
            "was begun, or use another run_dir (--out), or on_existing='overwrite' (--overwrite)."
        )
    held = plan.get("leaves", {}).get("stack")
    if stack is not None and held is not None and held != stack:
        raise RunError(
            f"{folder} is cut into leaves of at most {held} network(s), now {stack} are asked for; leave stack out, or use another run_dir."
        )


@guarded
def prepare(
    build: Build | nn.Module,
    data: Any,
    recipe: Recipe | str,
    *,
    run_dir: str | Path | Store,
    stack: int | None = None,
    on_existing: OnExisting = "resume",
    **options: Any,
) -> list[dict[str, Any]]:
    """Make a run folder without training: the plan, settled once for all, cut into leaves. Return where each leaf stands.

    Args:
        build, data, recipe: as in `choral.fit`.
        run_dir: a folder that every process that trains a leaf can see, or the URL of one ('s3://bucket/run', `choral.Store`).
        stack: networks that one leaf trains together, at most, where the executor stacks them; None: as many as fit.
        on_existing: 'overwrite' starts again in a folder that holds another run.
        options: as in `choral.fit`: seed, validation, compute and so on.
    """
    call, overwrite = _leaf_call(build, data, recipe, options), on_existing == "overwrite"
    if on_existing == "extend":
        raise InputError("on_existing is 'extend', which a run in leaves cannot be; give 'resume' or 'overwrite'.")
    with opened(run_dir) as (folder, objects):
        job = call.job()
        with claimed(folder):
            plan = settle_leaves(call, job, folder, stack=stack, overwrite=overwrite)
            if "leaves" not in plan:
                raise RunError(
                    f"{objects.where} holds this run already, trained as a whole: choral.load gives it; use another run_dir (--out), or "
                    "on_existing='overwrite' (--overwrite) to start again."
                )
            publish(objects, folder, overwrite=overwrite)
        return states(objects, plan)


@guarded
def leaves(run_dir: str | Path | Store) -> list[dict[str, Any]]:
    """Return the leaves of a prepared run: path, state, number of networks, members, the leaf each goes on from, epochs.

    A leaf is 'ready', 'begun' (there is a checkpoint), 'waiting' for the one it goes on from, 'done', or 'diverged'.
    """
    if run_dir is None:
        raise InputError("run_dir is None; give the folder or store of a prepared run.")
    with opened(run_dir) as (folder, objects):
        return states(objects, _planned(folder, objects))


@guarded
def run_leaf(
    run_dir: str | Path | Store,
    path: str,
    build: Build | nn.Module,
    data: Any,
    recipe: Recipe | str,
    *,
    callbacks: Callback | Sequence[Callback] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train one leaf of a prepared run, or find it trained; return its members' files, each with its SHA-256.

    Killed and called again, here or elsewhere, it goes on from its newest checkpoint.

    Args:
        run_dir: the folder.
        path: the leaf, as `choral.leaves` names it.
        build, data, recipe: as they were given to `choral.prepare`; anything else is refused.
        callbacks: called with every event, as in `choral.fit`.
        options: as they were given to `choral.prepare`.
    """
    call = _leaf_call(build, data, recipe, options)
    with opened(run_dir) as (folder, objects):
        plan = _planned(folder, objects)
        known = {leaf.path: leaf for leaf in leaves_of(plan)}
        if path not in known:
            raise InputError(
                f"{objects.where} has no leaf {path!r}; it has {', '.join(list(known)[:8])}"
                f"{', ...' if len(known) > 8 else ''}.{did_you_mean(path, known)}"
            )
        job = call.job()
        admit(objects, plan, job, seed=call["seed"], executor=call.compute.executor)
        manifest = train_leaf(field_of(call, job, objects, plan), path, one_of(callbacks))
    if manifest.failed:
        raise DivergedError(f"leaf {path!r}: {'; '.join(manifest.failed.values())}; its other members are kept.")
    return {"leaf": path, "members": manifest.members, "digest": manifest.digest}


def carry_out_leaves(
    call: Call,
    job: Job,
    folder: Path,
    objects: Objects,
    plan: dict[str, Any],
    listener: Callback | None,
    *,
    extend: bool,
    started: float,
) -> tuple[MemberStore, dict[str, Any]]:
    """Train what is not yet trained of a run in leaves; return its members and what it cost.

    Args:
        call, job: what is to be done, as it was said and as it was understood.
        folder: where the files of the run are written.
        objects: where its leaves are.
        plan: the settled plan.
        listener: called with every event.
        extend: whether the user wants to add members, which a run in leaves cannot.
        started: when the call began, by time.perf_counter.
    """
    if extend or job.task.parts.group is not None:
        what = "extended" if extend else "trained by processes that share batches (data_parallel)"
        raise RunError(f"{folder} is a run in leaves, which cannot be {what}; use another run_dir.")
    field = field_of(call, job, objects, plan)
    with logged(folder, listener) as hear:
        train_all([plot_of(field, call, folder, hear)], Here())
    return conclude(field, folder, manifests_of(field), started=started)


def field_of(call: Call, job: Job, objects: Objects, plan: dict[str, Any]) -> Field:
    """Return what the leaves of a run have in common."""
    return Field(
        objects, plan, job, {leaf.path: leaf for leaf in leaves_of(plan, job.recipe)}, call.compute.checkpoint_seconds
    )


def _planned(folder: Path, objects: Objects) -> dict[str, Any]:
    """Return the plan of a run in leaves; RunError if there is none."""
    if folder.is_file():
        raise RunError(f"{objects.where} is a file; give the folder of a run.")
    plan = read_plan(folder)
    if plan is None or "leaves" not in plan:
        what = "no run" if plan is None else "a run that is not cut into leaves"
        raise RunError(f"{objects.where} holds {what}; make one with choral.prepare or choral fit --prepare.")
    return plan


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
