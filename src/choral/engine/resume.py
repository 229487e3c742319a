"""Train what is missing of a run: new, interrupted, extended, or with damaged members.

Complete a run: train what is not yet there, in a new folder, an interrupted or a finished one, and say what it cost.

Let the processes that share every batch agree on what they do, before anything is trained.

Lost or damaged members of a run are trained again, and only they.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from choral.base.errors import InputError, RunError
from choral.engine.checkpoint import Checkpoints
from choral.engine.events import Callback, Log, last_counted
from choral.engine.files import write_json
from choral.engine.folder import read_costs, run_of
from choral.engine.identity import differences, identity_of
from choral.engine.job import Job
from choral.engine.parts import Parts
from choral.engine.preparation import compare_environment
from choral.engine.run import Run
from choral.engine.store import MemberStore
from choral.plan.phases import Fork
from choral.plan.walk import Place


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
    places = {number: place for place, number in run.member_of.items()}

    def expected(number: int) -> bool:
        place = places[number]
        gone = any(lost_at.holds(place) for lost_at in failed)
        return twin.collected_at[number] < until and not gone

    wanted = {number: places[number] for number in lost if expected(number)}
    for number in wanted:
        message = f"member {number} is lost ({lost[number]}); training it again from the start of its branch"
        run.log.event(kind="warning", message=message)
    if wanted:
        twin = run.twin(Log())
        twin.wanted = wanted
        twin.walk()


def run_for(job: Job, plan: dict[str, Any], **options: Any) -> Run:
    """Return the run of a job by its settled plan; `options` are those of `Run`."""
    return Run(
        job.task,
        job.source,
        job.recipe.plan,
        validation=job.validation,
        rules=job.rules,
        apart=plan["executor"] == "sequential",
        **options,
    )


def carry_out(
    job: Job,
    folder: Path | None,
    plan: dict[str, Any],
    width: Callable[[Fork, int], int],
    listener: Callback | None,
    *,
    seed: int,
    seconds: float,
    started: float,
) -> tuple[MemberStore, dict[str, Any]]:
    """Run a job, or what is left of it; return its members and what it cost.

    Args:
        job: what is to be done.
        folder: the claimed run folder, None if it has none.
        plan: the settled plan.
        width: gives the number of branches to walk together for a fork.
        listener: called with every event.
        seed: root of every draw.
        seconds: least time between two checkpoints.
        started: when the call began, by time.perf_counter.
    """
    with _stores(folder, plan, listener) as (store, checkpoints, log):
        run = run_for(job, plan, seed=seed, width=width, store=store, checkpoints=checkpoints, log=log, seconds=seconds)
        if job.rules.time_limit is not None:
            run.setup = job.task.parts.agreed(time.perf_counter() - started)
        return store, complete(run, folder, plan, started=started)


@contextmanager
def _stores(
    folder: Path | None, plan: dict[str, Any], listener: Callback | None
) -> Iterator[tuple[MemberStore, Checkpoints | None, Log]]:
    """Open where members, checkpoints and events of a run go; None keeps members in memory and takes no checkpoints."""
    if folder is None:
        yield MemberStore(), None, Log(None, listener)
        return
    log = Log(folder / "log.jsonl", listener)
    try:
        yield MemberStore(folder / "members", run=run_of(plan)), Checkpoints(folder / "checkpoints"), log
    finally:
        log.close()


def complete(run: Run, folder: Path | None, plan: dict[str, Any], *, started: float) -> dict[str, Any]:
    """Train what is not yet there and return what the run cost.

    Args:
        run: the run; it has not begun to walk.
        folder: its folder, None if it has none.
        plan: the settled plan.
        started: when the call began, by time.perf_counter.
    """
    count, parts = len(run.member_of), run.task.parts
    stands = parts.agreed(None if folder is None else _standing(run, folder, plan, count))
    if stands is None:
        run.execute()
        return _shown(run, parts.agreed(_costs(run, count, time.perf_counter() - started)))
    finished, costs, lost = stands
    _hand_out(run, [number for number in range(count) if number not in lost], costs)
    added = plan.get("extended")
    if finished:
        mend(run, lost)
    elif added is not None:
        run.counted |= added["counted"]
        if parts.agreed(bool(run.checkpoints)):
            run.begin()
        if run.snapshot is not None:
            mend(run, lost, until=run.snapshot.position, failed=run.snapshot.failed)
        run.add(parts.agreed(list(run.store.lost(count))))
    else:
        run.begin()
        if run.snapshot is not None:
            mend(run, lost, until=run.snapshot.position, failed=run.snapshot.failed)
        run.execute()
    if not costs:
        if not run.counted["epochs"]:
            run.counted = parts.agreed({} if folder is None else last_counted(folder / "log.jsonl"))
        costs = parts.agreed(_costs(run, count, time.perf_counter() - started))
        if folder is not None:
            write_json(folder / "results.json", costs, within=folder)
    if run.checkpoints is not None and "ended" not in costs:
        run.checkpoints.clear()
    return _shown(run, costs)


def _standing(run: Run, folder: Path, plan: dict[str, Any], count: int) -> tuple[bool, dict[str, Any], dict[int, str]]:
    """Return how far a run has come: whether there is nothing left but to mend it, what it cost, and which members are lost."""
    finished = (folder / "results.json").exists()  # whole or not: what it says can be made again
    costs = kept_costs(folder, run.log)
    lost = _lost(run, folder, count, costs)
    if lost:
        compare_environment(folder, plan["environment"], run.task.parts.environment, stacklevel=5)
    return finished or not (lost or run.checkpoints), costs, lost


def write_costs(run: Run, folder: Path, *, started: float) -> dict[str, Any]:
    """Write results.json: what a complete run has counted, and what its members cost; return it."""
    costs = _costs(run, len(run.member_of), time.perf_counter() - started)
    write_json(folder / "results.json", costs, within=folder)
    return costs


def _hand_out(run: Run, present: list[int], costs: dict[str, Any]) -> None:
    """Give the members that are there to processes without the folder, so that each returns the whole ensemble."""
    parts = run.task.parts
    if parts.group is None:
        return
    for number in costs.get("kept", present):
        state = parts.agreed(run.store.get(number) if parts.writes else None)
        if state is not None and not parts.writes:
            run.store.put(number, state)


def _lost(run: Run, folder: Path, count: int, costs: dict[str, Any]) -> dict[int, str]:
    """Return the members that are missing or damaged; those that a time limit left out are not."""
    lost = run.store.lost(count)
    if "kept" not in costs:
        return lost
    gone = [number for number in costs["kept"] if number in lost]
    if gone:
        raise RunError(
            f"{folder} was ended by its time limit and member {gone[0]} is lost ({lost[gone[0]]}); it cannot be trained again to "
            "where the clock had left it. Go on with a larger time_limit or none, or use another run_dir."
        )
    return {}


def _shown(run: Run, costs: dict[str, Any]) -> dict[str, Any]:
    """Let the store show the members that were kept."""
    if "kept" in costs:
        run.store.numbers = costs["kept"]
    return costs


def kept_costs(folder: Path, log: Log) -> dict[str, Any]:
    """Return what results.json says, nothing if it is missing or damaged."""
    try:
        return read_costs(folder)
    except RunError as error:
        log.event(kind="warning", message=f"{error} It is made again from the log.")
        return {}


def _costs(run: Run, count: int, seconds: float) -> dict[str, Any]:
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
        "counted": run.counted,
        "parameters": sum(stored for stored, _ in sizes),
        "predict_flops": sum(flops for _, flops in sizes) * run.task.structure.draws,
        "networks": len(kept),
        "outputs": list(run.task.output_shape),
        "seconds": seconds,
    }
