"""Settle a run before its first step: the plan of its folder, compared or written, and the executor it keeps."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from choral.base.errors import InputError, RunError
from choral.engine.executors import Settled, check_executor, choose, choose_kernel, choose_threads
from choral.engine.extending import check_longer, extended
from choral.engine.files import digest_of, write_json
from choral.engine.folder import check_ours, check_table, clear, keep_table, read_plan
from choral.engine.identity import differences, identity_of
from choral.engine.job import Job
from choral.engine.prolonging import prolonged
from choral.engine.threads import using
from choral.plan.phases import Fork
from choral.tables.table import Table

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
        "measured": settled.measured | seconds,
        "network": task.blueprint.spec(),
        "describe": recipe.describe(),
        "table": None if table is None else digest_of(table.to_dict()),
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
    check_executor(executor)
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
    _check_known(folder, stored["identity"])
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


def _check_known(folder: Path, old: dict[str, Any]) -> None:
    if not isinstance(old.get("network"), dict) or "time_limit" in old:
        raise RunError(
            f"{folder} was begun by an older version of choral, whose notes cannot be compared; finish it with that "
            f"version, read it with choral.load, or start again: {ANEW}."
        )


def check_same(where: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError if the run of a place is another one, with all that differs."""
    lines = differences(old, new)
    if lines:
        raise RunError(f"{where} holds another run: {'; '.join(lines[:4])}. Repeat the old call, or {ANEW}.")


def environment(threads: int) -> dict[str, Any]:
    """Return what decides the last bits of sums."""
    return {"threads": threads, "torch": torch.__version__}


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
