"""Settle a run before its first step: compare, extend or write the plan of its folder, and choose the executor.

Extending: draws follow from the place in the plan, so branch 3 of 4 is branch 3 of 40, and round 2 of 5 round 2 of 8: members of a
shorter plan are members of the longer one. New branches are trained by themselves; new rounds follow the old ones, which are walked
again. A longer training phase is another one from its first step, since its rate is spread over all of it.

Time limits are no part of a run's identity. When the time is up, a run keeps a checkpoint of that moment before it winds up; a larger
limit goes on from there, to the members of a run that was never stopped.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from choral import __version__
from choral.base.errors import InputError, RunError
from choral.base.values import from_dict
from choral.engine.checkpoint import Checkpoints
from choral.engine.compute import OnExisting, using
from choral.engine.executor import Settled, choose, choose_threads
from choral.engine.files import digest_of, write_json
from choral.engine.folder import (
    MADE_AGAIN,
    check_ours,
    check_table,
    clear,
    environment,
    keep_table,
    read_costs,
    read_plan,
    run_of,
)
from choral.engine.identity import differences, identity_of
from choral.engine.job import Job
from choral.engine.leaf import WIDEST
from choral.engine.store import MemberStore
from choral.plan.walk import collected, trainings
from choral.tables.table import Table

_GROWS = ("branches", "times")
_ANEW = "another run_dir (--out), or on_existing='overwrite' (--overwrite)"


def settle(
    folder: Path | None,
    job: Job,
    *,
    table: Table | None,
    threads: int | None = None,
    on_existing: OnExisting = "resume",
    cut: Callable[[Settled], int] | None = None,
) -> tuple[dict[str, Any], int]:
    """Return the plan of a run and how many branches are trained together; RunError if the folder holds another run.

    Args:
        folder: the claimed run folder; None keeps nothing.
        job: what is to be done.
        table: how a table's columns became inputs.
        threads: as many as the user asked for; None keeps those the run was begun with, or settles them.
        on_existing: as in `choral.fit`.
        cut: gives the width of the leaves into which a new run is cut, from its executor; None leaves it whole. A run that was begun
            stays as it is.
    """
    task, source, recipe, parts = job.task, job.source, job.recipe, job.task.parts
    overwrite, executor = on_existing == "overwrite", job.executor
    if folder is not None:
        check_ours(folder, overwrite=overwrite)
    if parts.group is not None:
        if executor == "vectorized":
            raise InputError(
                "executor='vectorized' trains stacks of networks in one process; with data_parallel=True leave it out, or give 'sequential'."
            )
        executor = "sequential"
    if not parts.writes:  # what the first process settles holds for all
        plan: dict[str, Any] = parts.agreed({})
        settled = choose(plan["executor"], task, source, recipe.plan, settled=plan["executor"])
        return plan, WIDEST if job.is_together else settled.width
    stored, identity = None, None
    if folder is not None:
        identity = identity_of(job, executor=executor)
        stored = None if overwrite else read_plan(folder)
        if stored is not None:
            stored = _gone_on(folder, stored, identity, job, table, extend=on_existing == "extend")
    held = stored or {}
    wanted = threads or held.get("environment", {}).get("threads")
    count = wanted or choose_threads(task, source, recipe.plan, stacked=False)
    with using(count):
        settled = choose(executor, task, source, recipe.plan, settled=held.get("executor"))
    if not wanted and settled.name == "vectorized":
        count = choose_threads(task, source, recipe.plan, stacked=True)
    plan = stored or {
        "identity": identity,
        "environment": environment(count) | parts.environment,
        "executor": settled.name,
        "network": task.blueprint.spec(),
        "describe": recipe.describe(),
        "table": None if table is None else digest_of(table.to_dict()),
        "made": {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "command": _command(), "choral": __version__},
    }
    if stored is None:
        plan |= {} if cut is None else {"leaves": {"stack": WIDEST if job.is_together else cut(settled)}}
        plan |= {} if job.rules.time_limit is None else {"time_limit": job.rules.time_limit}
    if folder is not None:
        if overwrite:
            clear(folder)  # once nothing more is refused
        keep_table(folder, table)
        if stored is None:
            write_json(folder / "plan.json", plan, within=folder)
    return parts.agreed(plan), WIDEST if job.is_together else settled.width


def _gone_on(
    folder: Path, stored: dict[str, Any], identity: dict[str, Any], job: Job, table: Table | None, *, extend: bool
) -> dict[str, Any]:
    """Return the plan of a run that was begun in a folder, extended or prolonged as asked; RunError if it is another."""
    longer = extend and stored["identity"] != identity
    if longer:
        _check_longer(folder, stored["identity"], identity)
    else:
        check_same(str(folder), stored["identity"], identity)
    check_table(folder, stored, table)  # before anything is removed
    if longer:
        noted = _extended(folder, stored, identity)
        stored = stored | {"identity": identity, "describe": job.recipe.describe(), "extended": noted}
        write_json(folder / "plan.json", stored, within=folder)
    return _prolonged(folder, stored, job.rules.time_limit)


def check_same(where: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError if the run of a place is another one, with all that differs."""
    lines = differences(old, new)
    if lines:
        raise RunError(
            f"{where} holds another run: {'; '.join(lines[:4])}. Repeat the old call, or use {_ANEW} to start again in this one, or "
            "on_existing='extend' (--extend) to add members."
        )


def _check_longer(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError unless a run is a longer version of another, whose members it can take over."""
    why = differences({**old, "recipe": new["recipe"], "totals": new["totals"]}, new)
    why += _obstacles(old["recipe"], new["recipe"], "recipe")
    selects = any(phase.select for phase in trainings(from_dict(new["recipe"]).plan))
    if not why and "stop" in new and (selects or (new["stop"] or {}).get("by") == "ensemble"):
        why = ["held-out points stopped or chose its members together, so that in a longer run they would be others"]
    if why:
        raise RunError(
            f"{folder} cannot be extended: {'; '.join(dict.fromkeys(why[:4]))}. More members of a fork and more rounds of a repeat can be "
            f"added; start anything else again: {_ANEW}."
        )


def _obstacles(old: Any, new: Any, name: str) -> Iterator[str]:
    """Yield what is not just longer in a recipe."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for part in new:
            yield from _obstacles(old[part], new[part], part)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for a, b in zip(old, new):
            yield from _obstacles(a, b, name)
    elif old != new and not (name in _GROWS and new > old):
        reasons = {"epochs": " (its rate is spread over the whole phase, so every step would have been another)"}
        yield f"{name} was {old}, now {new}{reasons.get(name, ' (fewer)' if name in _GROWS else '')}"


def _extended(folder: Path, stored: dict[str, Any], identity: dict[str, Any]) -> dict[str, Any]:
    """Take the members of a shorter plan over into a longer one; return what the plan notes of it."""
    costs, checkpoints = read_costs(folder), Checkpoints(folder / "checkpoints")
    if "kept" in costs:
        raise RunError(
            f"{folder} was ended by its time limit, so it has no whole plan to extend; "
            "train it whole first, by the same call with a larger time_limit or none."
        )
    store = MemberStore(folder / "members", run=run_of(stored))
    late = checkpoints.latest()
    if late is not None and late.whole is not None:
        store.keep_only(late.whole)  # it ended while it wound up
    before, after = (collected(from_dict(side["recipe"]).plan) for side in (stored["identity"], identity))
    target = MemberStore(folder / "members", run=run_of({"identity": identity}))
    lost = store.lost(len(before))
    for place, number in reversed(before.items()):  # numbers only grow, so the last comes first
        if number not in lost:
            target.put(after[place], store.get(number))
            if after[place] != number:
                store.path(number).unlink(missing_ok=True)
    checkpoints.clear()
    for name in MADE_AGAIN:
        (folder / name).unlink(missing_ok=True)
    return {"counted": costs.get("counted", stored.get("extended", {}).get("counted", {}))}


def _prolonged(folder: Path, stored: dict[str, Any], limit: float | None) -> dict[str, Any]:
    """Return the plan of a run folder with another time limit; what an ended run had wound up with is taken back.

    A limit is of all parts of the run together; a smaller one than that which ended the run leaves it as it is.
    """
    before = stored.get("time_limit")
    if limit == before:
        return stored
    costs = read_costs(folder)
    if costs.get("ended") == "time_limit":
        if limit is not None and before is not None and limit < before:
            return stored
        (folder / "results.json").unlink(missing_ok=True)  # first: from here on the run is one that was interrupted
        store = MemberStore(folder / "members", run=run_of(stored))
        for number in costs.get("cut", ()):
            store.path(number).unlink(missing_ok=True)
        for name in MADE_AGAIN:
            (folder / name).unlink(missing_ok=True)
    plan = {name: value for name, value in stored.items() if name != "time_limit"}
    plan |= {} if limit is None else {"time_limit": limit}
    write_json(folder / "plan.json", plan, within=folder)
    return plan


def _command() -> str:
    """Return the command line of this process, its program without the folder."""
    program = Path(sys.argv[0] if sys.argv else "")
    return shlex.join(
        [program.parent.name if program.name == "__main__.py" else program.name or "python", *sys.argv[1:]]
    )
