"""Wrong uses of everything public, as one table: a right call, and for each of its arguments what must not be taken for it.

`CASES` is what `test_misuse.py` runs: a name, and a call that must be answered with one sentence before anything is computed.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tests import misuse_tables
from torch import nn

import choral
from choral import calibration, callbacks, data, layers, metrics, models, objectives, plan, recipes
from choral.comparison.evaluation import evaluate
from choral.tables.table import learn_table

api: Any = choral
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(24, 3, generator=G), torch.arange(24) % 2
MEMBERS = torch.randn(4, 24, 3, generator=G).softmax(-1)  # probabilities (member, batch, class)
PROBS, LABELS = MEMBERS.mean(0), torch.arange(24) % 3
REALS, SPREADS, TARGETS = (
    torch.randn(4, 24, generator=G),
    torch.rand(4, 24, generator=G) + 0.1,
    torch.randn(24, generator=G),
)
ONE = recipes.single(budget=1)
NAN = float("nan")
COUNT: tuple[Any, ...] = (0, -1, 1.5, "4")  # no number of things
SHARE: tuple[Any, ...] = (-0.1, 1.5, "0.5", NAN)  # no share
WORD: tuple[Any, ...] = ("purple", 3, None)  # none of some words
SWITCH: tuple[Any, ...] = ("yes", 2)
REAL: tuple[Any, ...] = ("0.1", NAN, None)
BAD_PROBS: tuple[Any, ...] = (PROBS * 2, PROBS - 1, PROBS[:3], PROBS * NAN, "0.5", None)
BAD_LABELS: tuple[Any, ...] = (LABELS[:5], LABELS + 9, LABELS - 1, LABELS + 0.5, "cat", None)
BAD_MEMBERS: tuple[Any, ...] = (MEMBERS * 2, MEMBERS[0, 0], MEMBERS * NAN, "0.5", None)
BAD_REALS: tuple[Any, ...] = (TARGETS[:5], TARGETS * NAN, "1.5", None)
NETWORK: tuple[Any, ...] = (None, 3, "net", torch.zeros(3))


def net() -> nn.Module:
    """Return a plain network."""
    return models.mlp(3, 2, hidden=(4,))


def image_net() -> nn.Module:
    """Return a plain network of images."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


Row = tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]


def _metrics() -> Iterator[Row]:
    function: Callable[..., Any]
    for function in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.mce, metrics.adaptive_ece):
        wrong = {"probs": BAD_PROBS, "labels": BAD_LABELS}
        binned = "bins" in inspect.signature(function).parameters
        yield function, {"probs": PROBS, "labels": LABELS}, wrong | ({"bins": COUNT} if binned else {})
    for function in (metrics.mutual_information, metrics.expected_entropy, metrics.variation_ratio):
        yield (
            function,
            {"member_probs": MEMBERS},
            {"member_probs": BAD_MEMBERS, "weights": (torch.ones(3), -torch.ones(4), "a")},
        )
    for function in (metrics.disagreement, metrics.disagreement_matrix):
        yield function, {"member_probs": MEMBERS}, {"member_probs": BAD_MEMBERS}
    for function in (metrics.crps, metrics.mixture_nll, metrics.gaussian_log_scores):
        wrong = {"means": (REALS * NAN, "a"), "variances": (-SPREADS, SPREADS[:2], "a"), "targets": BAD_REALS}
        yield function, {"means": REALS, "variances": SPREADS, "targets": TARGETS}, wrong
    yield metrics.rmse, {"means": REALS, "targets": TARGETS}, {"means": (REALS * NAN, "a", None), "targets": BAD_REALS}
    yield (
        metrics.auroc,
        {"scores_in": TARGETS, "scores_out": TARGETS + 1},
        {"scores_in": (TARGETS[:0], TARGETS * NAN, "a"), "scores_out": (None,)},
    )
    yield metrics.fpr95, {"scores_in": TARGETS, "scores_out": TARGETS + 1}, {"positive": WORD, "recall": SHARE}
    yield metrics.aupr, {"scores_in": TARGETS, "scores_out": TARGETS + 1}, {"positive": WORD}
    yield (
        metrics.evaluate_classification,
        {"member_probs": MEMBERS, "labels": LABELS},
        {"member_probs": BAD_MEMBERS, "labels": BAD_LABELS},
    )
    yield metrics.reliability_table, {"probs": PROBS, "labels": LABELS}, {"bins": COUNT}
    yield metrics.average_draws, {"values": REALS, "learners": (0, 0, 1, 1)}, {"learners": ((0, 1), "ab", None)}
    yield (
        metrics.class_report,
        {"probs": PROBS, "labels": LABELS},
        {"probs": BAD_PROBS, "labels": (LABELS[:4], LABELS + 5)},
    )
    yield (
        metrics.interval_coverage,
        {"lower": TARGETS, "upper": TARGETS + 1, "targets": TARGETS},
        {"lower": (TARGETS[:3], "a"), "targets": (None,)},
    )


def _posthoc() -> Iterator[Row]:
    logs = MEMBERS[:, torch.arange(24), LABELS].log()
    yield (
        calibration.fit_temperature,
        {"member_logits": MEMBERS.log(), "labels": LABELS},
        {"member_logits": (PROBS[0], "a", MEMBERS * NAN), "labels": BAD_LABELS, "per": WORD},
    )
    yield (
        calibration.fit_conformal_sets,
        {"probs": PROBS, "labels": LABELS},
        {
            "probs": BAD_PROBS,
            "labels": BAD_LABELS,
            "level": (0, 1, *SHARE),
            "penalty": (-1, "a"),
            "free_classes": (-1, 1.5),
            "seed": ("one",),
        },
    )
    yield (
        calibration.fit_residual_intervals,
        {"predictions": TARGETS, "targets": TARGETS + 1},
        {"predictions": BAD_REALS, "level": (0, 1, *SHARE), "scales": (-TARGETS.abs(), TARGETS[:3])},
    )
    yield (
        calibration.fit_quantile_intervals,
        {"lower": TARGETS, "upper": TARGETS + 1, "targets": TARGETS},
        {"lower": (TARGETS[:3], "a"), "level": (0, 1)},
    )
    yield (
        calibration.fit_label_sets,
        {"probs": PROBS[:, :2], "labels": (LABELS[:, None] > torch.arange(2)).long()},
        {"probs": (PROBS[:3, :2], PROBS * 3, "a"), "labels": (LABELS, LABELS + 4, None), "level": (0, 2)},
    )
    yield (
        calibration.fit_stacking,
        {"member_log_scores": logs},
        {"member_log_scores": (logs * NAN, logs[0], "a", None)},
    )
    yield (
        calibration.conformal_threshold,
        {"scores": TARGETS, "level": 0.9},
        {"scores": (TARGETS * NAN, "a", TARGETS[:0]), "level": (0, 1, *SHARE)},
    )
    yield calibration.Temperature, {"temperatures": (1.0,)}, {"temperatures": ((0.0,), (-1.0,), (NAN,), "a", (), 1.0)}
    yield calibration.StackingWeights, {"weights": (0.5, 0.5)}, {"weights": ((-1.0, 2.0), (NAN,), (), "a", 1.0)}
    yield (
        calibration.ConformalSets,
        {"threshold": 0.5, "level": 0.9},
        {"level": (0, 1, *SHARE), "threshold": ("a", NAN)},
    )


def _models() -> Iterator[Row]:
    yield (
        models.mlp,
        {"inputs": 3, "outputs": 2},
        {
            "inputs": COUNT,
            "outputs": COUNT,
            "hidden": ((0,), "50", (1.5,), 50),
            "activation": WORD[:2],
            "norm": WORD[:2],
            "dropout": SHARE,
        },
    )
    yield models.lenet, {}, {"size": WORD, "classes": COUNT, "channels": COUNT, "side": ("32",)}
    yield models.resnet_cifar, {}, {"depth": (21, "20", 0), "classes": COUNT, "width": COUNT}
    yield models.vit, {}, {"side": (0, "32"), "patch": (5, 0), "width": (30, 0), "heads": COUNT, "dropout": SHARE}
    yield models.wide_resnet, {}, {"depth": (29, 0), "width": COUNT}
    yield (
        models.tabular,
        {"inputs": 3, "outputs": 1, "embedding": "none"},
        {"inputs": COUNT, "outputs": COUNT, "embedding": WORD, "dropout": SHARE},
    )
    yield models.transformer, {}, {"vocabulary": COUNT, "classes": COUNT, "heads": (3, 0), "depth": COUNT}
    yield (
        models.rebuild,
        {"spec": {"name": "mlp", "arguments": {"inputs": 3, "outputs": 2}}},
        {"spec": (None, {}, {"name": "mlpp", "arguments": {}}, {"name": "mlp", "arguments": {"width": 3}}, "mlp")},
    )


def _recipes() -> Iterator[Row]:
    for name, method in recipes.METHODS.items():
        function = method.build
        known = method.options
        wrong = {
            "epochs": ("ten", 2.5, -1),
            "training": (3, "adam"),
            "members": (0, "4", 1.5),
            "draws": (0, "4"),
            "nonsense": (1,),
        }
        yield partial(recipes.make, name), {}, {n: v for n, v in wrong.items() if n in known or n == "nonsense"}
        assert function is not None
    yield recipes.make, {"name": "snapshot"}, {"name": ("snapshott", 3, None)}
    yield recipes.recipe_of, {"given": "single"}, {"given": (3, None, "singel", recipes.single)}
    yield (
        api.Training,
        {},
        {"lr": ("a", -1, NAN), "batch_size": COUNT, "optimizer": WORD, "schedule": WORD, "nonsense": (1,)},
    )


def _planned(kind: Callable[..., Any], **given: Any) -> Any:
    """Make a part of a plan and fit it: a plan is checked whole, before anything is trained."""
    made, train = kind(**given), plan.Train(epochs=1)
    if isinstance(made, plan.Every):
        body: tuple[Any, ...] = (plan.Train(epochs=1, every=(made,)),)
    elif isinstance(made, plan.Train):
        body = (made,)
    else:
        body = (kind(*given.values(), train),)
    return choral.fit(net, (X, Y), api.Recipe(name="planned", plan=plan.seq(plan.Reset(), *body, plan.Collect())))


def _plan() -> Iterator[Row]:
    train = plan.Train(epochs=1)
    yield (
        partial(_planned, plan.Train),
        {"epochs": 2},
        {
            "epochs": (-1, 1.5, "2", None),
            "batch_size": tuple(n for n in COUNT if n != 0),
            "schedule": (0.1, "cosine"),
            "optimizer": ("adam", None),
            "memory": WORD,
            "every": (3,),
            "nonsense": (1,),
        },
    )
    yield (
        plan.SGD,
        {},
        {"momentum": (-1, "a", NAN), "weight_decay": (-1, "a", NAN), "clip": (-1, "a"), "nesterov": SWITCH},
    )
    yield plan.Adam, {}, {"betas": ((0.9,), (2.0, 0.9), "a"), "eps": (-1, "a"), "rates": ("a",)}
    yield (
        plan.EarlyStopping,
        {},
        {"patience": COUNT, "by": WORD, "least": (-1, "a", NAN), "measure": (3,), "nonsense": (1,)},
    )
    yield partial(_planned, plan.fork), {"branches": 2}, {"branches": COUNT}
    yield partial(_planned, plan.repeat), {"times": 2}, {"times": COUNT[1:]}
    yield (
        partial(_planned, plan.every),
        {"count": 3, "phase": plan.Recalibrate()},
        {"count": COUNT, "phase": (train, 3, None), "unit": WORD, "start": SHARE},
    )
    yield plan.Constant, {"value": 0.1}, {"value": ("a", -1, NAN)}
    yield plan.Cosine, {"start": 0.1}, {"start": ("a", -1, NAN), "end": ("a", -1)}
    yield plan.OneCycle, {"peak": 0.1}, {"peak": ("a", -1), "warm": SHARE}
    yield plan.Steps, {"value": 0.1}, {"value": ("a", -1), "milestones": ((2.0,), "a"), "factor": ("a", -1)}
    yield plan.Prune, {}, {"masks": (0.5, "random"), "unit": WORD, "scope": WORD, "include": (3,)}
    yield plan.RandomMasks, {}, {"sparsity": (1.0, *SHARE)}
    yield plan.Bag, {}, {"fraction": (0, *SHARE), "replace": SWITCH}
    yield plan.Perturb, {}, {"factor": ("a", NAN)}
    yield api.Measure, {"name": "nll"}, {"name": (3, None), "larger_is_better": SWITCH}
    yield (
        api.Recipe,
        {"name": "r", "plan": plan.seq(plan.Reset(), train, plan.Collect())},
        {"name": (3, None), "plan": (None, "train", 3), "combine": WORD, "structure": (3,), "objective": (3,)},
    )


def _objectives() -> Iterator[Row]:
    yield (
        objectives.Categorical,
        {},
        {"smoothing": (1.0, *SHARE), "class_weights": ((-1.0,), "a", 1.0), "axis": (0, "a"), "ignore": ("a",)},
    )
    yield objectives.FixedGaussian, {}, {"precision": (0, -1, "a", NAN)}
    yield objectives.LearnedGaussian, {}, {"floor": (-1, "a", NAN)}
    yield objectives.StudentT, {}, {"df": (2, "a", NAN), "floor": (-1,)}
    yield objectives.Quantiles, {}, {"levels": ((), (0.9, 0.1), (0.0, 0.5), "a", 0.5)}
    yield objectives.Poisson, {}, {"base": (0, -1, "a")}
    yield objectives.L2, {}, {"precision": (-1, "a", NAN)}
    yield objectives.GaussianKL, {}, {"prior_std": (0, -1, "a"), "weight": (-1, "a")}
    yield objectives.Loss, {"function": nn.functional.mse_loss}, {"function": (3, None, "mse")}


def _layers() -> Iterator[Row]:
    linear = nn.Linear(4, 4)
    yield (
        layers.pack,
        {"network": image_net(), "members": 2, "minimum_channels": 1},
        {"network": NETWORK, "members": COUNT, "width": (0, -1, "a", NAN), "subgroups": COUNT, "kernel": WORD},
    )
    yield (
        layers.RankOneLayer,
        {"layer": linear, "members": 2},
        {"layer": NETWORK, "members": COUNT, "start": WORD, "spread": ("a",)},
    )
    yield (
        layers.MaskedLayer,
        {"layer": linear, "members": 2},
        {"layer": NETWORK, "members": COUNT, "scale": (0, "a", NAN)},
    )
    yield layers.PackedLayer, {"layer": linear, "members": 2}, {"layer": NETWORK, "members": COUNT}
    yield layers.FilterResponseNorm, {"channels": 4}, {"channels": ("a",), "eps": ("a",)}
    yield (
        layers.GroupedLinear,
        {"in_features": 4, "out_features": 4, "groups": 2},
        {"groups": COUNT[2:], "in_features": COUNT[2:]},
    )
    yield (
        layers.overlapping_masks,
        {"channels": 8, "members": 2},
        {"channels": COUNT, "members": COUNT, "scale": (0, "a", NAN)},
    )
    yield layers.DropConnect, {"layer": linear, "rate": 0.5}, {"layer": NETWORK, "rate": (1.0, *SHARE)}
    yield layers.DroppedOutput, {"layer": linear, "rate": 0.5}, {"layer": NETWORK, "rate": (1.0, *SHARE)}
    yield layers.family, {}, {"components": COUNT, "rate": SHARE}
    yield (
        layers.swap,
        {"network": net(), "replace": lambda name, layer: None},
        {"network": NETWORK, "replace": (3, None), "include": (3,)},
    )
    yield layers.quantile_edges, {"x": X}, {"x": (X * NAN, "a", X[0]), "bins": COUNT}
    yield layers.open_attention, {"network": net()}, {"network": NETWORK}
    yield layers.packed, {"layers": [linear, nn.Linear(4, 4)]}, {"layers": ([], [linear, nn.Linear(3, 4)], 3, [3])}


def _data() -> Iterator[Row]:
    yield (
        data.Normalize,
        {"mean": (0.5,), "std": (0.2,)},
        {"mean": ("a", (), 0.5), "std": ((0.0,), (-1.0,), (NAN,), "a")},
    )
    yield data.PadCrop, {}, {"pixels": (1.5, "4")}
    yield data.TensorSource, {"x": X, "y": Y}, {"x": (None, "a", X[:3], X * NAN), "y": (None, "a", Y[:3])}
    yield data.source_of, {"data": (X, Y)}, {"data": (None, 3, "a", (X,), X), "target": ("y",)}


def _calls() -> Iterator[Row]:
    fit = {"build": net, "data": (X, Y), "recipe": ONE}
    options: dict[str, tuple[Any, ...]] = {
        "build": (None, 3, "net"), "data": (None, X, (X,), (X, Y[:3]), (X * NAN, Y), "file.csv"), "recipe": (None, 3, "singel"),
        "run_dir": (3, ""), "seed": ("a", 1.5, None), "transforms": (3, (3,)), "target": ("label",), "output": ("logits", 1.5), "sample_weight": (Y[:3], -Y - 1.0, "w", 5),
        "likelihood": (3, "gausian", nn.MSELoss()), "validation": (2.0, -0.1, "a", (X[:, :2], Y)), "cv": (1, "a", (3,)),
        "early_stopping": (3, "soon"), "device": ("warp", 3), "compute": (3, "cpu"), "callbacks": (3,), "progress": ("yes",), "on_existing": WORD, "sead": (1,),
        "verbose": (1,), "lr": (0.1,), "batch_size": (8,), "n_estimators": (3,),
    }  # fmt: skip
    yield api.fit, fit, options
    machine: dict[str, tuple[Any, ...]] = {
        "time_limit": (0, -1, "a"), "executor": WORD, "precision": WORD, "checkpoint_seconds": (-1, "a"), "threads": COUNT,
        "accumulate": COUNT, "data_parallel": SWITCH,
    }  # fmt: skip
    yield api.Compute, {}, machine
    yield api.EarlyStopping, {}, {"patience": COUNT, "restore_best": SWITCH, "by": WORD, "least": (-1, "a")}
    yield api.show, {"recipe": ONE}, {"recipe": (None, 3, "singel")}
    yield (
        api.load,
        {"path": "x.choral"},
        {"path": (None, 3, "", "nowhere.choral"), "build": (3,), "partial": SWITCH, "check_build": SWITCH},
    )
    compare = {"build": net, "data": (X, Y, X, Y), "methods": ["single"], "budget": 1}
    yield (
        api.compare,
        compare,
        {
            "build": (None, 3),
            "data": ((X, Y), None, (X, Y, X, Y[:3])),
            "methods": ([], [3], None, "al", ["singel"]),
            "budget": ("a", -1),
            "members": COUNT,
            "training": (3, "adam"),
            "seed": ((1,), "ab", (1, 1)),
            "corruptions": (["fogg"], 3),
            "sample_weight": (Y[:3], "w"),
            "run_dir": (3,),
            "sead": (1,),
        },
    )
    yield (
        api.ensemble_of,
        {"networks": [net()], "data": (X, Y)},
        {
            "networks": ([], None, net(), [3], ["a.pt"], ["a.safetensors"]),
            "data": (None, (X[:, :2], Y), 3),
            "likelihood": (3, "gausian"),
            "combine": WORD,
            "output": ("logits",),
        },
    )
    yield (
        api.converted,
        {"network": net(), "recipe": recipes.batch_ensemble(members=2, budget=1), "data": (X, Y)},
        {"network": (None, 3), "recipe": (None, "packedd", 3), "data": (None, 3)},
    )
    frame = misuse_tables.FRAME
    yield learn_table, {"frame": frame, "target": "t"}, {"target": ("u",), "drop": (("zz",),), "ids": (("zz",),)}
    yield api.prepare, fit | {"run_dir": "r"}, {"recipe": (None, 3), "data": (None,), "sead": (1,)}
    yield api.leaves, {"run_dir": "r"}, {"run_dir": (3, "nowhere")}
    yield callbacks.writer, {}, {}


def _ensemble() -> Iterator[Row]:
    """Methods are looked up when a case is run: members are trained once, then."""
    methods: list[tuple[str, dict[str, Any], dict[str, tuple[Any, ...]]]] = [
        ("predict", {"x": X}, {"x": (None, "a", X[:, :2], X[0], X * NAN, 3), "batch_size": COUNT, "device": ("warp", 3), "precision": WORD, "threads": COUNT, "sise": (1,)}),
        ("outputs", {"x": X}, {"x": (None, X[:, :2]), "batch_size": COUNT}),
        ("evaluate", {"x": X, "y": Y}, {"x": (None, X[:3]), "y": (None, Y[:3], Y + 9, "a", Y + 0.5), "sample_weight": (Y[:3], "w", -Y - 1.0)}),
        ("calibrated", {"x": X, "y": Y}, {"y": (Y[:3], Y + 9, None), "level": (0, 1, *SHARE), "temperature": WORD[:2], "stacking": SWITCH, "sead": (1,)}),
        ("member", {"index": 0}, {"index": (9, -1, "a", 1.5, None)}),
        ("save", {"path": "e.choral"}, {"path": (None, 3, "", ".")}),
        ("with_posthoc", {}, {"values": ()}),
    ]  # fmt: skip
    for name, given, wrong in methods:
        yield partial(_method, name), given, wrong
    yield (
        partial(_function, evaluate),
        {"x": X, "y": Y},
        {
            "x": (None, X[:, :2]),
            "y": (Y[:3], None),
            "corruptions": (["fogg"],),
            "batch_size": COUNT,
        },
    )


_FITTED: list[Any] = []


def _fitted() -> Any:
    if not _FITTED:
        _FITTED.append(choral.fit(net, (X, Y), recipes.deep_ensemble(members=2, budget=2)))
    return _FITTED[0]


def _method(name: str, **given: Any) -> Any:
    return getattr(_fitted(), name)(**given)


def _function(function: Callable[..., Any], **given: Any) -> Any:
    return function(_fitted(), **given)


def _name_of(function: Any) -> str:
    if isinstance(function, partial):
        return f"{_name_of(function.func).lstrip('_')} {_name_of(function.args[0]) if callable(function.args[0]) else function.args[0]}"
    return str(getattr(function, "__name__", function))


def rows() -> Iterator[Row]:
    """Yield every right call with what is wrong for its arguments."""
    for part in (_calls, _ensemble, _recipes, _plan, _objectives, _layers, _models, _data, _posthoc, _metrics):
        yield from part()
    yield from misuse_tables.rows()


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {float(value.double().sum()):.3g}"
    text = " ".join(repr(value).split())
    return text.partition(" at 0x")[0][:40]


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    f"{_name_of(function)}({argument}={_shown(value)})": (function, right | {argument: value})
    for function, right, wrong in rows()
    for argument, values in wrong.items()
    for value in values
}
RIGHT: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    f"{number} {_name_of(function)}": (function, right) for number, (function, right, _) in enumerate(rows())
}
