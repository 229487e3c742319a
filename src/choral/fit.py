"""fit trains an ensemble from a network, data and a recipe; load reads one from a file or run folder."""

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import values
from choral.base.errors import InputError, RunError, unknown_argument, warn
from choral.base.types import Build, Builds
from choral.base.values import guarded
from choral.callbacks import bars, somebody_watches, write_line
from choral.data.inputs import Transforms
from choral.engine.checkpoint import MemberStore
from choral.engine.compute import Compute, OnExisting, Parts, Store, is_far, parts_of, using
from choral.engine.events import Callback, one_of
from choral.engine.files import sha256
from choral.engine.folder import claimed, run_of, settle
from choral.engine.job import WIDEST, Call, Job, call_of, in_agreement
from choral.engine.run import carry_out
from choral.engine.validation import Limit
from choral.ensemble.ensemble import Ensemble, said_of
from choral.ensemble.held_out import chosen, read_folds, settle_folds, settle_noise, warn_if_doubtful
from choral.ensemble.saving import load_bytes, load_folder
from choral.objectives.likelihoods import Likelihood
from choral.plan.cost import warning
from choral.plan.early_stopping import EarlyStopping
from choral.recipes.recipe import Recipe
from choral.tables.table import Table

_LOG = logging.getLogger("choral")


@guarded
def fit(
    build: Build | nn.Module,
    data: Any,
    recipe: Recipe | str,
    *,
    target: str | int | None = None,
    sample_weight: Any = None,
    transforms: Transforms = (),
    output: str | int | Callable[[Any], Tensor] | None = None,
    likelihood: Likelihood | str | None = None,
    validation: Any = "auto",
    cv: Any = None,
    early_stopping: EarlyStopping | None = None,
    run_dir: str | Path | Store | None = None,
    on_existing: OnExisting = "resume",
    seed: int = 0,
    callbacks: Callback | Sequence[Callback] | None = None,
    progress: bool | None = None,
    device: str | torch.device | None = None,
    compute: Compute = Compute(),
) -> Ensemble:
    """Train an ensemble.

    >>> x, y = torch.randn(64, 4), torch.arange(64) % 3
    >>> ensemble = fit(lambda: nn.Linear(4, 3), (x, y), "deep_ensemble", progress=False)
    >>> ensemble.predict(x).probs.shape
    torch.Size([64, 3])

    Args:
        build: a function that returns a new network, or a network, which is copied. Some methods start from trained weights; those that
            must draw new weights warn if the network was trained.
        data: training data: a pair (x, y) of arrays or tensors, or (x, y, weights); a map-style dataset; or a DataLoader over one.
            Several inputs are a dict in the place of x, passed to the network as keywords, or a tuple or list, passed by position.
        recipe: the method, for example `choral.recipes.snapshot(epochs=60)`; or its name, for its defaults.

        target: (data) the key of the targets, if data or the items of a Dataset are dicts.
        sample_weight: (data) a weight of 0 or more for each row: 2 repeats the row, 0 removes it. For a Dataset, its place in an item:
            2 for items (x, y, weight), or a key for dicts. Batch losses are divided by the mean weight of all rows, penalties by the sum
            of weights.
        transforms: (data) transforms of input batches (`choral.data`), by key for a dict of inputs: transforms={'image': (...)};
            augmentations apply to training only.

        output: (outputs) the key, position or function that selects the output of a network that returns a dict, dataclass or tuple.
            Outputs (batch,) are read as (batch, 1).
        likelihood: (outputs) the meaning of the outputs: a value or a name (`choral.objectives.likelihoods.NAMES`). None infers it from
            y and the outputs, and raises an error if they are ambiguous.

        validation: (validation) rows scored after every epoch: a share of the data, drawn at random by the seed (stratified by class),
            or separate data. 'auto' holds out 5 % to 15 % if the recipe leaves training settings open or `early_stopping` is given.
            None holds out nothing.
        cv: (validation) a number of folds for cross-validation, or (folds, groups) with a group for each row; groups stay in one fold.
            Every member holds out one fold (a method that trains one network is run once per fold). The ensemble then has scores of
            all rows (`info['out_of_fold']`) and conformal intervals or sets.
        early_stopping: (validation) `choral.EarlyStopping(patience=16, restore_best=True)`; epochs are then an upper bound. None trains
            to the end, and keeps the weights with the best validation score, if there are validation rows.

        run_dir: (run) folder for the plan, log, checkpoints and members; or a URL that fsspec supports ('s3://bucket/run', `choral.Store`).
            The same call resumes the run, bit for bit. A folder with another plan, seed or data raises an error.
        on_existing: (run) what to do with a run in that folder. 'resume' continues it. 'extend' adds members to a deep_ensemble or cycles
            to a snapshot and keeps existing members. 'overwrite' removes the files of the run, after all checks, and starts again.
        seed: (run) seed of all random draws.
        callbacks: (run) a function or several, called with every event, a dict (`choral.engine.events`, `choral.callbacks`).
        progress: (run) whether to show a progress bar; None shows one in a terminal or notebook.

        device: (compute) shortcut for compute=Compute(device=...); 'auto' is CUDA, MPS or the CPU.
        compute: (compute) `choral.Compute`: device, precision, executor, threads, time limit, data parallelism, cluster.

    Returns:
        The trained ensemble. Its `info` contains the cost of training and the reasons for which it ended.
    """
    return train(build, data, recipe, **{n: v for n, v in locals().items() if n not in ("build", "data", "recipe")})


def check_options(function: str, own: Iterable[str], options: Mapping[str, Any]) -> None:
    """Raise InputError for options that are not arguments of `fit` or of a function that passes options on to it."""
    known = list(dict.fromkeys([*own, *list(inspect.signature(fit).parameters)[3:]]))
    for name in options:
        if name not in known:
            raise InputError(unknown_argument(function, name, known))
    given = {n: v for n, v in options.items() if n not in own}
    values.check_types(function, given, values.annotations(fit, of_plain=True))


@guarded
def train(
    build: Build | nn.Module,
    data: Any,
    recipe: Recipe | str,
    *,
    run_dir: str | Path | Store | None = None,
    on_existing: OnExisting = "resume",
    callbacks: Callback | Sequence[Callback] | None = None,
    progress: bool | None = None,
    table: Table | None = None,
    **options: Any,
) -> Ensemble:
    """Train an ensemble with the arguments of `fit`; `table` describes how a table's columns became inputs."""
    began, call = time.perf_counter(), call_of(build, data, recipe, options | {"table": table})
    if call.compute.cluster is not None:  # which trains all; the rest puts it together
        call = _trained_apart(call, run_dir, callbacks, progress, on_existing)
        callbacks, progress, on_existing = None, False, "resume"
    compute, parts = call.compute, parts_of(call.compute)
    began = compute.time_limit.started if isinstance(compute.time_limit, Limit) else began
    with _opened(run_dir, compute, parts) as (folder, storage):
        job = in_agreement(parts, lambda: call.job(parts))  # understands the data and inspects the network
        _LOG.info("task %s: %s", job.task.likelihood.prediction.task, said_of(job.task.likelihood))
        with claimed(folder):
            plan, width = settle(folder, job, table=table, on_existing=on_existing, stack=storage and WIDEST)
            if lacking := warning(job.recipe.plan, job.source.points):
                warn(f"{job.recipe.name}: {lacking}.")
            with (
                using(compute.threads or plan["environment"]["threads"]),
                _watched(job.recipe, callbacks, progress if parts.writes else False) as hear,
            ):
                if "leaves" in plan:  # which other processes may have trained, or be training
                    from choral.cluster.run import train_here

                    train_here(call, job, storage or folder, plan, hear, on_existing)
                store, costs = carry_out(job, folder, plan, width, hear, started=began)
                if storage is not None:  # the copies of the files will be gone
                    store = store.in_memory(costs["networks"])
            return _put_together(call, job, store, costs, folder, plan)


def _trained_apart(call: Call, run_dir: Any, callbacks: Any, progress: bool | None, on_existing: OnExisting) -> Call:
    """Train all leaves of a run on its cluster; return the call without the cluster."""
    from choral.cluster.run import check_cluster, train_apart

    check_cluster(call.compute, run_dir, on_existing)
    alone = replace(call, compute=replace(call.compute, cluster=None))
    with _watched(call.recipe, callbacks, progress) as hear:
        train_apart([(alone, run_dir, hear, on_existing)], call.compute.cluster)
    return alone


@contextmanager
def _opened(run_dir: Any, compute: Compute, parts: Parts) -> Iterator[tuple[Any, Any]]:
    if not is_far(run_dir):
        # absolute, since callbacks may change the working folder, and members are read later
        yield None if run_dir is None or not parts.writes else Path(run_dir).absolute(), None
        return
    from choral.cluster.run import refuse
    from choral.cluster.storage import opened

    refuse(f"in {run_dir}", time_limit=compute.time_limit, data_parallel=compute.data_parallel)
    with opened(run_dir) as storage:
        yield storage.folder, storage


def _put_together(
    call: Call, job: Job, store: MemberStore, costs: dict[str, Any], folder: Path | None, plan: dict[str, Any]
) -> Ensemble:
    """Return the ensemble of trained members, with its noise estimated on residuals."""
    held, count, weights = chosen(store, costs["networks"], job.recipe)
    folded = call.cv is not None
    held_out = job.validation is not None and not folded
    ensemble = Ensemble(
        call.build,
        job.recipe,
        job.task.likelihood,
        held,
        count,
        inputs=job.task.transforms,
        interface=job.task.blueprint.interface,
        table=call.table,
        info=costs | ({"validation_rows": job.judged_on.points} if held_out else {}),
        posthoc=weights,
    )
    run, settle_on = "" if folder is None else run_of(plan), settle_folds if folded else settle_noise
    settle_on(ensemble, job.judged_on, folder, run=run)
    with using(call.compute.threads or plan["environment"]["threads"]):
        # folds keep targets as they are in the data
        warn_if_doubtful(ensemble, job.source if folded else job.judged_on, held_out=held_out)
    return ensemble


@guarded
def load(
    path: str | Path | Store,
    build: Builds | None = None,
    *,
    partial: bool = False,
    output: Callable[[Any], Tensor] | None = None,
    likelihood: Likelihood | None = None,
    check_build: bool = True,
) -> Ensemble:
    """Load an ensemble from a file written by `Ensemble.save` or from a run folder.

    Args:
        path: the file or folder, or the URL of a run.
        build: the network factory, not needed for networks of `choral.models`; a list of them for an ensemble of different networks.
        partial: load the remaining members, with a warning, if some members of a run folder are missing or damaged.
        output: the function that selects the network's output, if `fit` was given a function.
        likelihood: your own likelihood or `Loss`, if the ensemble was fitted with one: files contain no code.
        check_build: whether to raise an error for a network with other layers, settings or forward code than the fitted one; False
            checks the shapes of the weights only.
    """
    options: dict[str, Any] = {"output": output, "likelihood": likelihood, "check_build": check_build}
    if is_far(path):
        from choral.cluster.run import fetched

        with fetched(path) as folder:
            ensemble = load_folder(folder, build, partial=partial, **options)
            ensemble._store = ensemble._store.in_memory(ensemble._count)  # the folder will be gone
        return ensemble
    path = Path(str(path)).absolute()  # members are read later, perhaps in another working folder
    if not (path / "plan.json").exists() and (path / "ensemble.choral").exists():  # the folder of a search
        data = (path / "ensemble.choral").read_bytes()
        found = load_bytes(data, str(path / "ensemble.choral"), build, **options)
        read_folds(found, path, sha256(data))
        return found
    if not path.exists():
        raise RunError(f"{path} does not exist; give a file made by Ensemble.save or a run folder.")
    if path.is_file():
        return load_bytes(path.read_bytes(), str(path), build, **options)
    ensemble = load_folder(path, build, partial=partial, **options)
    read_folds(ensemble, path, ensemble._store.run or "")
    return ensemble


@contextmanager
def _watched(
    recipe: Any, listener: Callback | Sequence[Callback] | None, progress: bool | None
) -> Iterator[Callback | None]:
    """Yield the callback of a run: the given ones and, if `progress` (by default in a terminal or notebook), a progress bar."""
    given = one_of(listener)
    if not (somebody_watches() if progress is None else progress):
        yield given
        return
    with bars(drawn=True, say=write_line) as bar:
        yield one_of([bar(recipe.name, recipe.epochs, recipe.length)] + ([] if given is None else [given]))
