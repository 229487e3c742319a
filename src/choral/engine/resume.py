"""Train what is missing of a run: a new, interrupted, extended or finished one, or one with lost members; and say what it cost."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from choral.base.errors import InputError, RunError, warn
from choral.engine.checkpoint import Checkpoints
from choral.engine.events import Callback, Log, last_counted
from choral.engine.files import write_json
from choral.engine.folder import read_costs, run_of
from choral.engine.identity import differences, identity_of
from choral.engine.job import Job
from choral.engine.parts import Parts
from choral.engine.preparation import environment
from choral.engine.run import Run
from choral.engine.store import MemberStore
from choral.plan.walk import Place


def in_agreement(parts: Parts, make: Callable[[], Job]) -> Job:
    """Return the job that this process makes; InputError in all processes that share batches if one fails, or makes another job."""
    if parts.group is None:
        return make()
    job, failed, own = None, None, None
    try:
        job = make()
        own = identity_of(job, executor=job.executor)
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


def carry_out(
    job: Job,
    folder: Path | None,
    plan: dict[str, Any],
    width: int,
    listener: Callback | None,
    *,
    seconds: float,
    started: float,
) -> tuple[MemberStore, dict[str, Any]]:
    """Run a job, or what is left of it; return its members and what it cost.

    Args:
        job: what is to be done.
        folder: the claimed run folder; None keeps members in memory and takes no checkpoints.
        plan: the settled plan.
        width: branches of a fork that are walked together, at most.
        listener: called with every event.
        seconds: least time between two checkpoints.
        started: when the call began, by time.perf_counter.
    """
    store = MemberStore() if folder is None else MemberStore(folder / "members", run=run_of(plan))
    checkpoints = None if folder is None else Checkpoints(folder / "checkpoints")
    with closing(Log(None if folder is None else folder / "log.jsonl", listener)) as log:
        apart = plan["executor"] == "sequential"
        run = Run(job=job, width=width, apart=apart, store=store, checkpoints=checkpoints, log=log, seconds=seconds)
        if job.rules.time_limit is not None:
            run.setup = job.task.parts.agreed(time.perf_counter() - started)
        costs = _completed(run, folder, plan, started=started)
    if "kept" in costs:
        store.numbers = costs["kept"]
    return store, costs


def _completed(run: Run, folder: Path | None, plan: dict[str, Any], *, started: float) -> dict[str, Any]:
    """Train what is not yet there of a run, which has not begun to walk; return what it cost."""
    count, parts = len(run.member_of), run.task.parts
    stands = parts.agreed(None if folder is None else _standing(run, folder, plan, count))
    if stands is None:
        run.execute()
        return parts.agreed(costs_of(run, started))
    finished, costs, lost = stands
    _hand_out(run, [number for number in range(count) if number not in lost], costs)
    added = plan.get("extended")
    if finished:
        mend(run, lost)
    else:
        if added is not None:
            run.ledger.counted |= added["counted"]
        if added is None or parts.agreed(bool(run.checkpoints)):
            run.begin()
        if run.snapshot is not None:
            mend(run, lost, until=run.snapshot.position, failed=run.snapshot.failed)
        run.execute(only=None if added is None else parts.agreed(list(run.store.lost(count))))
    if not costs:
        if not run.ledger.counted["epochs"]:
            run.ledger.counted = parts.agreed({} if folder is None else last_counted(folder / "log.jsonl"))
        costs = parts.agreed(costs_of(run, started))
        if folder is not None:
            write_json(folder / "results.json", costs, within=folder)
    if run.checkpoints is not None and "ended" not in costs:
        run.checkpoints.clear()
    return costs


def _standing(run: Run, folder: Path, plan: dict[str, Any], count: int) -> tuple[bool, dict[str, Any], dict[int, str]]:
    """Return how far a run has come: whether there is nothing left but to mend it, what it cost, and which members are lost."""
    finished = (folder / "results.json").exists()  # whole or not: what it says can be made again
    costs, lost = kept_costs(folder, run.log), run.store.lost(count)
    if "kept" in costs:  # members that a time limit left out are not lost
        gone = [number for number in costs["kept"] if number in lost]
        if gone:
            raise RunError(
                f"{folder} was ended by its time limit and member {gone[0]} is lost ({lost[gone[0]]}); it cannot be trained again to "
                "where the clock had left it. Go on with a larger time_limit or none, or use another run_dir."
            )
        lost = {}
    begun, now = plan["environment"], environment(torch.get_num_threads()) | run.task.parts.environment
    if lost and begun != now:
        warn(
            f"{folder} was begun with {begun} and goes on with {now}; members agree with an unbroken run to rounding, not bit for bit.",
        )
    return finished or not (lost or run.checkpoints), costs, lost


def mend(run: Run, lost: Mapping[int, str], *, until: float = math.inf, failed: Iterable[Place] = ()) -> None:
    """Train lost or damaged members again, to the same bytes: walk to them from the start, past every whole branch.

    Branches that are stacked are trained in the same stack. What the run has counted and logged stays as it is.

    Args:
        run: the run; it has not begun to walk.
        lost: numbers of the members, each with what became of it (`MemberStore.lost`).
        until: only members collected before this position of the walk; the others come anyway.
        failed: places of branches that diverged, whose members are not expected.
    """
    if not lost:
        return
    twin = run.twin(Log())
    twin.skip_to = math.inf  # once without doing anything, for the positions
    twin.walk()
    wanted = {
        number: place
        for place, number in run.member_of.items()
        if number in lost and twin.collected_at[number] < until and not any(gone.holds(place) for gone in failed)
    }
    for number in wanted:
        message = f"member {number} is lost ({lost[number]}); training it again from the start of its branch"
        run.log.event(kind="warning", message=message)
    if wanted:
        twin = run.twin(Log())
        twin.wanted = wanted
        twin.walk()


def _hand_out(run: Run, present: list[int], costs: dict[str, Any]) -> None:
    """Give the members that are there to processes without the folder, so that each returns the whole ensemble."""
    parts = run.task.parts
    for number in costs.get("kept", present) if parts.group is not None else ():
        state = parts.agreed(run.store.get(number) if parts.writes else None)
        if state is not None and not parts.writes:
            run.store.put(number, state)


def kept_costs(folder: Path, log: Log) -> dict[str, Any]:
    """Return what results.json says, nothing if it is missing or damaged."""
    try:
        return read_costs(folder)
    except RunError as error:
        log.event(kind="warning", message=f"{error} It is made again from the log.")
        return {}


def costs_of(run: Run, started: float) -> dict[str, Any]:
    """Return what a complete run has counted, and what its members cost."""
    count = len(run.member_of)
    missing = run.store.missing(count)
    kept = [number for number in range(count) if number not in missing]
    if not kept:
        raise RunError("the time was up before any member had been trained; give a larger time_limit.")
    if missing and not run.setting.is_late:
        raise RunError(
            f"member {missing[0]} was not trained again; run the same call once more, or use another run_dir."
        )
    sizes = [(state.stored, run.flops.predict(state)) for state in map(run.store.get, kept)]
    ended: dict[str, Any] = {"ended": "time_limit", "kept": kept, "cut": run.cut} if run.setting.is_late else {}
    ended |= {"stopped": run.ledger.stopped} if run.ledger.stopped else {}
    return ended | {
        "counted": run.ledger.counted,
        "parameters": sum(stored for stored, _ in sizes),
        "predict_flops": sum(flops for _, flops in sizes) * run.task.structure.draws,
        "networks": len(kept),
        "outputs": list(run.task.output_shape),
        "seconds": time.perf_counter() - started,
    }
