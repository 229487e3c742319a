"""The short list that `method="auto"` tries for a table, and the search itself.

The list was made on parts of the training rows of UCI sets, never on test rows.
"""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from choral import models
from choral.automatic.jury import ByFolds, ByValidation, Judge
from choral.automatic.search import Candidate, search
from choral.base import rng
from choral.base.errors import InputError
from choral.callbacks import Bars, bars, one_of, somebody_watches, write_line
from choral.cluster.calls import check_cluster
from choral.cluster.objects import is_far
from choral.data.problems import Problem
from choral.data.sources import Source, source_of
from choral.engine.compute import Compute, Executor, OnExisting
from choral.engine.validation import set_apart
from choral.ensemble.ensemble import Ensemble
from choral.fit import train
from choral.plan import EarlyStopping
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

AUTO = "auto"
_STACKED = (
    200_000  # parameters below which eight networks train faster as a stack: calls, not arithmetic, take their time
)
_QUICK = 10.0
_LINES: dict[str, Any] = {"embedding": "none", "edges": (), "hidden": ()}
_WAVES: dict[str, Any] = {"embedding": "periodic", "edges": (), "embedding_width": 16}


@dataclass(frozen=True)
class Entry:
    """A candidate and the network it trains."""

    candidate: Candidate
    build: Callable[[], nn.Module]


def short_list(
    build: Callable[[], nn.Module], training: Training, epochs: int, members: int, *, small: bool
) -> list[Entry]:
    """Return what is tried: the default first.

    Args:
        build: the default network, a `choral.models.tabular` on bins.
        training: settings of all.
        epochs: the most that one network may have.
        members: of each candidate.
        small: whether the table is; residual blocks then gain nothing.
    """
    with rng.seeded(0, "look"):
        spec = models.spec_of(build())
    assert spec is not None
    arguments = spec["arguments"]
    quick = replace(training, lr=_QUICK * training.peak)  # few weights, which start far from where they end

    def entry(name: str, why: str, settings: Training = training, *, light: bool = False, **changes: Any) -> Entry:
        changed = {"name": spec["name"], "arguments": arguments | changes}

        def recipe(each: int, members: int) -> Recipe:
            return make("deep_ensemble", budget=each * members, members=members, training=settings)

        return Entry(Candidate(name, recipe, epochs, members, why, light), lambda: models.rebuild(changed))

    block: dict[str, Any] = {"residual": True, "hidden": (max(arguments["hidden"]),)}
    return [
        entry("deep_ensemble", "networks of their own on bins of each column"),
        *([] if small else [entry("residual", "a residual block, for steps and interactions", **block)]),
        entry("periodic", "waves of each column, for smooth curves", **_WAVES),
        entry("linear", "a straight line in each column, for few rows and many columns", quick, light=True, **_LINES),
    ]


def check_one_process(several: bool) -> None:
    """Raise InputError where a search would be shared by several processes."""
    if several:
        raise InputError(
            "method auto chooses within one process, in a folder of this machine; name a method, such as deep_ensemble, for several processes, "
            "leaves or a URL."
        )


def choose(
    problem: Problem,
    entries: Sequence[Entry],
    validation: Any,
    early_stopping: EarlyStopping | None,
    *,
    folds: int | None = None,
    run_dir: Any = None,
    on_existing: OnExisting = "resume",
    seed: int = 0,
    hearing: Bars | None = None,
    progress: bool | None = None,
    callbacks: Any = None,
    compute: Compute | None = None,
    **options: Any,
) -> Ensemble:
    """Return the best ensemble that the candidates give for a table.

    Args:
        problem: the data.
        entries: the candidates with their networks.
        validation: part of the training rows, or rows of its own, as `fit` takes them.
        early_stopping: when a member stops by itself.
        folds: parts of cross-validation instead, of which each member holds out one.
        run_dir, on_existing: of the whole search.
        seed: root of every draw.
        hearing: draws the progress; made here if None.
        progress, callbacks: as in `choral.fit`.
        compute: of each candidate; its time limit is of the whole search, and its cluster is connected once.
        options: further ones of `choral.fit`.
    """
    compute = compute or Compute()
    cluster, time_limit, overwrite = compute.cluster, compute.time_limit, on_existing == "overwrite"
    check_one_process(compute.data_parallel or is_far(run_dir))
    if on_existing == "extend":
        raise InputError("on_existing is 'extend', which adds members of one method; name one, such as deep_ensemble.")
    if cluster is not None:
        check_cluster(cluster, run_dir, time_limit=time_limit)
    builds = {entry.candidate.name: entry.build for entry in entries}
    source, judge, watching = _watched(problem, validation, folds, seed)

    def trained(candidate: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        build, limit = builds[candidate.name], limits.pop("time_limit")
        heard = [line.of(candidate.name, candidate.members, recipe.epochs), one_of(callbacks)]
        return train(
            build,
            source,
            recipe,
            early_stopping=early_stopping,
            seed=seed,
            likelihood=problem.likelihood,
            table=problem.table,
            compute=replace(compute, executor=_executor(build, compute.executor), time_limit=limit),
            **watching,
            **limits,
            **options,
            callbacks=[one for one in heard if one is not None],
            progress=False,
        )

    candidates = [entry.candidate for entry in entries]
    drawn = somebody_watches() if progress is None else progress
    shown = bars(drawn=drawn, say=write_line) if hearing is None else contextlib.nullcontext(hearing)
    with contextlib.nullcontext() if cluster is None else cluster.connected(), shown as bar, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*budget is below what the method needs"
        )  # members stop by themselves
        line = bar.search(len(candidates), time_limit)
        return search(
            candidates,
            trained,
            judge,
            run_dir=run_dir,
            time_limit=time_limit,
            seed=seed,
            overwrite=overwrite,
            tell=line.tell,
        )


def _executor(build: Callable[[], nn.Module], asked: Executor) -> Executor:
    """Return an executor decided by the network's size, not by a clock: the same command is to give the same members."""
    if asked != "auto":
        return asked
    numbers = sum(p.numel() for p in build().parameters())
    return "vectorized" if numbers < _STACKED else "sequential"


def _watched(problem: Problem, validation: Any, folds: int | None, seed: int) -> tuple[Source, Judge, dict[str, Any]]:
    """Return the rows to train on, what candidates are judged by, and what `fit` is told about rows held out."""
    if folds is not None:
        source = source_of(problem.points)
        return source, ByFolds(source), {"cv": problem.folds(folds)}
    trained, held = problem, validation
    if isinstance(validation, int | float):
        trained, held = problem.validating(validation)
    source, watching = set_apart(source_of(trained.points), held, seed)
    assert watching is not None
    return source, ByValidation(watching), {"validation": watching}
