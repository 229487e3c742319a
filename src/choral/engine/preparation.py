"""Prepare a run before its first step: compare, extend or write the plan of its folder, and choose the executor.

Extend a run: more branches of a fork, or more rounds of a repeat, while the members that are there stay as they are.

Draws follow from the place in the plan, so branch 3 of 4 is branch 3 of 40, and round 2 of 5 round 2 of 8: the members of the
shorter plan are members of the longer one. New branches are trained by themselves; new rounds follow the old ones, which are
walked again to get there. A longer training phase is another one from its first step, since its rate is spread over all of it.

Prolong a run: one that its time limit ended goes on with a larger limit, or none, from where the clock had stopped it.

A limit is no part of a run's identity: it decides how far members come, not what their steps are. When the time is up, the run keeps a
checkpoint of that moment, before it winds up; going on from there gives the members of a run that was never stopped.
"""

import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from choral import __version__
from choral.base.errors import InputError, RunError
from choral.base.values import from_dict
from choral.engine.checkpoint import Checkpoints
from choral.engine.compute import using
from choral.engine.executor import Settled, choose, choose_kernel, choose_threads
from choral.engine.files import digest_of, write_json
from choral.engine.folder import MADE_AGAIN, check_ours, check_table, clear, keep_table, read_costs, read_plan, run_of
from choral.engine.identity import differences, identity_of
from choral.engine.job import Job
from choral.engine.store import MemberStore
from choral.plan.phases import Fork, Phase
from choral.plan.walk import Place, Visitor, trainings, walk
from choral.tables.table import Table

_GROWS = ("branches", "times")


def extended(folder: Path, stored: dict[str, Any], identity: dict[str, Any]) -> dict[str, Any]:
    """Take the members of a shorter plan over into a longer one (see `check_longer`); return what the plan notes of it."""
    old = stored["identity"]
    costs = read_costs(folder)
    if "kept" in costs:
        raise RunError(
            f"{folder} was ended by its time limit, so it has no whole plan to extend; "
            "train it whole first, by the same call with a larger time_limit or none."
        )
    late = Checkpoints(folder / "checkpoints").latest()
    if late is not None and late.whole is not None:
        MemberStore(folder / "members", run=run_of(stored)).keep_only(late.whole)  # it ended while it wound up
    _renumber(folder, run_of(stored), digest_of(identity)[:16], old, identity)
    Checkpoints(folder / "checkpoints").clear()
    for name in MADE_AGAIN:
        (folder / name).unlink(missing_ok=True)
    before = stored.get("extended", {}).get("counted", {})
    return {"counted": costs.get("counted", before)}


def check_longer(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError unless a run is a longer version of another, whose members it can take over."""
    why = differences({**old, "recipe": new["recipe"], "totals": new["totals"]}, new)
    why += _obstacles(old["recipe"], new["recipe"], "recipe")
    if why:
        raise RunError(
            f"{folder} cannot be extended: {'; '.join(dict.fromkeys(why[:4]))}. More members of a fork and more rounds of a repeat can be "
            "added; start anything else again: another run_dir (--out), or on_existing='overwrite' (--overwrite)."
        )
    together = (new.get("stop") or {}).get("by") == "ensemble" or any(
        phase.select for phase in trainings(from_dict(new["recipe"]).plan)
    )
    if "stop" in new and together:
        raise RunError(
            f"{folder} cannot be extended: held-out points stopped or chose its members together, so that in a longer run they would be others; "
            "start again: another run_dir (--out), or on_existing='overwrite' (--overwrite)."
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
        reason = ""
        if name in _GROWS:
            reason = " (fewer)"
        elif name == "epochs":
            reason = " (its rate is spread over the whole phase, so every step would have been another)"
        yield f"{name} was {old}, now {new}{reason}"


def _renumber(folder: Path, was: str, now: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Give members the numbers and the name of the longer run; numbers only grow, so the last comes first."""
    before, after = (_numbers(from_dict(side["recipe"]).plan) for side in (old, new))
    store, target = MemberStore(folder / "members", run=was), MemberStore(folder / "members", run=now)
    lost = store.lost(len(before))
    for place, number in reversed(before.items()):
        if number not in lost:
            state = store.get(number)
            target.put(after[place], state)
            if after[place] != number:
                store.path(number).unlink(missing_ok=True)


def _numbers(plan: Phase) -> dict[Place, int]:
    places: list[Place] = []
    walk(plan, None, Visitor(collect=lambda phase, place, _: places.append(place)))
    return {place: number for number, place in enumerate(places)}


def prolonged(folder: Path, stored: dict[str, Any], limit: float | None) -> dict[str, Any]:
    """Return the plan of a run folder with another time limit; what an ended run had wound up with is taken back.

    Args:
        folder: the claimed run folder.
        stored: its plan.
        limit: seconds that all parts of the run may take together; None for no limit. A smaller one than that which ended the run
            leaves it as it is.
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


_NOTHING: dict[str, Any] = {}
ANEW = "use another run_dir (--out), on_existing='overwrite' (--overwrite) to start again in this one, or on_existing='extend' (--extend) to add members"


def settle(
    folder: Path | None,
    job: Job,
    *,
    seed: int,
    executor: str,
    table: Table | None,
    threads: int | None = None,
    overwrite: bool = False,
    extend: bool = False,
    cut: Callable[[Settled], dict[str, Any]] | None = None,
) -> tuple[dict[str, Any], Callable[[Fork, int], int]]:
    """Return the plan of a run and the width rule of its executor; RunError if the folder holds another run.

    Args:
        folder: the claimed run folder; None keeps nothing.
        job: what is to be done.
        seed: root of every draw.
        executor: what the user asked for.
        table: how a table's columns became inputs.
        threads: as many as the user asked for; None keeps those the run was begun with, or settles them.
        overwrite: whether what the folder holds of another run is removed first.
        extend: whether a shorter run in the folder becomes a part of this one.
        cut: gives how a new run is cut into leaves, from its executor; None leaves it whole. A run that was begun stays as it is.
    """
    _check_asked(executor, table, overwrite=overwrite, extend=extend)
    if folder is not None:
        check_ours(folder, overwrite=overwrite)
        _check_alone(folder, overwrite=overwrite)
    task, source, recipe, parts = job.task, job.source, job.recipe, job.task.parts
    executor = executor if parts.group is None else _apart(executor)
    if not parts.writes:  # what the first process settles holds for all
        plan = parts.agreed(_NOTHING)
        choose_kernel(task, source, recipe.plan, settled=plan["kernel"])
        return plan, choose(plan["executor"], task, source, recipe.plan, settled=plan["executor"]).width
    settings: dict[str, Any] = {"seed": seed, "executor": executor, "watched": job.watched}
    identity = identity_of(task, source, recipe, **settings) if folder is not None else None
    stored = None if folder is None or overwrite else read_plan(folder)
    held = stored or {}
    if folder is not None and stored is not None and identity is not None:
        stored = _gone_on(folder, stored, identity, job, table, extend=extend)
    wanted = threads or held.get("environment", {}).get("threads")
    count = wanted or choose_threads(task, source, recipe.plan, stacked=False)
    with using(count):
        kernel, seconds = choose_kernel(task, source, recipe.plan, settled=held.get("kernel"))
        settled = choose(executor, task, source, recipe.plan, settled=held.get("executor"))
    if not wanted and settled.name == "vectorized":
        count = choose_threads(task, source, recipe.plan, stacked=True)
    plan = stored or {
        "identity": identity,
        "environment": environment(count) | parts.environment,
        "executor": settled.name,
        "kernel": kernel,
        "measured": seconds,
        "network": task.blueprint.spec(),
        "describe": recipe.describe(),
        "table": None if table is None else digest_of(table.to_dict()),
        "made": {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "command": command(), "choral": __version__},
    }
    if cut is not None and stored is None:
        plan["leaves"] = cut(settled)
    if stored is None and job.rules.time_limit is not None:
        plan["time_limit"] = job.rules.time_limit
    if folder is not None and overwrite:
        clear(folder)  # once nothing more is refused
    if folder is not None:
        keep_table(folder, table)
        if stored is None:
            write_json(folder / "plan.json", plan, within=folder)
    return parts.agreed(plan), settled.width


def _check_asked(executor: str, table: Table | None, *, overwrite: bool, extend: bool) -> None:
    """Refuse what cannot be meant."""
    if table is not None and not isinstance(table, Table):
        raise InputError(
            f"table is {type(table).__name__}; give a choral.tables.table.Table, as learn_table makes one."
        )
    if overwrite and extend:
        raise InputError("overwrite starts again and extend goes on; give one of them.")


def _check_alone(folder: Path, *, overwrite: bool) -> None:
    """Refuse the folder of a search: its ensemble would be replaced."""
    if not overwrite and (folder / "choice.json").exists() and not (folder / "plan.json").exists():
        raise RunError(
            f"{folder} holds a choice among several methods, and this run is of one; use another run_dir (--out), or on_existing='overwrite' "
            "(--overwrite) to start again in this one."
        )


def _gone_on(
    folder: Path, stored: dict[str, Any], identity: dict[str, Any], job: Job, table: Table | None, *, extend: bool
) -> dict[str, Any]:
    """Return the plan of a run that was begun in a folder, extended or prolonged as asked; RunError if it is another."""
    longer = extend and stored["identity"] != identity
    if longer:
        check_longer(folder, stored["identity"], identity)
    else:
        check_same(str(folder), stored["identity"], identity)
    check_table(folder, stored, table)  # before anything is removed
    if longer:
        noted = extended(folder, stored, identity)
        stored = stored | {"identity": identity, "describe": job.recipe.describe(), "extended": noted}
        write_json(folder / "plan.json", stored, within=folder)
    return prolonged(folder, stored, job.rules.time_limit)


def _apart(executor: str) -> str:
    if executor == "vectorized":
        raise InputError(
            "executor='vectorized' trains stacks of networks in one process; with data_parallel=True leave it out, or give 'sequential'."
        )
    return "sequential"


def check_same(where: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError if the run of a place is another one, with all that differs."""
    lines = differences(old, new)
    if lines:
        raise RunError(f"{where} holds another run: {'; '.join(lines[:4])}. Repeat the old call, or {ANEW}.")


def environment(threads: int) -> dict[str, Any]:
    """Return what decides the last bits of sums."""
    return {"threads": threads, "torch": torch.__version__}


def command() -> str:
    """Return the command line of this process, its program without the folder."""
    program = Path(sys.argv[0] if sys.argv else "")
    return shlex.join(
        [program.parent.name if program.name == "__main__.py" else program.name or "python", *sys.argv[1:]]
    )


def compare_environment(folder: Path, begun: dict[str, Any], own: dict[str, int], *, stacklevel: int) -> None:
    """Warn if a run goes on in another environment than it was begun in.

    Args:
        folder: of the run.
        begun: the environment it was begun in.
        own: what this one has besides.
        stacklevel: of the call to blame.
    """
    now = environment(torch.get_num_threads()) | own
    if begun != now:
        warnings.warn(
            f"{folder} was begun with {begun} and goes on with {now}; members agree with an unbroken run to "
            "rounding, not bit for bit.",
            stacklevel=stacklevel + 1,
        )
