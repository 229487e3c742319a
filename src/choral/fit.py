"""fit: a network, data and a recipe in; an ensemble out. load: the way back from a file or run folder."""

import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from choral.base import draws, rng
from choral.base.errors import InputError, PlanError, RunError
from choral.base.types import Build
from choral.data.inputs import Transform, prepare
from choral.data.sources import Source, source_of
from choral.data.tables import Table
from choral.engine.blueprint import Blueprint, usable
from choral.engine.checkpoint import Checkpoints
from choral.engine.denormals import flushing
from choral.engine.executors import Executor, choose, choose_kernel
from choral.engine.files import checksum, digest_of, pack_tensors, read_json, write_json
from choral.engine.folder import claimed, keep_table, read_plan, run_of
from choral.engine.memory import keep_freed
from choral.engine.mending import mend
from choral.engine.run import Run
from choral.engine.store import Listener, Log, MemberStore, last_counted
from choral.engine.trainers import Task
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.saving import costs_in, load_file, load_folder
from choral.objectives.likelihoods import Categorical, Likelihood, infer
from choral.recipes.recipe import Recipe
from choral.structures.independence import check_independence


@flushing()
def fit(
    build: Build | nn.Module,
    data: Any,
    recipe: Recipe,
    *,
    run_dir: str | Path | None = None,
    seed: int = 0,
    inputs: tuple[Transform, ...] = (),
    likelihood: Likelihood | None = None,
    executor: Executor = "auto",
    device: str | torch.device = "cpu",
    precision: str = "fp32",
    checkpoint_seconds: float = 5.0,
    listener: Listener | None = None,
    table: Table | None = None,
) -> Ensemble:
    """Train an ensemble.

    Args:
        build: a function that returns a new plain network; or a network, which is copied and, for recipes that start from
            trained weights, is the given parent.
        data: a pair (x, y) of arrays or tensors, a map-style Dataset, or a DataLoader over one.
        recipe: the method, for example `choral.recipes.snapshot(epochs=60)`.
        run_dir: folder for the plan, log, checkpoints and members. The same call with the same folder resumes; another plan,
            seed or data in that folder is refused.
        seed: root of every random draw.
        inputs: transforms of input batches (`choral.data`); augmentations apply to training only.
        likelihood: what the outputs mean; decided from y and the network's outputs if None.
        executor: 'sequential', 'vectorised' (equal-shaped branches trained together), or 'auto', which measures both.
        device: where to train.
        precision: 'fp32' or 'bf16' (autocast).
        checkpoint_seconds: least time between two checkpoints; they are taken at the ends of epochs and phases, and so far apart
            that they take at most 2 % of the time. 0 takes one at every such end.
        listener: called with every event (a dict).
        table: how a table's columns became inputs, a `choral.data.tables.Table`; kept with the ensemble.
    """
    started = time.perf_counter()
    found = recipe.problems()
    if found:
        raise PlanError(f"The recipe '{recipe.name}' cannot run: " + "; ".join(found) + ".")
    if precision not in ("fp32", "bf16"):
        raise InputError(f"precision is {precision!r}; give 'fp32' or 'bf16'.")
    keep_freed()
    source = source_of(data)
    task = make_task(build, source, recipe, inputs=inputs, likelihood=likelihood, device=device, precision=precision)
    folder = None if run_dir is None else Path(run_dir)
    with claimed(folder):
        identity = _identity(task, source, recipe, seed, executor)
        plan, width = _settle_folder(folder, identity, task, source, recipe, executor, table)
        store = MemberStore(None if folder is None else folder / "members", run=run_of(plan))
        log = Log(None if folder is None else folder / "log.jsonl", listener)
        run = Run(
            task,
            source,
            recipe.plan,
            seed=seed,
            width=width,
            store=store,
            checkpoints=None if folder is None else Checkpoints(folder / "checkpoints"),
            log=log,
            seconds=checkpoint_seconds,
        )
        try:
            results = _carried_out(run, folder, plan["environment"], started)
        finally:
            log.close()
    count = len(run.member_of)
    return Ensemble(build, recipe, task.likelihood, store, count, inputs=inputs, table=table, info=results)


def _carried_out(run: Run, folder: Path | None, begun: dict[str, Any], started: float) -> dict[str, Any]:
    """Train what is not yet there, in a new folder, an interrupted or a finished one; return the results."""
    count = len(run.member_of)
    if folder is None:
        run.execute()
        return _results(run, count, time.perf_counter() - started)
    assert run.checkpoints is not None
    finished = (folder / "results.json").exists()  # whole or not: what it says can be made again
    lost = run.store.lost(count)
    if lost:
        _compare_environment(folder, begun)
    if finished or not (lost or run.checkpoints):
        mend(run, lost)
    else:
        run.begin()
        if run.snapshot is not None:
            mend(run, lost, until=run.snapshot.position, failed=run.snapshot.failed)
        run.execute()
    results = _kept_results(folder, run.log)
    if not results:
        if not run.counted["epochs"]:
            run.counted = last_counted(folder / "log.jsonl")
        results = _results(run, count, time.perf_counter() - started)
        write_json(folder / "results.json", results, within=folder)
    run.checkpoints.clear()
    return results


def _kept_results(folder: Path, log: Log) -> dict[str, Any]:
    try:
        return costs_in(read_json(folder / "results.json"))
    except RunError as error:
        log.event(kind="warning", message=f"{error} It is made again from the log.")
        return {}


def _compare_environment(folder: Path, begun: dict[str, Any]) -> None:
    if begun != _environment():
        warnings.warn(
            f"{folder} was begun with {begun} and goes on with {_environment()}; members agree with an unbroken run to "
            "rounding, not bit for bit.",
            stacklevel=4,
        )


def _environment() -> dict[str, Any]:
    return {"threads": torch.get_num_threads(), "torch": torch.__version__}


def make_task(
    build: Build | nn.Module,
    source: Source,
    recipe: Recipe,
    *,
    inputs: tuple[Transform, ...] = (),
    likelihood: Likelihood | None = None,
    device: str | torch.device = "cpu",
    precision: str = "fp32",
) -> Task:
    """Return the checked task of a run: the network is built once and tried on the first points."""
    place = usable(device)
    x, y = source.example()
    blueprint = Blueprint(build, recipe.structure, device=place, images=x.dim() == 4)
    network = blueprint.network().eval()
    if not any(p.requires_grad for p in network.parameters()):
        raise InputError(
            "build: no parameter of the network is to be trained (all are frozen by requires_grad=False, or there are none); "
            "leave at least the last layer free."
        )
    given = likelihood or recipe.objective.likelihood
    with torch.no_grad(), rng.seeded(0, "look"), draws.keyed(0):
        ready, _ = recipe.structure.feed(prepare(x.to(place), inputs, training=False), None)
        try:
            outputs = recipe.structure.unfold(network(ready))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise InputError(
                f"the network cannot read x: a batch of shape {tuple(x.shape)} ({x.dtype}) gave the error "
                f"'{str(error).splitlines()[0]}'; give inputs of the shape and type its first layer takes."
            ) from error
    if outputs.shape[:2] != (recipe.structure.members, len(x)):
        raise InputError(
            f"the network gave outputs of shape {tuple(outputs.shape)} for {len(x)} points; the first axes must be "
            f"(member, batch) = ({recipe.structure.members}, {len(x)}); make the network return (batch, outputs)."
        )
    check_independence(recipe.structure, network, prepare(source.example(4)[0].to(place), inputs, training=False))
    known = source.targets()
    targets = y if known is None else known
    decided = given or infer(targets, outputs.shape[2] if outputs.dim() > 2 else 1)
    _check_targets(decided, targets, outputs.shape[2] if outputs.dim() > 2 else 1)
    return Task(blueprint, recipe.structure, recipe.objective, decided, inputs, place, precision)


def _check_targets(likelihood: Likelihood, targets: torch.Tensor, outputs: int) -> None:
    if isinstance(likelihood, Categorical):
        if targets.dtype.is_floating_point:
            raise InputError(
                "y holds real numbers but the likelihood is categorical; give integer class labels 0, 1, 2, ..., or a "
                "Gaussian likelihood for regression."
            )
        if outputs < 2:
            raise InputError(
                f"y holds integer class labels but the network gives {outputs} output; give it one output for each class, "
                "or make y real numbers for regression."
            )
        if targets.numel() and int(targets.max()) >= outputs:
            raise InputError(
                f"y holds the class label {int(targets.max())} but the network gives {outputs} outputs (classes 0 to "
                f"{outputs - 1}); widen its last layer or renumber the labels."
            )
    elif not targets.dtype.is_floating_point:
        raise InputError(
            "y holds integers, which are read as class labels, but the likelihood is Gaussian; convert y to float."
        )


def _identity(task: Task, source: Source, recipe: Recipe, seed: int, executor: Executor) -> dict[str, Any]:
    network = task.blueprint.network()
    shapes = [f"{n} {tuple(p.shape)}" for n, p in network.named_parameters()]
    identity = {
        "recipe": recipe.to_dict(),
        "seed": seed,
        "data": source.digest(),
        "inputs": [t.to_dict() for t in task.transforms],
        "likelihood": task.likelihood.to_dict(),
        "network": checksum("\n".join(shapes).encode()),
        "executor": executor,
        "device": task.device.type,
        "precision": task.precision,
    }
    if task.blueprint.parent is not None:
        identity["given weights"] = checksum(pack_tensors(dict(task.blueprint.parent.state_dict())))
    return identity


def _settle_folder(folder, identity, task, source, recipe, executor, table):  # type: ignore[no-untyped-def]  # private glue of fit
    """Compare with what the folder holds, or write it; return the plan and the width rule of the executor settled on."""
    stored = None if folder is None else read_plan(folder)
    if stored is not None:
        lines = list(_differences(stored["identity"], json.loads(json.dumps(identity))))
        if lines:
            raise RunError(
                f"{folder} holds another run: "
                + "; ".join(lines[:4])
                + ". Use another run_dir, or repeat the old call."
            )
    kernel, seconds = choose_kernel(task, source, recipe.plan, settled=None if stored is None else stored.get("kernel"))
    settled = choose(executor, task, source, recipe.plan, settled=None if stored is None else stored["executor"])
    plan = stored or {
        "identity": identity,
        "environment": _environment(),
        "executor": settled.name,
        "kernel": kernel,
        "measured": settled.measured | seconds,
        "network": _zoo_spec(task.blueprint),
        "describe": recipe.describe(),
        "table": None if table is None else digest_of(table.to_dict()),
    }
    if folder is not None:
        keep_table(folder, plan, table)
        if stored is None:
            write_json(folder / "plan.json", plan, within=folder)
    return plan, settled.width


def _zoo_spec(blueprint: Blueprint) -> dict[str, Any] | None:
    from choral import models

    with rng.seeded(0, "spec"):
        return models.spec_of(blueprint.plain())


def _differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Yield one line for each place where two plain structures differ, both values shown."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(name), new.get(name), f"{where}.{name}" if where else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new)):
            yield from _differences(a, b, f"{where}[{i}]")
    elif old != new:
        yield f"{where} was {_short(old)}, now {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _results(run: Run, count: int, seconds: float) -> dict[str, Any]:
    states = (run.store.get(i) for i in range(count))
    parameters = flops = 0.0
    for state in states:
        mask = state.slots.get("mask", {})
        parameters += sum(int(mask[n].sum()) if n in mask else p.numel() for n, p in state.params.items())
        flops += run.flops.predict(state)
    return {
        "counted": run.counted,
        "parameters": int(parameters),
        "predict_flops": flops * run.task.structure.draws,
        "networks": count,
        "seconds": seconds,
    }


def load(path: str | Path, build: Build | nn.Module | None = None, *, partial: bool = False) -> Ensemble:
    """Return a saved ensemble, from a file made by `Ensemble.save` or from a run folder.

    Args:
        path: the file or folder.
        build: the network factory; not needed for networks of choral's own zoo.
        partial: from a run folder where some members are missing or damaged (a branch diverged, a run was interrupted),
            load the others with a warning instead of refusing.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist; give a file made by Ensemble.save or a run folder.")
    saved = load_file(path, build) if path.is_file() else load_folder(path, build, partial=partial)
    try:
        return Ensemble(
            saved.build,
            saved.recipe,
            saved.likelihood,
            saved.store,
            saved.count,
            inputs=saved.inputs,
            table=saved.table,
            info=saved.info,
            posthoc=saved.posthoc,
        )
    except InputError as error:
        raise RunError(f"{path} cannot be read: {error}") from error
