"""The short list that `method="auto"` tries for a table, and the search itself.

The list was made on parts of the training rows of UCI sets, never on test rows.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from choral import models
from choral.automatic.jury import ByFolds, ByValidation, Judge
from choral.automatic.search import Candidate, search
from choral.base import rng
from choral.base.errors import InputError
from choral.data.problems import Problem
from choral.data.sources import Source, source_of
from choral.engine.compute import Compute, Executor, OnExisting
from choral.engine.validation import set_apart
from choral.ensemble.ensemble import Ensemble
from choral.fit import train
from choral.judging.defaults import MEMBERS
from choral.plan import EarlyStopping
from choral.plan.cost import begun
from choral.recipes import METHODS, make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.scale.apart import check_cluster
from choral.scale.remote import is_far

AUTO = "auto"
_FEW = 2  # members of a first look
_STACKED = (
    20_000  # parameters below which eight networks train faster as a stack: calls, not arithmetic, take their time
)
_LINEAR, _QUICK = "linear", 10.0
_LINES: dict[str, Any] = {"embedding": "none", "edges": (), "hidden": ()}
_WAVES: dict[str, Any] = {"embedding": "periodic", "edges": (), "embedding_width": 16}


@dataclass(frozen=True)
class Entry:
    """A candidate and the network it trains."""

    candidate: Candidate
    build: Callable[[], nn.Module]


def several(method: str) -> bool:
    """Return whether a method's members are networks of their own, each with its epochs."""
    return begun(make(method).plan) > 1


def short_list(
    build: Callable[[], nn.Module], training: Training, epochs: int, folds: int | None = None
) -> list[Entry]:
    """Return what is tried: the default first.

    Args:
        build: the default network, a `choral.models.tabular` on bins.
        training: settings of all.
        epochs: the most that one network may have.
        folds: parts of cross-validation, of which each member holds out one; None where rows are held out of all.
    """
    with rng.seeded(0, "look"):
        spec = models.spec_of(build())
    assert spec is not None
    arguments = spec["arguments"]

    def network(**changes: Any) -> Callable[[], nn.Module]:
        changed = {"name": spec["name"], "arguments": arguments | changes}
        return lambda: models.rebuild(changed)

    def of(method: str, settings: Training) -> Callable[[int, int], Recipe]:
        own = several(method)

        def recipe(each: int, members: int) -> Recipe:
            total = each * members if own else each
            whole = {"width": float(members)} if "width" in METHODS[method].options else {}  # members as wide as alone
            return make(method, budget=total, members=members, training=settings, **whole)

        return recipe

    wide = max(arguments["hidden"])
    if folds is None:
        listed = [
            ("deep_ensemble", "deep_ensemble", build, "networks of their own on bins of each column"),
            ("residual", "deep_ensemble", network(residual=True), "residual blocks, for steps and interactions"),
            ("packed", "packed", build, "members side by side in one network, which stops by their joint score"),
            ("tabm", "tabm", build, "members that share most weights, for noisy tables"),
        ]
    else:
        block, waves = network(residual=True, hidden=(wide,)), network(**_WAVES)
        listed = [
            ("deep_ensemble", "deep_ensemble", build, "networks of their own on bins of each column"),
            ("residual", "deep_ensemble", block, "a residual block, for steps and interactions"),
            ("periodic", "deep_ensemble", waves, "waves of each column, for smooth curves"),
            (
                _LINEAR,
                "deep_ensemble",
                network(**_LINES),
                "a straight line in each column, for few rows and many columns",
            ),
        ]
    members = folds or MEMBERS
    few = _FEW if folds is None else members  # every part must be held out of somebody
    quick = replace(training, lr=_QUICK * training.peak)  # few weights, which start far from where they end

    def candidate(name: str, method: str, why: str) -> Candidate:
        light = name == _LINEAR
        recipe = of(method, quick if light else training)
        return Candidate(name, recipe, epochs, members, few if several(method) else members, why, light)

    return [Entry(candidate(name, method, why), net) for name, method, net, why in listed]


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
    hearing: Callable[[str, int], Any] | None = None,
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
        hearing: gives a listener for the name and the epochs of each run.
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
        heard = {} if hearing is None else {"callbacks": hearing(candidate.name, recipe.epochs)}
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
            **options | heard,
        )

    candidates = [entry.candidate for entry in entries]
    with contextlib.nullcontext() if cluster is None else cluster.connected():
        return search(
            candidates, trained, judge, run_dir=run_dir, time_limit=time_limit, seed=seed, overwrite=overwrite
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
