"""Runs in leaves: prepare a run, list its leaves, train one or all of them, and assemble the run."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from choral.base.errors import ChoralError, DivergedError, InputError, RunError, did_you_mean
from choral.base.types import Build
from choral.base.values import guarded
from choral.cluster.leaf import Field, admitted, leaves_of, read_manifest, read_whole, train_leaf, whole_manifest
from choral.cluster.ray import Ray
from choral.cluster.storage import Storage, opened, publish
from choral.engine.compute import Compute, OnExisting, Store, is_far
from choral.engine.events import Callback, Log, events_in, one_of
from choral.engine.files import write_bytes
from choral.engine.folder import claimed, read_plan, settle
from choral.engine.job import WIDEST, Call, Job, call_of
from choral.engine.run import Leaf, refuse_lost
from choral.plan.phases import Fork, Phase
from choral.plan.walk import Place, Visitor, collected, walk
from choral.recipes.recipe import Recipe

Asked = tuple[Call, Any, Callback | None, OnExisting]
"""A run that is to be trained on a cluster: what makes it what it is, where it goes, its listener, what happens to one that is there."""


def refuse(what: str, **given: Any) -> None:
    """Raise InputError for the first argument that a kind of run does not support."""
    for name, value in given.items():
        if value:
            raise InputError(f"{name} is {value!r}, which a run {what} does not support; leave it out.")


def _leaf_call(build: Any, data: Any, recipe: Any, options: dict[str, Any]) -> Call:
    """Return the call of a run in leaves; InputError for arguments that such runs do not support."""
    call = call_of(build, data, recipe, options)
    compute = call.compute
    refuse("in leaves", time_limit=compute.time_limit, data_parallel=compute.data_parallel, cluster=compute.cluster)
    return call


def shared_among(slots: int, plan: Phase) -> int:
    """Return how many branches of a plan's largest fork each of several workers trains."""
    forks = [1]
    walk(plan, None, Visitor(enter=lambda phase, _: forks.append(phase.branches if isinstance(phase, Fork) else 1)))
    return -(-max(forks) // slots)


def settle_leaves(call: Call, job: Job, folder: Path, *, stack: int, on_existing: OnExisting) -> dict[str, Any]:
    """Write the plan of a run in leaves to its folder and return it; RunError if the folder contains another kind of run."""
    plan, _ = settle(folder, job, table=call.table, on_existing=on_existing, stack=stack)
    if "leaves" not in plan and not (folder / "results.json").exists():
        raise RunError(
            f"{folder} contains an unfinished run that is not cut into leaves; finish it with the call that started it, "
            "or use another run_dir (--out), or on_existing='overwrite' (--overwrite)."
        )
    return plan


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
    """Make a run folder without training: the plan, cut into leaves. Return the state of each leaf.

    Args:
        build, data, recipe: as in `choral.fit`.
        run_dir: a folder that all training processes can access, or a URL ('s3://bucket/run', `choral.Store`).
        stack: largest number of networks that one leaf trains together, if the executor stacks them; None for no limit.
        on_existing: 'overwrite' replaces another run in the folder.
        options: as in `choral.fit`: seed, validation, compute and so on.
    """
    call = _leaf_call(build, data, recipe, options)
    refuse("in leaves", on_existing="extend" if on_existing == "extend" else None)
    with opened(run_dir) as storage:
        job = call.job()
        with claimed(storage.folder):
            plan = settle_leaves(call, job, storage.folder, stack=stack or WIDEST, on_existing=on_existing)
            if "leaves" not in plan:
                raise RunError(
                    f"{storage.where} holds this run already, trained as a whole: choral.load gives it; use another run_dir (--out), or "
                    "on_existing='overwrite' (--overwrite) to start again."
                )
            publish(storage, overwrite=on_existing == "overwrite")
        return _states(storage, plan)


@guarded
def leaves(run_dir: str | Path | Store) -> list[dict[str, Any]]:
    """Return the leaves of a prepared run: path, state, number of networks, members, the leaf each continues from, epochs.

    A leaf is 'ready', 'begun' (it has a checkpoint), 'waiting' for the one it continues from, 'done', or 'diverged'.
    """
    with opened(run_dir) as storage:
        return _states(storage, _planned(storage))


def _states(storage: Storage, plan: dict[str, Any]) -> list[dict[str, Any]]:
    found = [(leaf, read_manifest(storage, plan, leaf)) for leaf in leaves_of(plan)]
    done = {leaf.path for leaf, manifest in found if manifest is not None}
    rows = []
    for leaf, manifest in found:
        if manifest is not None:
            state = "diverged" if manifest.failed else "done"
        elif leaf.after is not None and leaf.after not in done:
            state = "waiting"
        else:
            state = "begun" if any("/checkpoint-" in name for name in storage.names(leaf.folder)) else "ready"
        about = {"members": list(leaf.members), "after": leaf.after, "epochs": leaf.epochs}
        rows.append({"path": leaf.path, "state": state, "networks": len(leaf.branches), **about})
    return rows


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
    """Train one leaf of a prepared run, unless it is trained; return its members' files with their SHA-256.

    If it is killed, the same call, here or elsewhere, continues from the newest checkpoint.

    Args:
        run_dir: the folder.
        path: the leaf, as named by `choral.leaves`.
        build, data, recipe: the same as in `choral.prepare`.
        callbacks: called with every event, as in `choral.fit`.
        options: the same as in `choral.prepare`.
    """
    call = _leaf_call(build, data, recipe, options)
    with opened(run_dir) as storage:
        plan = _planned(storage)
        known = [leaf.path for leaf in leaves_of(plan)]
        if path not in known:
            shown = f"{', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
            raise InputError(f"{storage.where} has no leaf {path!r}; it has {shown}.{did_you_mean(path, known)}")
        manifest = train_leaf(admitted(call, storage, run_dir, plan), path, one_of(callbacks))
    if manifest.failed:
        raise DivergedError(f"leaf {path!r}: {'; '.join(manifest.failed.values())}; its other members are kept.")
    return {"leaf": path, "members": manifest.members, "digest": manifest.digest}


def _planned(storage: Storage) -> dict[str, Any]:
    plan = read_plan(storage.folder)
    if plan is None or "leaves" not in plan:
        what = "no run" if plan is None else "a run that is not cut into leaves"
        raise RunError(f"{storage.where} holds {what}; make one with choral.prepare or choral fit --prepare.")
    return plan


def train_here(
    call: Call,
    job: Job,
    where: Storage | Path,
    plan: dict[str, Any],
    listener: Callback | None,
    on_existing: OnExisting,
) -> None:
    """Train the remaining leaves of a run one after the other, and write its log as that of one process."""
    storage = where if isinstance(where, Storage) else Storage(where)
    if on_existing == "extend" or job.task.parts.size > 1:
        what = "extended" if on_existing == "extend" else "trained by processes that share batches (data_parallel)"
        raise RunError(f"{storage.where} is a run in leaves, which cannot be {what}; use another run_dir.")
    publish(storage, overwrite=on_existing == "overwrite")
    with closing(Log(storage.folder / "log.jsonl", listener)) as log:
        field = _waiting(Field(storage, None, plan, call, job), log)
        failed: dict[str, str] = {}
        for leaf in field.waiting:
            if leaf.after in failed:
                failed[leaf.path] = ""
                continue
            try:
                train_leaf(field, leaf.path, lambda event, path=leaf.path: field.hear(path, event))  # type: ignore[misc]
            except ChoralError as error:
                failed[leaf.path] = str(error)
        _refuse([field], failed)
    lost = _write_log(field)
    if lost:
        refuse_lost(lost, field.store, len(collected(job.recipe.plan)))


def _waiting(field: Field, log: Log) -> Field:
    """Return the run with only the leaves that are not trained or have lost files, and the sum of all counts."""
    log.rewind(0)
    counted: dict[str, dict[str, float]] = {}
    waiting: list[Leaf] = []

    def hear(path: str, event: dict[str, Any]) -> None:
        if "counted" in event:
            counted[path] = event["counted"]
            event = event | {"counted": total(counted.values())}
        log.event(**event)

    for leaf in field.leaves.values():
        manifest, damage = whole_manifest(field.storage, field.plan, leaf)
        if damage:
            log.event(kind="warning", message=f"{damage}; leaf '{leaf.path}' is trained again")
        if manifest is None:
            waiting.append(leaf)
        else:
            counted[leaf.path] = manifest.counted
    return replace(field, waiting=waiting, hear=hear)


def total(counts: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sums of counts."""
    found = Counter[str]()
    for one in counts:
        found.update(one)
    return dict(found)


def _refuse(fields: Sequence[Field], failed: dict[str, str]) -> None:
    if not failed:
        return
    reason = next(iter(failed.values()))  # leaves that continue from a lost one come after it
    count = sum(len(field.leaves) for field in fields)
    where = ", ".join(field.storage.where for field in fields)
    more = f" (and {len(failed) - 1} more of {count} leaves)" if len(failed) > 1 else ""
    raise RunError(f"{reason.rstrip('.')}{more}. Trained leaves are kept in {where}; the same command continues.")


def _write_log(field: Field) -> dict[Place, str]:
    """Write log.jsonl: the events of all leaves in plan order with running counts. Return the diverged branches."""
    storage, lines, before, lost = field.storage, list[str](), dict[str, float](), dict[Place, str]()
    for path, leaf in field.leaves.items():
        manifest, name = read_manifest(storage, field.plan, leaf), f"{leaf.folder}/log.jsonl"
        if manifest is None:
            raise RunError(f"{storage.where}: the manifest of leaf '{path}' is gone; run the same command again.")
        storage.pull(name)
        log = storage.folder / name
        for event in events_in(log.read_bytes() if log.exists() else b""):
            if "counted" in event:
                event["counted"] = total([before, event["counted"]])
            lines.append(json.dumps(event | {"leaf": path}))
        before = total([before, manifest.counted])
        lost |= manifest.failed
    text, held = "".join(f"{line}\n" for line in lines).encode(), storage.folder / "log.jsonl"
    if not held.exists() or held.read_bytes() != text:
        write_bytes(held, text, within=storage.folder)
    return lost


@contextlib.contextmanager
def fetched(run_dir: Any) -> Iterator[Path]:
    """Yield a temporary folder with a copy of a run at a URL, without damaged members."""
    with opened(run_dir) as storage:
        plan = _planned(storage)
        (storage.folder / "members").mkdir()
        for leaf in leaves_of(plan):
            manifest = read_manifest(storage, plan, leaf)
            for name, digest in () if manifest is None else manifest.members.items():
                if read_whole(storage, name, digest) is None:
                    (storage.folder / name).unlink(missing_ok=True)
        yield storage.folder


def check_cluster(compute: Compute, run_dir: Any, on_existing: OnExisting = "resume") -> None:
    """Raise InputError for an invalid cluster, and for arguments that clusters do not support."""
    if not isinstance(compute.cluster, Ray):
        raise InputError(f"cluster is {compute.cluster!r}; give choral.Ray(), or leave it out.")
    if run_dir is None or str(run_dir).startswith("memory://"):
        raise InputError(
            f"run_dir is {run_dir}; a cluster needs run_dir, a folder or URL that all its machines can access."
        )
    extends = "extend" if on_existing == "extend" else None
    refuse("on a cluster", time_limit=compute.time_limit, on_existing=extends, data_parallel=compute.data_parallel)


def train_apart(asked: Sequence[Asked], cluster: Ray) -> None:
    """Train the leaves of runs in parallel on a cluster; RunError names those that failed."""
    with contextlib.ExitStack() as opening:
        workers = opening.enter_context(cluster.connected())
        fields: list[Field] = []
        for call, run_dir, listener, on_existing in asked:
            if call.compute.threads is None:
                call = replace(call, compute=replace(call.compute, threads=max(1, int(cluster.cpus))))
            storage = opening.enter_context(opened(run_dir))
            opening.enter_context(claimed(storage.folder))  # until all are trained
            job = call.job()
            stack = shared_among(workers.slots, call.recipe.plan)
            plan = settle_leaves(call, job, storage.folder, stack=stack, on_existing=on_existing)
            publish(storage, overwrite=on_existing == "overwrite")
            if "leaves" in plan:  # else one process has trained it
                log = opening.enter_context(closing(Log(storage.folder / "log.jsonl", listener)))
                run_dir = run_dir if is_far(run_dir) else Path(run_dir).resolve()
                fields.append(_waiting(Field(storage, run_dir, plan, call, job), log))
        _refuse(fields, workers.train(fields))
