"""Wrong uses of tables, estimators, varied forks, leaves and clusters: rows of the table in `misuse.py`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import choral
from choral import models, plan, recipes

api: Any = choral
G = torch.Generator().manual_seed(1)
X, Y = torch.randn(24, 3, generator=G), torch.arange(24) % 2
FRAME = pd.DataFrame({"a": X[:, 0].numpy(), "b": ["u", "v"] * 12, "t": Y.numpy(), "g": np.arange(24) // 4})
NAN = float("nan")
COUNT: tuple[Any, ...] = (0, -1, 1.5, "4", True)
Row = tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]


def _net() -> nn.Module:
    return models.mlp(3, 2, hidden=(4,))


def _tables() -> Iterator[Row]:
    wrong: dict[str, tuple[Any, ...]] = {
        "data": (None, 3, "nowhere.csv", FRAME[:0], FRAME[:1], {}, []), "target": ("u", None, 3, ["t"]), "method": ("singel", 3, recipes.single),
        "members": COUNT, "epochs": (0, "a", -1, 1.5), "validation": (2.0, -0.1, NAN, "nowhere.csv", "a", FRAME[["a"]]), "early_stopping": (3, "soon"),
        "cv": (1, 99, "a", 2.5, -1), "sample_weight": ("zz", [1.0], -FRAME.a.abs() - 1, "b"), "class_weight": ("equal", {"z": 2.0}, {"0": -1.0}, 3),
        "task": ("purple", 3), "likelihood": ("gausian", 3), "columns": (3, choral.Columns(drop=("zz",)), choral.Columns(drop=("t",)), choral.Columns(ids=("zz",)), choral.Columns(group="zz"), choral.Columns(group="t"),
            choral.Columns(orders={"zz": ("u", "v")}), choral.Columns(orders={"b": ("u",)}), choral.Columns(time="zz")),
        "model": ("mpl", 3), "training": (3, "adam"), "lr": (0.1,), "seed": ("a", 1.5, None), "run_dir": (3, ""), "sead": (1,), "compute": (3, "cpu", choral.Compute(cluster=choral.Ray())), "device": ("warp", 3),
    }  # fmt: skip
    yield api.fit_table, {"data": FRAME, "target": "t", "members": 1, "epochs": 1}, wrong
    together: dict[str, tuple[Any, ...]] = {"validation": (0.2,), "cv": (99,)}
    yield api.fit_table, {"data": FRAME, "target": "t", "cv": 2, "members": 2, "epochs": 2}, together
    auto: dict[str, tuple[Any, ...]] = {
        "members": (3,),
        "cv": (2,),
        "validation": (0,),
        "compute": (choral.Compute(cluster=choral.Ray()),),
    }
    yield api.fit_table, {"data": FRAME, "target": "t", "method": "auto"}, auto | {"epochs": (2,)}


def _estimated(kind: str, fitting: dict[str, Any] | None = None, **given: Any) -> Any:
    """Make an estimator and fit it: scikit-learn's estimators are checked there."""
    from choral import sklearn

    return getattr(sklearn, kind)(**given).fit(**{"X": X.numpy(), "y": Y.numpy()} | (fitting or {}))


def _fitted_with(kind: str, **given: Any) -> Any:
    return _estimated(kind, given, method="single", epochs=1)


def _asked(kind: str, method: str, **given: Any) -> Any:
    return getattr(_estimated(kind, method="single", epochs=1), method)(**given)


def _estimators() -> Iterator[Row]:
    options: dict[str, tuple[Any, ...]] = {
        "method": ("singel", 3, None, nn.Linear), "n_estimators": COUNT, "epochs": (0, -1, "a", 1.5), "time_limit": (0, -1, "a"), "validation_fraction": (1.0, -0.1, "a", NAN),
        "device": ("warp", 3), "sead": (1,),
    }  # fmt: skip
    rows, names = X.numpy(), Y.numpy()
    data: dict[str, tuple[Any, ...]] = {
        "X": (None, rows[:3], "a", rows[:0]), "y": (None, names[:3], "a", names * NAN), "sample_weight": (names[:3], -names - 1.0, "a", np.zeros(24)),
        "X_val": (rows[:4],), "y_val": (names[:4],), "groups": (names[:3], rows), "nonsense": (1,),
    }  # fmt: skip
    for kind in ("EnsembleClassifier", "EnsembleRegressor"):
        yield partial(_estimated, kind), {"method": "single", "epochs": 1}, options
        yield partial(_fitted_with, kind), {}, data
        yield partial(_asked, kind, "predict"), {"X": rows}, {"X": (None, rows[:, :2], "a", rows[0], rows[:0])}
        yield partial(_asked, kind, "score"), {"X": rows, "y": names}, {"y": (names[:3], None)}


def _varied(**given: Any) -> Any:
    """Fit a fork of varied branches: a plan is checked whole, before anything is trained."""
    sample, branches = given.pop("sample", None), given.pop("branches", 2)
    body = plan.seq(
        plan.Reset(), plan.Train(epochs=1, **{n: given.pop(n) for n in ("select",) if n in given}), plan.Collect()
    )
    made = api.Recipe(name="varied", plan=plan.fork(branches, body, sample=sample, **given))
    return choral.fit(_net, (X, Y), made)


def _variants() -> Iterator[Row]:
    yield (
        _varied,
        {},
        {
            "branches": COUNT,
            "variants": (3, [{"rate": 0.5}], [{"raet": 1.0}, {"raet": 2.0}], [{"rate": "a"}, {"rate": 1.0}], [{"rate": NAN}] * 2, [{"rate": -1.0}] * 2,
                         [{"dropout": 1.0}] * 2, [{"rate": 1.0}, {"dropout": 0.1}], [{3: 1.0}] * 2),
            "sample": (3, "auto", {"rate": plan.Uniform(0.1, 1.0)}, plan.Space(raet=plan.Uniform(0.1, 1.0)), plan.Space(rate=plan.Uniform(-2.0, -1.0))),
            "select": (3, "best", {"picks": 3}),
        },
    )  # fmt: skip
    yield (
        plan.Space,
        {},
        {"spans": ("a", (("rate", 1.0),), ((3, plan.Uniform(0.0, 1.0)),)), "rate": (1.0, "a", None, (0.1, 1.0))},
    )
    yield plan.Uniform, {"low": 0.1, "high": 1.0}, {"low": ("a", NAN, None), "high": (float("inf"), "a")}
    yield plan.LogUniform, {"low": 0.1, "high": 1.0}, {"low": (0, -1.0, "a", NAN), "high": (float("inf"), "a")}
    yield plan.OneOf, {"options": (1.0, 2.0)}, {"options": ((), 3, "ab", ("a",), (NAN,), (None,))}
    yield plan.Select, {}, {"picks": COUNT, "patience": COUNT, "nonsense": (1,)}
    yield (
        plan.Variant,
        {"settings": (("rate", 1.0),)},
        {"settings": (3, "a", (("rate", "a"),), (("rate", NAN),), (("dropout", 2.0),))},
    )
    yield (
        plan.Muon,
        {},
        {"momentum": (-1, 1.0, "a", NAN), "weight_decay": (-1, "a"), "matrix_rate": (-1, "a", NAN), "nonsense": (1,)},
    )
    space = {
        "space": (3, "auto", {"rate": 1.0}),
        "picks": COUNT,
        "patience": COUNT,
        "members": COUNT,
        "epochs": ("a", -1, 1.5),
        "combine": ("median", 3),
    }
    for name in ("tabpack", "hyper_ensemble"):
        yield partial(recipes.make, name), {}, space
    shared = {
        "start": ("sines", 3),
        "own_batches": ("yes", 2),
        "kernel": ("fast", 3),
        "combine": ("median", 3),
        "members": COUNT,
        "epochs": ("a", -1, 1.5),
    }
    yield recipes.tabm, {}, shared
    yield recipes.tabm_mini, {}, {n: v for n, v in shared.items() if n != "own_batches"}


def _fits() -> Iterator[Row]:
    one = recipes.deep_ensemble(members=2, budget=2)
    yield (
        api.fit,
        {"build": _net, "data": (X, Y), "recipe": one},
        {
            "folds": (1, 99, "a", 2.5, -1, True),
            "groups": (Y, [1, 2, 3], "a"),
            "data_parallel": ("yes", 2, None, True),
            "accumulate": COUNT,
            "batch_norm": ("half", 3, None),
            "cluster": (3, "ray", choral.Ray()),
        },
    )  # fmt: skip
    yield (
        api.fit,
        {"build": _net, "data": (X, Y), "recipe": one, "folds": 2},
        {"validation": (0.2,), "groups": (Y[:3], torch.zeros(24), 3, "a"), "extend": ("yes",)},
    )
    yield (
        api.Ray,
        {},
        {
            "address": (3,),
            "cpus": (0, -1, "a", NAN),
            "gpus": (-1, "a", NAN),
            "retries": (-1, 1.5, "a"),
            "options": (3, "a"),
            "nonsense": (1,),
        },
    )
    yield (
        api.Store,
        {"url": "memory://r"},
        {"url": (3, None, "r", ""), "timeout_seconds": (0, -1, "a", NAN), "tries": COUNT, "options": (3, "a")},
    )
    run: dict[str, Any] = {"build": _net, "data": (X, Y), "recipe": one, "run_dir": "r"}
    yield (
        api.prepare,
        run,
        {
            "stack": COUNT,
            "overwrite": ("yes", 2),
            "run_dir": (None, 3, ""),
            "cluster": (choral.Ray(),),
            "time_limit": (3.0,),
            "folds": (1, 99),
            "accumulate": COUNT,
            "build": (None, 3),
        },
    )
    yield api.run_leaf, run | {"path": "f0"}, {"path": (3, None, "zz"), "run_dir": (3, None, "nowhere"), "sead": (1,)}


def rows() -> Iterator[Row]:
    """Yield right calls with what is wrong for their arguments."""
    for part in (_tables, _estimators, _variants, _fits):
        yield from part()
