"""Settle a run before its first step: compare, extend or write the plan of its folder, and choose the executor and threads.

Executors: 'sequential' trains branches one by one and keeps one network in memory. 'vectorized' trains equal-shaped branches stacked.
'auto' stacks what gains by it, by a rule on sizes and layers, so that equal calls give equal members. On a processor these are networks
of fewer than 200,000 parameters without convolutions: stacks of four perceptrons of 2 x 128 and 2 x 256 take 0.80 of the time, of
2 x 512 1.3 times, LeNet-S 1.5 to 1.9 times.

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
from typing import Any, NamedTuple

import torch
from torch import nn

from choral import __version__
from choral.base import batches, devices
from choral.base.errors import ChoralError, InputError, RunError
from choral.base.order import Calls
from choral.base.types import Params
from choral.base.values import from_dict
from choral.engine.blueprint import state_of
from choral.engine.checkpoint import Checkpoints
from choral.engine.compute import OnExisting, threads_for, using
from choral.engine.context import for_members
from choral.engine.files import digest_of, write_json
from choral.engine.folder import (
    MADE_AGAIN,
    check_ours,
    clear,
    environment,
    read_costs,
    read_plan,
    run_of,
)
from choral.engine.identity import differences, identity_of
from choral.engine.job import Job
from choral.engine.leaf import WIDEST
from choral.engine.store import MemberStore
from choral.engine.task import Task
from choral.engine.trainers import UNMAPPED, Pace, PlainTrainer, StackedTrainer, Trainer, stopped
from choral.layers.convert import holds
from choral.plan.phases import Fork, Phase, Train
from choral.plan.walk import Place, Visitor, collected, once, trainings, walk
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
    cut: Callable[[int], int] | None = None,
) -> tuple[dict[str, Any], int]:
    """Return the plan of a run and how many branches are trained together; RunError if the folder holds another run.

    Args:
        folder: the claimed run folder; None keeps nothing.
        job: what is to be done.
        table: how a table's columns became inputs.
        threads: as many as the user asked for; None keeps those the run was begun with, or settles them.
        on_existing: as in `choral.fit`.
        cut: gives the width of the leaves of a new run that other processes may train, from that of its executor; None for none.
    """
    parts, overwrite, executor = job.task.parts, on_existing == "overwrite", job.executor
    if folder is not None:
        check_ours(folder, overwrite=overwrite)
    if parts.size > 1:
        if executor == "vectorized":
            raise InputError(
                "executor='vectorized' trains stacks of networks in one process; with data_parallel=True leave it out, or give 'sequential'."
            )
        executor = "sequential"
    if not parts.writes:  # what the first process settles holds for all
        plan: dict[str, Any] = parts.agreed({})
        return plan, choose(job, plan["executor"], plan["executor"]).width
    identity = None if folder is None else identity_of(job, executor=executor)
    stored = None if folder is None or overwrite else read_plan(folder)
    if folder is not None and identity is not None and stored is not None:
        stored = _gone_on(folder, stored, identity, job, table, extend=on_existing == "extend")
    held = stored or {}
    wanted = threads or held.get("environment", {}).get("threads")
    count = wanted or choose_threads(job, stacked=False)
    with using(count):
        settled = choose(job, executor, held.get("executor"))
    if not wanted and settled.name == "vectorized":
        count = choose_threads(job, stacked=True)
    plan = stored or {
        "identity": identity,
        "environment": environment(count) | parts.environment,
        "executor": settled.name,
        "network": job.task.blueprint.spec(),
        "describe": job.recipe.describe(),
        "table": None if table is None else table.to_dict(),
        "made": {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "command": _command(), "choral": __version__},
        **({} if cut is None else {"leaves": {"stack": WIDEST if job.is_together else cut(settled.width)}}),
        **({} if job.rules.time_limit is None else {"time_limit": job.rules.time_limit}),
    }
    if folder is not None:
        if overwrite:
            clear(folder)  # once nothing more is refused
        if stored is None:
            write_json(folder / "plan.json", plan, within=folder)
    return parts.agreed(plan), settled.width


def _gone_on(
    folder: Path, stored: dict[str, Any], identity: dict[str, Any], job: Job, table: Table | None, *, extend: bool
) -> dict[str, Any]:
    """Return the plan of a run that was begun in a folder, extended or prolonged as asked; RunError if it is another."""
    longer = extend and stored["identity"] != identity
    if longer:
        _check_longer(folder, stored["identity"], identity)
    else:
        check_same(str(folder), stored["identity"], identity)
    if digest_of(stored["table"]) != digest_of(None if table is None else table.to_dict()):
        raise RunError(
            f"{folder} holds another run: its table's columns were read otherwise. Use another run_dir, or repeat the old call."
        )
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


_BYTES = 2 << 30  # of stacked parameters, gradients and optimizer memory
STACKED = 200_000  # parameters of a network below which calls, not arithmetic, take the time of a step on a processor
_OFF, _ROUNDING = 0.02, 1e-3  # of a gradient, and of the largest one, that rounding may change


class Settled(NamedTuple):
    """The executor of a run: its name, and how many branches of a fork are trained together, at most."""

    name: str
    width: int


def _first_train(plan: Phase) -> tuple[Train, int] | None:
    """Return the first training phase that stands in a fork of more than one branch, and the branches."""
    found: list[tuple[Train, int]] = []

    def train(phase: Train, place: Place, branches: int) -> int:
        if branches > 1 and phase.epochs:
            found.append((phase, branches))
        return branches

    def together(node: Fork, place: Place, branches: int) -> Iterator[tuple[Place, int]]:
        yield place, branches * node.branches

    walk(plan, 1, Visitor(train=train, rounds=once, branches=together))
    return found[0] if found else None


def choose(job: Job, asked: str, settled: str | None) -> Settled:
    """Return the executor that was asked for, or the one that an earlier part of the same run settled on."""
    task, found = job.task, _first_train(job.recipe.plan)
    numbers = sum(p.numel() for p in task.blueprint.network().parameters())
    widest = max(1, min(WIDEST, _BYTES // (16 * max(numbers, 1))))
    sequential = Settled("sequential", WIDEST if job.is_together else 1)
    vectorized = Settled("vectorized", WIDEST if job.is_together else widest)
    wanted = settled or asked
    if task.precision == "fp16":  # each network has a scale of its own
        if wanted == "vectorized":
            raise InputError(
                "precision='fp16' scales the losses of each network apart; give executor='sequential', or precision='bf16'."
            )
        return sequential
    if wanted == "sequential":
        return sequential
    if wanted == "vectorized":
        if settled is None and found is not None:
            _check_stackable(job, found[0])
        return vectorized
    if found is None or widest == 1 or not found[0].optimizer.elementwise or task.ragged or task.findings.remembers:
        return sequential
    convolves = holds(task.blueprint.network(), nn.modules.conv._ConvNd)
    if devices.is_processor(task.device) and (numbers >= STACKED or convolves):
        return sequential
    try:
        _check_stackable(job, found[0])
    except InputError:  # such as recurrent networks: they are trained one by one
        return sequential
    return vectorized


def _check_stackable(job: Job, phase: Train) -> None:
    """Raise InputError, before anything is trained, for a network that two branches cannot train stacked."""
    task = job.task
    if task.findings.remembers:
        raise InputError(
            f"executor='vectorized' cannot train this network: its attribute {task.findings.remembers!r}, a tensor, changes when it is called; make it "
            "a buffer (register_buffer), or use executor='sequential'."
        )
    with Calls(task.blueprint.network()) as running:
        try:
            many = _gradients(StackedTrainer, job, phase, keys=[0, 1])
        except ChoralError:
            raise
        except UNMAPPED as error:
            said = str(error).strip().splitlines()[0]
            raise InputError(
                f"executor='vectorized' cannot train this network: in {running.where or 'its loss'}, torch.func.vmap stops "
                f"with '{said}'; use executor='sequential'."
            ) from error
    wrong = _differing(_gradients(PlainTrainer, job, phase, keys=[1]), many, task)
    if wrong:
        raise InputError(
            f"executor='vectorized' cannot train this network: stacked, its parameter {wrong!r} gets another gradient than alone (hooks of "
            "gradients, and weights that forward writes into or reads from a list or dict of its own, are passed over); use "
            "executor='sequential'."
        )


def _gradients(kind: type[Trainer], job: Job, phase: Train, *, keys: list[int]) -> Params:
    """Return the gradients that a trainer's first step, at a rate of 0, gives the last of equal networks with draws of these keys."""
    task, source = job.task, job.source
    state = state_of(task.blueprint.network())
    slots = {s: {n: torch.zeros_like(p) for n, p in state.params.items()} for s in task.objective.slots}
    trainer = kind(task, phase, [source.points] * len(keys))
    trainer.steps = 1
    trainer.mount([state.having(slots=slots)] * len(keys), keys)
    order = torch.arange(min(source.points, phase.batch_size))
    stacked = len(keys) > 1
    rows = for_members(order.expand(len(keys), -1) if stacked else order, task.structure, stacked=stacked)
    x, y = next(iter(source.epoch(rows, phase.batch_size)))
    if task.structure.own_batches and stacked:
        x, y = batches.mapped(lambda t: t.unflatten(0, (len(keys), -1)), x), y.unflatten(0, (len(keys), -1))
    try:
        trainer.step(x, y, Pace(0, 0.0, 0.0))
    except Exception as error:  # code of the user's may fail in any way
        if stacked or isinstance(error, ChoralError):
            raise
        raise stopped(error, "on a first batch,", x) from error
    return trainer.gradients()


def _differing(alone: Params, stacked: Params, task: Task) -> str | None:
    """Return the parameter whose gradient is another one in a stack, beyond rounding; None if there is none.

    torch.func passes over what is not a function of weights and inputs: weights that forward writes into or reads from a list or
    dict of its own, the padding of some embeddings.
    """
    lost = next((name for name in alone if name not in stacked), None)
    if lost is not None or task.precision != "fp32":  # other gradients are too coarse to tell
        return lost
    largest = max((float(g.abs().max()) for g in alone.values() if g.numel()), default=0.0)
    for name, own in alone.items():
        off = float((own - stacked[name]).abs().max()) if own.numel() else 0.0
        if off > _OFF * float(own.abs().max() if own.numel() else 0.0) + _ROUNDING * largest:
            return name
    return None


def choose_threads(job: Job, *, stacked: bool) -> int:
    """Return how many threads torch's operations get in a run, whose branches may be trained stacked."""
    most, phases = torch.get_num_threads(), trainings(job.recipe.plan)
    if most == 1 or not devices.is_processor(job.task.device) or not phases:
        return most
    found = _first_train(job.recipe.plan) if stacked else None
    phase, branches = (phases[0], 1) if found is None else found
    return threads_for(job.task.findings.operations, min(phase.batch_size, job.source.points), together=branches)
