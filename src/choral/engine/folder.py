"""The run folder: its lock, its files (docs/reference/files.md), and its plan."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from choral import __version__
from choral.base.errors import InputError, RunError
from choral.base.values import from_dict
from choral.engine.checkpoint import Checkpoints, MemberStore
from choral.engine.compute import OnExisting, using
from choral.engine.files import digest_of, open_kept, read_json, sweep, write_json
from choral.engine.identity import differences, identity_of, shown, unequal
from choral.engine.job import WIDEST, Job, choose, choose_threads
from choral.objectives.likelihoods import Likelihood
from choral.plan.walk import collected, trainings
from choral.tables.table import Table

MADE_AGAIN = ("results.json", "likelihood.json", "evaluation.json", "report.json", "report.html", "ensemble.choral")
"""Files that are made of finished members."""
RUN_FILES = ("plan.json", "command.json", "log.jsonl", "out_of_fold.safetensors", "choice.json", *MADE_AGAIN)
_BESIDE = ("members", "checkpoints", "leaves", "figures", "comparison.json", ".lock")
_GROWS = ("branches", "times")
_ANEW = "another run_dir (--out), or on_existing='overwrite' (--overwrite)"


@contextlib.contextmanager
def claimed(folder: Path | None) -> Iterator[None]:
    """Lock a run folder for this process; a second process on the same folder raises an error."""
    if folder is None:
        yield
        return
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"run_dir {folder} cannot be made ({error.strerror}); give another folder.") from error
    with os.fdopen(open_kept(folder / ".lock", os.O_APPEND), "a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"{folder} is in use by another process; wait for it or use another run_dir.") from error
        if not (folder / "leaves").exists():  # else others may be writing just now
            for name in ("", "members", "checkpoints"):
                sweep(folder / name)
        try:
            yield
        finally:  # a process that was forked meanwhile, such as a loader's, still has the file open
            fcntl.flock(handle, fcntl.LOCK_UN)


def folder_name(name: str) -> str:
    """Return a recipe's name if it can name a folder; InputError if it would lead elsewhere."""
    odd = not isinstance(name, str) or name in ("", ".", "..")
    if odd or len(name.encode()) > 200 or any(c in "/\\" or not c.isprintable() for c in name):
        raise InputError(f"the recipe is named {name!r}, which cannot name a folder in run_dir; give it another name.")
    return name


def read_plan(folder: Path) -> dict[str, Any] | None:
    """Return the plan of a run folder, None if it is a new one."""
    return read_json(folder / "plan.json", advice=f"put back a copy of it, or use {_ANEW} to start again")


def check_ours(folder: Path, *, overwrite: bool = False) -> None:
    """Raise RunError if a folder without a sealed plan contains files under names of a run, or the choice of a search."""
    if (folder / "choice.json").exists() and not overwrite:
        raise RunError(f"{folder} holds a choice among several methods, and this run is of one; use {_ANEW}.")
    plans = [folder / name for name in ("plan.json", "choice.json") if (folder / name).exists()]
    if any(b'"sealed": {' in plan.read_bytes() for plan in plans):
        return
    held = [name for name in RUN_FILES if (folder / name).exists()]
    held += ["members"] if any(MemberStore(folder / "members").files()) else []
    held += ["checkpoints"] if Checkpoints(folder / "checkpoints") else []
    if held:
        said = f"{folder} holds {held[0]} but no plan.json that choral wrote, and this run would replace it"
        raise RunError(f"{said}; move it away, put back a copy of plan.json, or use another run_dir (--out).")


def belongs_to(folder: Path, path: Path) -> bool:
    """Return whether a path is a file of the run in the folder, or may become one."""
    inside, root = path.resolve(), folder.resolve()
    return root in inside.parents and inside.relative_to(root).parts[0] in (*RUN_FILES, *_BESIDE)


def clear(folder: Path) -> None:
    """Remove what choral wrote into a run folder, and nothing else."""
    MemberStore(folder / "members").keep_only(())
    Checkpoints(folder / "checkpoints").clear()
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)
    leaves = folder / "leaves"
    inside = [] if leaves.is_symlink() else sorted(leaves.rglob("*"), reverse=True)  # a folder behind what is in it
    for path in [*inside, leaves]:
        if path.suffix in (".json", ".jsonl", ".safetensors", ".part"):
            path.unlink(missing_ok=True)
        else:
            with contextlib.suppress(OSError):  # something else lies in it
                path.rmdir()


def environment(threads: int) -> dict[str, Any]:
    """Return settings that affect the last bits of sums."""
    return {"threads": threads, "torch": torch.__version__}


def run_of(plan: dict[str, Any]) -> str:
    """Return the digest that identifies a run in its members."""
    return digest_of(plan["identity"])[:16]


def read_costs(folder: Path) -> dict[str, Any]:
    """Return the cost of a run, empty if unknown; RunError if the file is damaged."""
    return read_json(folder / "results.json", advice="run the same command again to make it anew") or {}


def keep_likelihood(folder: Path, run: str, likelihood: Likelihood) -> None:
    """Write likelihood.json: a likelihood completed by what was estimated after training."""
    write_json(folder / "likelihood.json", {"run": run, "likelihood": likelihood.to_dict()}, within=folder)


def read_likelihood(folder: Path, run: str) -> Likelihood | None:
    """Return the completed likelihood of a run, None if it is missing, damaged or another run's."""
    try:
        held = read_json(folder / "likelihood.json") or {}
        found = from_dict(held["likelihood"]) if held.get("run") == run else None
    except (RunError, InputError, KeyError):  # fit makes it again
        return None
    return found if isinstance(found, Likelihood) else None


def settle(
    folder: Path | None, job: Job, *, table: Table | None, on_existing: OnExisting = "resume", stack: int | None = None
) -> tuple[dict[str, Any], int]:
    """Return the plan of a run and how many branches are trained together; RunError if the folder contains another run.

    In a new run that other processes may train, `stack` is the largest number of branches of a leaf; None for other runs.
    """
    parts, overwrite = job.task.parts, on_existing == "overwrite"
    if folder is not None:
        check_ours(folder, overwrite=overwrite)
    if not parts.writes:  # what the first process settles holds for all
        plan: dict[str, Any] = parts.agreed({})
        return plan, choose(job, plan["executor"])[1]
    identity, held = {} if folder is None else identity_of(job), dict[str, Any]()
    if folder is not None and not overwrite and (stored := read_plan(folder)) is not None:
        held = _gone_on(folder, stored, identity, job, table, extend=on_existing == "extend")
    wanted = job.compute.threads or held.get("environment", {}).get("threads")
    count = wanted or choose_threads(job, stacked=False)
    with using(count):
        executor, width = choose(job, held.get("executor"))
    if not wanted and executor == "vectorized":
        count = choose_threads(job, stacked=True)
    plan = held or {"environment": environment(count) | parts.environment, "executor": executor}
    if folder is not None and not held:
        plan |= {
            "identity": identity,
            "network": job.task.blueprint.spec(),
            "describe": job.recipe.describe(),
            "table": None if table is None else table.to_dict(),
            "made": {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "command": _command(), "choral": __version__},
        }
        if stack is not None:
            plan |= {"leaves": {"stack": WIDEST if job.is_together else min(width, stack)}}
        if overwrite:
            clear(folder)  # once nothing more is refused
        write_json(folder / "plan.json", plan, within=folder)
    return parts.agreed(plan), width


def _gone_on(
    folder: Path, stored: dict[str, Any], identity: dict[str, Any], job: Job, table: Table | None, *, extend: bool
) -> dict[str, Any]:
    """Return the plan of a run that was started in a folder, extended if requested; RunError if it is another."""
    longer = extend and stored["identity"] != identity
    if longer:
        _check_longer(folder, stored["identity"], identity)
    else:
        check_same(str(folder), stored["identity"], identity)
    if digest_of(stored["table"]) != digest_of(None if table is None else table.to_dict()):
        raise RunError(f"{folder} holds another run: its table's columns were read otherwise; use {_ANEW}.")
    if longer:
        noted = _extended(folder, stored, identity)
        stored = stored | {"identity": identity, "describe": job.recipe.describe(), "extended": noted}
        write_json(folder / "plan.json", stored, within=folder)
    return stored


def check_same(where: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError with all differences if the run at a place is another one."""
    lines = differences(old, new)
    if lines:
        said = f"{where} holds another run: {'; '.join(lines[:4])}. Repeat the old call, or use {_ANEW} to start again in this one"
        raise RunError(f"{said}, or on_existing='extend' (--extend) to add members.")


def _check_longer(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RunError unless a run is a longer version of another, whose members it can take over."""
    why = differences({**old, "recipe": new["recipe"]}, new)
    for name, _, a, b in unequal(old["recipe"], new["recipe"], "recipe"):
        if not (name in _GROWS and b > a):
            reason = " (its rate is spread over the whole phase)" if name == "epochs" else ""
            why.append(f"{name} was {shown(a)}, now {shown(b)}{' (fewer)' if name in _GROWS else reason}")
    selects = any(phase.select for phase in trainings(from_dict(new["recipe"]).plan))
    if not why and "stop" in new and (selects or (new["stop"] or {}).get("by") == "ensemble"):
        why = ["held-out points stopped or chose its members together, so that in a longer run they would be others"]
    if why:
        said = f"{folder} cannot be extended: {'; '.join(dict.fromkeys(why[:4]))}"
        raise RunError(f"{said}. Only members of a fork and rounds of a repeat can be added; use {_ANEW}.")


def _extended(folder: Path, stored: dict[str, Any], identity: dict[str, Any]) -> dict[str, Any]:
    """Take over the members of a shorter plan into a longer one; return what the plan records of it."""
    costs, checkpoints = read_costs(folder), Checkpoints(folder / "checkpoints")
    if "kept" in costs:
        raise RunError(f"{folder} was ended by its time limit; give a larger time_limit or none first.")
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


def _command() -> str:
    """Return the command line of this process, its program without the folder."""
    program = Path(sys.argv[0] if sys.argv else "")
    name = program.parent.name if program.name == "__main__.py" else program.name or "python"
    return shlex.join([name, *sys.argv[1:]])
