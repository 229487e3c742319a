"""The run folder: who holds it, whose its files are, and those of them that say what is run.

plan.json      what is run: the identity every later call must repeat, and what was measured and settled at the start
command.json   the words of `choral fit --prepare`, from which `choral run-leaf` reads the data again
log.jsonl      one event on each line
checkpoints/   where the run stands; empty once it is complete, and the moment a time limit ended it otherwise
members/       one file for each collected network
leaves/        of a run that is cut into leaves (`choral.cluster`): where each of them stands
likelihood.json  what was estimated on the members' residuals (a noise); made again if it is lost
results.json   what it cost; made again if it is lost
out_of_fold.safetensors  what members say about the training points held out of them, if there are folds; made again if it is lost
Others write beside it: evaluation.json (comparison), report.json, report.html and figures/ (the report), and into the folder of a
comparison comparison.json. Each file has one writer.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from choral.base.errors import InputError, RunError
from choral.base.values import from_dict
from choral.engine.checkpoint import Checkpoints
from choral.engine.files import digest_of, expect, open_kept, read_json, sweep, write_json
from choral.engine.store import MemberStore
from choral.objectives.likelihoods import Likelihood

_PLAN = {
    "identity": dict,
    "environment": dict,
    "executor": str,
    "network": dict | None,
    "table": dict | None,
    "extended?": dict,
    "leaves?": dict,
    "time_limit?": int | float,
}


MADE_AGAIN = ("results.json", "likelihood.json", "evaluation.json", "report.json", "report.html", "ensemble.choral")
"""Files that are made of finished members."""
_BEGUN = ("plan.json", "command.json", "log.jsonl", "out_of_fold.safetensors", "choice.json")
RUN_FILES = (*_BEGUN, *MADE_AGAIN)
_BESIDE = ("members", "checkpoints", "leaves", "figures", "comparison.json", ".lock")
_COSTS = ("counted", "parameters", "predict_flops", "networks", "outputs", "seconds", "stopped", "ended", "kept", "cut")


@contextlib.contextmanager
def claimed(folder: Path | None) -> Iterator[None]:
    """Hold a run folder for this process; a second process on the same folder is refused."""
    if folder is None:
        yield
        return
    import fcntl

    if folder.exists() and not folder.is_dir():
        raise RunError(f"run_dir {folder} is a file; give a folder.")
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
    """Return a recipe's name if it can name a folder of its own; InputError if it would lead elsewhere.

    >>> folder_name("snapshot_2")
    'snapshot_2'
    """
    odd = not isinstance(name, str) or name in ("", ".", "..")
    if odd or len(name.encode()) > 200 or any(c in "/\\" or not c.isprintable() for c in name):
        raise InputError(
            f"the recipe is named {name!r}, which cannot name a folder in run_dir; give it a name without slashes and "
            "control characters, of at most 200 bytes."
        )
    return name


def read_plan(folder: Path) -> dict[str, Any] | None:
    """Return the checked plan of a run folder, None if it is a new one."""
    advice = (
        "put back a copy of it, or use another run_dir (--out), or on_existing='overwrite' (--overwrite) to start again"
    )
    plan = read_json(folder / "plan.json", advice=advice)
    return None if plan is None else dict(expect(plan, _PLAN, str(folder / "plan.json")))


def check_ours(folder: Path, *, overwrite: bool = False) -> None:
    """Raise RunError if a folder without a sealed plan holds anything under a name that a run writes, or the choice of a search."""
    if (folder / "choice.json").exists() and not overwrite:
        raise RunError(
            f"{folder} holds a choice among several methods, and this run is of one; use another run_dir (--out), or on_existing='overwrite' "
            "(--overwrite) to start again in this one."
        )
    plans = [folder / name for name in ("plan.json", "choice.json") if (folder / name).exists()]
    if any(b'"sealed": {' in plan.read_bytes() for plan in plans):
        return
    held = [name for name in RUN_FILES if (folder / name).exists()]
    held += ["members"] if any(MemberStore(folder / "members").files()) else []
    held += ["checkpoints"] if Checkpoints(folder / "checkpoints") else []
    if held:
        raise RunError(
            f"{folder} holds {held[0]} but no plan.json that choral wrote, so nothing says whose it is, and this run would replace it; "
            "move it away, put back a copy of plan.json, or use another run_dir (--out)."
        )


def belongs_to(folder: Path, path: Path) -> bool:
    """Return whether a path is one that a run in the folder keeps something in, or may."""
    inside, root = path.resolve(), folder.resolve()
    if root not in inside.parents:
        return False
    return inside.relative_to(root).parts[0] in (*RUN_FILES, *_BESIDE)


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
    """Return what decides the last bits of sums."""
    return {"threads": threads, "torch": torch.__version__}


def run_of(plan: dict[str, Any]) -> str:
    """Return the digest by which members know their run."""
    return digest_of(plan["identity"])[:16]


def read_costs(folder: Path) -> dict[str, Any]:
    """Return what a run cost, empty if nothing says it yet; RunError if the file is damaged."""
    held = read_json(folder / "results.json", advice="run the same command again to make it anew") or {}
    return {name: held[name] for name in _COSTS if name in held}


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
