"""fit: a network, data and a recipe in; an ensemble out. load: the way back from a file or run folder."""

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from choral.base.border import guarded
from choral.base.errors import RunError
from choral.base.types import Build, Builds
from choral.data.inputs import Transforms
from choral.data.tables import Table
from choral.engine.agreement import in_agreement
from choral.engine.completing import carry_out
from choral.engine.events import Listener
from choral.engine.executors import Executor
from choral.engine.folder import claimed, run_of
from choral.engine.job import Job
from choral.engine.parts import parts_of
from choral.engine.process_wide import settled_process
from choral.engine.settling import settle
from choral.engine.store import MemberStore
from choral.engine.threads import using
from choral.engine.validation import Limit
from choral.ensemble import votes
from choral.ensemble.describing import said_of
from choral.ensemble.ensemble import Ensemble, ensemble_from
from choral.ensemble.noise import settle_noise, warn_if_constant
from choral.ensemble.out_of_fold import digest_of, read_folds, settle_folds
from choral.ensemble.saving import Saved, check_same, in_memory, load_file, load_folder
from choral.listeners import watched
from choral.objectives.likelihoods import Likelihood
from choral.plan.needs import warning
from choral.plan.stopping import EarlyStop, Keep
from choral.recipes import recipe_of
from choral.recipes.recipe import Recipe
from choral.scale.apart import Asked, check_cluster, train_apart
from choral.scale.clusters import Ray
from choral.scale.entry import OPTIONS, Call, carry_out_leaves, cut_for, folded
from choral.scale.gathering import fetched
from choral.scale.remote import Store, is_far
from choral.scale.sites import absolute, opened, publish

_LOG = logging.getLogger("choral")


@guarded
def fit(
    build: Build | nn.Module,
    data: Any,
    recipe: Recipe | str,
    *,
    run_dir: str | Path | Store | None = None,
    seed: int = 0,
    inputs: Transforms = (),
    target: str | int | None = None,
    output: str | int | Callable[[Any], Tensor] | None = None,
    weights: Any = None,
    likelihood: Likelihood | str | None = None,
    standardise: bool | None = None,
    validation: Any = "auto",
    folds: int | None = None,
    groups: Any = None,
    stop: EarlyStop | None = None,
    keep: Keep | None = None,
    time_limit: float | None = None,
    executor: Executor = "auto",
    device: str | torch.device = "cpu",
    precision: str = "fp32",
    checkpoint_seconds: float = 5.0,
    listener: Listener | Sequence[Listener] | None = None,
    progress: bool | None = None,
    table: Table | None = None,
    overwrite: bool = False,
    extend: bool = False,
    process_wide: bool = True,
    threads: int | None = None,
    data_parallel: bool = False,
    accumulate: int = 1,
    batch_norm: str = "whole",
    cluster: Ray | None = None,
) -> Ensemble:
    """Train an ensemble.

    Two settings hold for the whole process, since neither can be had for less: numbers below 1e-38 count as zero in this
    thread until `fit` returns, and the C library keeps freed memory from the first `fit` on (`choral.engine.memory`). From the import on,
    `torch.utils.checkpoint` asks choral how a part is computed again, which changes nothing outside of choral's own passes.

    Args:
        build: a function that returns a new plain network; or a network, which is copied and, for recipes that start from
            trained weights, is the given parent. Weights are trained if a network's differ from newly drawn ones, or if a function returns
            most of them alike under two seeds (it loads them): the means of Bayesian networks then start at them, and at fresh draws otherwise;
            methods that draw them anew all the same say so.
        data: a pair (x, y) of arrays or tensors, or (x, y, weights); a dataset, that is anything with `__len__` and `__getitem__`, or a DataLoader over one. Several inputs are a dict in the
            place of x, passed to the network as keywords, or a tuple or list, passed as positions. Real numbers take the type of the
            network's parameters.
        recipe: the method, for example `choral.recipes.snapshot(epochs=60)`; or its name, for the recipe with its defaults.
        run_dir: folder for the plan, log, checkpoints and members. The same call with the same folder resumes; another plan,
            seed or data in that folder is refused. A URL that fsspec knows ('s3://bucket/run', `choral.Store`) keeps the run there.
        seed: root of every random draw.
        inputs: transforms of input batches (`choral.data`), by key for a dict of inputs: inputs={'image': (...)}; augmentations apply
            to training only.
        target: the key of the targets where data, or the items of a Dataset, are dicts.
        output: the name, position or function that picks the output of a network that returns a dict, dataclass or tuple.
            Outputs (batch,) are read as (batch, 1).
        weights: what each point counts, one number of 0 or more for each: 2 is the point twice, 0 as if it were not there; or where items
            of a Dataset hold it, which is then read once: 2 for items (x, y, weight), or the key of items that are dicts. Losses of
            batches are divided by the mean weight of all points, penalties by the sum of weights.
        likelihood: what the outputs mean, a value or a name (`choral.objectives.likelihoods.NAMES`); decided from y and the
            network's outputs if None, refused where they leave a doubt.
        standardise: whether real targets are brought to mean 0 and deviation 1 for training, which predictions undo. None does so
            unless the likelihood says how large their noise is.
        validation: points no member is trained on: a share of the data, drawn by the seed (of each class, for labels in memory), or
            data of its own, as `data`. Every epoch ends with a look at them, which training does not notice. 'auto' holds out 15 % of few
            points to 5 % of many where the recipe leaves training settings open, or `stop` or `keep` ask for it; None holds out nothing.
        folds: cross-validation instead: members hold out one of so many parts of the points each, in turn, and are watched by it (a
            method without a fork of members is run once for each part). Every part has its share of each class. The ensemble then
            has honest scores of all points (`info['out_of_fold']`), conformal intervals or sets, and `out_of_fold`.
        groups: a value for each point; points of equal value are held out together by folds.
        stop: when a training phase ends before its epochs, by what the held-out points say: `choral.EarlyStop(patience=16)`.
            Epochs are then an upper bound.
        keep: what a training phase leaves: 'best', the state that predicted the held-out points best, or 'last'; 'best' with
            validation, if None.
        time_limit: seconds of wall time, from the call on, after which training ends with what is there, at the end of an epoch; members
            that were not begun are left out, and `ensemble.info` says so. Training in all parts of a resumed run counts. The same call
            with a larger limit, or none, goes on from there, to the members that it would have given at once.
        executor: 'sequential', 'vectorised' (equal-shaped branches trained together), or 'auto', which measures both.
        device: where to train.
        precision: 'fp32', or 'bf16' or 'fp16' by autocast; with 'fp16' losses are scaled, steps whose gradients overflow are left out, and
            branches are trained one by one.
        checkpoint_seconds: least time between two checkpoints; they are taken at the ends of epochs and phases, and so far apart
            that they take at most 2 % of the time. 0 takes one at every such end.
        listener: called with every event, a dict as `choral.engine.events` says; one function or several (`choral.listeners`).
        progress: whether to draw a bar; None draws one in a terminal or notebook.
        table: how a table's columns became inputs, a `choral.data.tables.Table`; kept with the ensemble.
        overwrite: start again in a folder that holds another run: what choral wrote there is removed once everything has been
            checked, other files stay.
        extend: go on in a folder that holds the same run with fewer branches of a fork (members of deep_ensemble) or fewer rounds of
            a repeat (cycles of snapshot): present members stay byte for byte, new ones are trained. Anything else is refused.
        process_wide: whether the two settings above are made; False leaves the process as it is, and training slower.
        threads: how many torch's operations get in this thread; None gives small networks one, and larger ones as many as
            `torch.get_num_threads()` says if a short trial shows that they gain. The run folder keeps the number, and a resumed
            run goes on with it: another one changes the last bits of sums. Afterwards the user's setting is in force again.
        data_parallel: whether the processes of torch's default group (`torchrun`, `torch.distributed.init_process_group`) share every
            batch; each must make the same call. Results agree with those of one process to rounding; the first process writes.
        accumulate: parts in which each process takes its batches one after the other, for less memory; the gradient is that of the
            whole batch to rounding.
        cluster: who trains the leaves of the run: `choral.Ray()`, on this machine or a cluster. The members are those of one process with
            the same threads and stacks; `run_dir` must be a place that all machines see.
        batch_norm: 'whole' gives BatchNorm the statistics of whole batches also where processes share them, 'part' those of each part.
    """
    started = time_limit.started if isinstance(time_limit, Limit) else time.perf_counter()
    options = {name: value for name, value in locals().items() if name in OPTIONS}
    parts = parts_of(data_parallel=data_parallel, accumulate=accumulate, batch_norm=batch_norm)
    chosen = folded(recipe_of(recipe), folds, groups)
    call = Call(build, data, chosen, options, time_limit, process_wide)
    if cluster is not None:
        check_cluster(cluster, run_dir, time_limit=time_limit, extend=extend, data_parallel=data_parallel)
        with watched(chosen.name, chosen.epochs, listener, progress) as hear:
            train_apart([Asked(call, absolute(run_dir), hear, overwrite)], cluster)
        listener, progress, overwrite = None, False, False  # all is trained; what follows puts it together
    with settled_process(process_wide), opened(run_dir if parts.writes else None) as (folder, objects):
        job = in_agreement(parts, lambda: call.job(parts), seed=seed, executor=executor)
        _LOG.info("understood as %s: %s", job.task.likelihood.prediction.task, said_of(job.task.likelihood))
        with claimed(folder):
            plan, width = settle(
                folder,
                job,
                seed=seed,
                executor=executor,
                table=table,
                overwrite=overwrite,
                extend=extend,
                threads=threads,
                cut=cut_for(call, run_dir, parts),
            )
            lacking = warning(job.recipe.plan, job.source.points)
            if lacking:
                warnings.warn(f"{job.recipe.name}: {lacking}.", stacklevel=3)
            with (
                using(threads or plan["environment"]["threads"]),
                watched(chosen.name, chosen.epochs, listener, progress if parts.writes else False) as hear,
            ):
                if "leaves" in plan:
                    publish(objects, folder, overwrite=overwrite)
                    store, costs = carry_out_leaves(
                        call, job, folder, objects, plan, hear, extend=extend, started=started
                    )
                else:
                    store, costs = carry_out(
                        job, folder, plan, width, hear, seed=seed, seconds=checkpoint_seconds, started=started
                    )
            ensemble = _put_together(call, job, store, costs, table)
            settle_last = settle_noise if folds is None else settle_folds
            settle_last(ensemble, job.judged_on, folder, run=run_of(plan))
            warn_if_constant(ensemble, job.judged_on, held_out=job.validation is not None)
    return ensemble


def _put_together(call: Call, job: Job, store: MemberStore, costs: dict[str, Any], table: Table | None) -> Ensemble:
    """Return the ensemble of what was trained."""
    held, count, weights = votes.chosen(store, costs["networks"], job.recipe)
    return Ensemble(
        call.build,
        job.recipe,
        job.task.likelihood,
        held,
        count,
        inputs=job.task.transforms,
        interface=job.task.blueprint.interface,
        table=table,
        info=costs,
        posthoc=weights,
    )


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
    """Return a saved ensemble, from a file made by `Ensemble.save` or from a run folder.

    Args:
        path: the file or folder, or the URL of a run.
        build: the network factory; not needed for networks of choral's own zoo. Several, for an ensemble of networks that differ.
        partial: from a run folder where some members are missing or damaged (a branch diverged, a run was interrupted),
            load the others with a warning instead of refusing.
        output: the function that picks the networks' output, if `fit` was given one.
        likelihood: for an ensemble fitted with a `Loss` or likelihood of your own, that one: a file never brings code.
        check_build: whether a network with other layers, settings or forward code than the one it was fitted with is refused;
            False trusts `build` as long as the weights fit.
    """
    if is_far(path):
        with fetched(path) as folder:
            saved = in_memory(load_folder(folder, build, partial=partial, output=output, likelihood=likelihood))
        return _ensemble(saved, str(path), build, check_build)
    path = Path(str(path)).absolute()  # members are read later, perhaps in another working folder
    if not (path / "plan.json").exists() and (path / "ensemble.choral").exists():  # the folder of a search
        found = load(path / "ensemble.choral", build, output=output, likelihood=likelihood, check_build=check_build)
        read_folds(found, path, digest_of(path / "ensemble.choral"))
        return found
    if not path.exists():
        raise RunError(f"{path} does not exist; give a file made by Ensemble.save or a run folder.")
    if path.is_file():
        saved = load_file(path, build, output=output, likelihood=likelihood)
    else:
        saved = load_folder(path, build, partial=partial, output=output, likelihood=likelihood)
    ensemble = _ensemble(saved, str(path), build, check_build)
    if path.is_dir():
        read_folds(ensemble, path, saved.store.run or "")
    return ensemble


def _ensemble(saved: Saved, where: str, build: Builds | None, check_build: bool) -> Ensemble:
    """Return the ensemble that saved parts make."""
    if build is not None and check_build:
        check_same(saved, where)
    return ensemble_from(saved, where)
