"""fit: a network, data and a recipe in; an ensemble out. load: the way back from a file or run folder."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from choral import draws, rng
from choral.data.inputs import Transform, prepare
from choral.data.sources import Source, source_of
from choral.engine.blueprint import Blueprint
from choral.engine.checkpoint import Checkpoints
from choral.engine.denormals import flushing
from choral.engine.executors import Executor, choose, choose_way
from choral.engine.files import checksum, pack_tensors, tensor_bytes, write_json
from choral.engine.memory import keep_freed
from choral.engine.run import Run
from choral.engine.store import Listener, Log, MemberStore
from choral.engine.trainers import Task
from choral.errors import InputError, PlanError, RunError
from choral.objectives.likelihoods import Categorical, Likelihood, infer
from choral.plan.cost import cost
from choral.predict import Ensemble
from choral.recipe import Recipe
from choral.saving import Saved, build_for, check_fits, load_file
from choral.structures.independence import check_independence
from choral.types import Build
from choral.values import from_dict


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
    table: dict[str, Any] | None = None,
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
        checkpoint_seconds: least time between two checkpoints; they are taken at the ends of epochs and phases.
        listener: called with every event (a dict).
        table: how a table's columns became inputs; kept with the ensemble.
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
    with _claimed(folder):
        identity = _identity(task, source, recipe, seed, executor)
        width = _settle_folder(folder, identity, task, source, recipe, executor)
        if folder is not None and table is not None:
            write_json(folder / "table.json", table)
        store = MemberStore(None if folder is None else folder / "members")
        count = cost(recipe.plan).networks
        results = None if folder is None else _read(folder / "results.json")
        if results is None or store.missing(count):
            log = Log(None if folder is None else folder / "log.jsonl", listener)
            checkpoints = None if folder is None else Checkpoints(folder / "checkpoints")
            run = Run(
                task,
                source,
                recipe.plan,
                seed=seed,
                width=width,
                store=store,
                checkpoints=checkpoints,
                log=log,
                seconds=checkpoint_seconds,
            )
            try:
                run.execute()
            finally:
                log.close()
            results = _results(run, store, count, time.perf_counter() - started)
            if folder is not None:
                write_json(folder / "results.json", results)
                assert checkpoints is not None
                checkpoints.clear()
    return Ensemble(build, recipe, task.likelihood, store, count, inputs=inputs, table=table, info=_summary(results))


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
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device is {str(device)!r}, which cannot be used here; give 'cpu' or a present 'cuda'."
        ) from error
    x, y = source.example()
    blueprint = Blueprint(build, recipe.structure, device=place, images=x.dim() == 4)
    network = blueprint.network().eval()
    given = likelihood or recipe.objective.likelihood
    with torch.no_grad(), draws.keyed(0):
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


def _settle_folder(folder, identity, task, source, recipe, executor):  # type: ignore[no-untyped-def]  # private glue of fit
    """Compare with what the folder holds, or write it; return the width rule of the executor that was settled on."""
    environment = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    stored = None if folder is None else _read(folder / "plan.json")
    if stored is not None:
        lines = list(_differences(stored["identity"], json.loads(json.dumps(identity))))
        if lines:
            raise RunError(
                f"{folder} holds another run: "
                + "; ".join(lines[:4])
                + ". Use another run_dir, or repeat the old call."
            )
        if stored["environment"] != environment and not (folder / "results.json").exists():
            import warnings

            warnings.warn(
                f"{folder} was begun with {stored['environment']} and goes on with {environment}; members agree with an "
                "unbroken run to rounding, not bit for bit.",
                stacklevel=3,
            )
    way, seconds = choose_way(task, source, recipe.plan, settled=None if stored is None else stored.get("way"))
    settled = choose(executor, task, source, recipe.plan, settled=None if stored is None else stored["executor"])
    if stored is None and folder is not None:
        content = {
            "identity": identity,
            "environment": environment,
            "executor": settled.name,
            "way": way,
            "measured": settled.measured | seconds,
            "network": _zoo_spec(task.blueprint),
            "describe": recipe.describe(),
        }
        write_json(folder / "plan.json", content)
    return settled.width


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


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); remove the folder or use another run_dir.") from error


@contextlib.contextmanager
def _claimed(folder: Path | None) -> Iterator[None]:
    """Hold a run folder for this process; a second process on the same folder is refused."""
    if folder is None:
        yield
        return
    import fcntl

    if folder.exists() and not folder.is_dir():
        raise RunError(f"run_dir {folder} is a file; give a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"{folder} is in use by another process; wait for it or use another run_dir.") from error
        yield


def _results(run: Run, store: MemberStore, count: int, seconds: float) -> dict[str, Any]:
    states = (store.get(i) for i in range(count))
    parameters = stored = flops = 0.0
    for state in states:
        mask = state.slots.get("mask", {})
        parameters += sum(int(mask[n].sum()) if n in mask else p.numel() for n, p in state.params.items())
        stored += tensor_bytes(state.params)
        flops += run.flops.predict(state)
    return {
        "counted": run.counted,
        "parameters": int(parameters),
        "predict_flops": flops * run.task.structure.draws,
        "networks": count,
        "seconds": seconds,
    }


def _summary(results: dict[str, Any] | None) -> dict[str, Any]:
    """Return what an ensemble keeps of a run's results: its costs, not what evaluations and reports have added."""
    added = ("corruption_errors", "evaluation", "history", "judged_by", "map", "plans", "ranking", "rows", "settings")
    return {k: v for k, v in (results or {}).items() if k not in added}


def load(path: str | Path, build: Build | nn.Module | None = None) -> Ensemble:
    """Return a saved ensemble, from a file made by `Ensemble.save` or from a run folder.

    Args:
        path: the file or folder.
        build: the network factory; not needed for networks of choral's own zoo.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist; give a file made by Ensemble.save or a run folder.")
    saved = load_file(path, build) if path.is_file() else _load_folder(path, build)
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


def _load_folder(path: Path, build: Build | nn.Module | None) -> Saved:
    stored = _read(path / "plan.json")
    if stored is None:
        raise RunError(f"{path} is not a run folder: it has no plan.json; give a run folder or a saved file.")
    identity = stored["identity"]
    recipe = from_dict(identity["recipe"])
    store = MemberStore(path / "members")
    count = cost(recipe.plan).networks
    missing = store.missing(count)
    if missing:
        raise RunError(
            f"the run in {path} is not complete: {len(missing)} of {count} networks are missing; run it again to finish."
        )
    saved = Saved(
        build_for(stored["network"], build, str(path)),
        recipe,
        from_dict(identity["likelihood"]),
        store,
        count,
        inputs=tuple(from_dict(t) for t in identity["inputs"]),
        table=_read(path / "table.json"),
        info=_summary(_read(path / "results.json")),
    )
    check_fits(saved, str(path))
    return saved
