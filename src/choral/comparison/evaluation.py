"""Evaluation of one ensemble: all measurements as plain numbers.

A `Trial` is a set of rows to score ensembles on: clean, out-of-distribution and corrupted ones, made once for all methods. `judge`
scores an ensemble on a trial; `evaluate` makes the trial first.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from choral import __version__, metrics
from choral.base import batches
from choral.base.errors import InputError, RunError
from choral.data.images import from_images, to_images
from choral.data.sources import as_inputs
from choral.engine.files import read_json, write_json
from choral.ensemble.ensemble import Ensemble
from choral.predictions import Predictive

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Trial:
    """Rows that ensembles are judged by.

    Attributes:
        x, y: clean test data.
        ood, ood_name: inputs from elsewhere, or None, and what they are.
        corrupted: corruption -> inputs at each of the severities, of the rows with the numbers `corrupted_rows`.
        labels: what the rows are called in reports; their numbers if None.
    """

    x: Any
    y: np.ndarray
    ood: Any = None
    ood_name: str = ""
    corrupted: dict[str, list[np.ndarray]] = field(default_factory=dict)
    corrupted_rows: Any = ()
    severities: tuple[int, ...] = SEVERITIES
    labels: Sequence[str] | None = None

    @cached_property
    def digest(self) -> str:
        """A digest of the rows and of the version of choral."""
        state = hashlib.blake2b(repr((__version__, self.ood_name, self.severities, list(self.corrupted))).encode())
        inputs = [pair for x in (self.x, self.ood) if x is not None for pair in batches.named_leaves(x)]
        held = [self.y, np.asarray(self.corrupted_rows, np.int64)]
        others: list[tuple[str, Any]] = [
            ("", x) for x in (*held, *(x for each in self.corrupted.values() for x in each))
        ]
        for name, rows in (*inputs, *others):
            state.update(f"{name}{rows.shape}{rows.dtype}".encode() + np.ascontiguousarray(rows).tobytes())
        return state.hexdigest()[:24]


def make_trial(
    x: Any,
    y: Any,
    *,
    ood: Any = None,
    ood_name: str = "a second data set",
    corruptions: Sequence[str] | str = (),
    severities: Sequence[int] = SEVERITIES,
    image_shape: tuple[int, int] | None = None,
    corrupted_rows: int = 500,
    labels: Sequence[str] | None = None,
    seed: int = 0,
) -> Trial:
    """Return the rows to judge by.

    Args:
        x: test inputs as given to predict.
        y: their labels or targets.
        ood: inputs of another data set.
        ood_name: what to call them.
        corruptions: names of `choral.corruptions`, or 'all' for the fifteen common ones; images only (bytes, or numbers from 0 to 1).
        severities: from 1 to 5.
        image_shape: height and width of images stored flat.
        corrupted_rows: largest number of corrupted rows, drawn by the seed.
        labels: what the rows are called in reports; their numbers if None.
        seed: seed of the corruptions.
    """
    x, y, ood = as_inputs(x), np.atleast_1d(y), None if ood is None else as_inputs(ood)
    if batches.rows(x) != len(y) or not len(y):
        raise InputError(f"x has {batches.rows(x)} rows and y {len(y)}; give as many of both, and at least one.")
    if not corruptions:
        return Trial(x, y, ood, ood_name, labels=labels)
    from choral.corruptions import COMMON, corrupt

    if not isinstance(x, Tensor):
        raise InputError(f"corruptions are for images in one array, but x is {batches.in_words(x)}; leave them out.")
    if isinstance(corruptions, str):
        corruptions = COMMON if corruptions == "all" else [name.strip() for name in corruptions.split(",")]
    keep = np.sort(np.random.default_rng(seed).permutation(len(x))[:corrupted_rows])
    images = to_images(x[keep].numpy(), shape=image_shape)
    corrupted = {
        name: [from_images(corrupt(images, name, severity=s, seed=seed), like=x.numpy()) for s in severities]
        for name in corruptions
    }
    return Trial(x, y, ood, ood_name, corrupted, keep, tuple(severities), labels)


_SHOWN = 16  # members in matrices, at most
_BINS = 20
_ORDERS = 8  # random choices of members of each number
_LONG = 10.0  # seconds of a prediction that is not taken twice


def evaluate(ensemble: Ensemble, x: Any, y: Any, *, batch_size: int = 1024, **options: Any) -> dict[str, Any]:
    """Return all measurements of an ensemble on test inputs and their targets, as plain JSON types.

    Further options (ood, corruptions, severities, ...) are those of `make_trial`.
    """
    options |= {"ood": ensemble._arranged(options["ood"])} if "ood" in options else {}
    x, y = ensemble._with_targets(x, y)
    return judge(ensemble, make_trial(ensemble._arranged(x), y, **options), batch_size=batch_size)


def judge(ensemble: Ensemble, trial: Trial, *, batch_size: int = 1024) -> dict[str, Any]:
    """Return all measurements of an ensemble on a trial.

    Keys: task, rows, members, scores, cost, sizes, diversity, histograms, ood, corruptions, and those of the kind of prediction
    (reliability, or coverage and intervals).
    """
    prediction, seconds = _timed(ensemble, trial.x, batch_size)
    targets = prediction.targets(trial.y)
    first = prediction.of_rows([row for own in prediction.rows_by_member()[:_SHOWN] for row in own])
    measure, matrix = first.likeness(targets)
    counted = ensemble.info.get("counted", {})
    found: dict[str, Any] = {
        "task": ensemble.task,
        "rows": batches.rows(trial.x),
        "members": len(prediction.rows_by_member()),
        "scores": prediction.scores(targets),
        "score": prediction.score,
        "shown": list(prediction.shown),
        "cost": {
            "parameters": ensemble.info.get("parameters", ensemble._parameters),
            "train_flops": counted.get("train_flops"),
            "predict_flops": ensemble.info.get("predict_flops"),
            "train_seconds": counted.get("train_seconds"),
            "predict_seconds": seconds,
        },
        "sizes": sizes(prediction, targets),
        "diversity": {"measure": measure, "matrix": plain(matrix)},
    }
    found |= plain(prediction.details(targets) | risk(prediction, targets))
    if trial.labels is not None:
        found |= {"worst": [row | {"row": trial.labels[row["row"]]} for row in found.get("worst", [])]}
    if trial.corrupted:
        found["corruptions"] = _corruptions(ensemble, trial, batch_size)
    other = None if trial.ood is None else ensemble._predictive(trial.ood, batch_size=batch_size)
    found["histograms"] = histograms(prediction, other)
    if other is not None:
        told = metrics.evaluate_ood(prediction.alarms(), other.alarms())
        found["ood"] = {
            "name": trial.ood_name,
            "rows": batches.rows(trial.ood),
            "best": prediction.alarming[0],
            "scores": told,
        }
    return found


def _timed(ensemble: Ensemble, x: Any, batch_size: int) -> tuple[Predictive, float]:
    """Return a prediction and its seconds; short ones are timed twice, since the first call of a shape prepares it."""
    seconds: list[float] = []
    while len(seconds) < 2 and sum(seconds) < _LONG:
        started = time.perf_counter()
        prediction = ensemble._predictive(x, batch_size=batch_size)
        seconds.append(time.perf_counter() - started)
    return prediction, min(seconds)


def row_of(ensemble: Ensemble, evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an ensemble in a comparison."""
    epochs = ensemble.info.get("counted", {}).get("epochs", ensemble.recipe.epochs)  # training may have stopped early
    row: dict[str, Any] = {"method": ensemble.recipe.name, "members": ensemble.members, "epochs": epochs}
    row |= flat(evaluation)
    row |= {n: evaluation["classes"][n] for n in ("balanced_accuracy", "majority_accuracy") if "classes" in evaluation}
    return row | ({"coverage_error": abs(row["coverage_95"] - 0.95)} if "coverage_95" in row else {})


def flat(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the scalars of an evaluation, with means over corruptions and the AUROC."""
    row: dict[str, Any] = evaluation["scores"] | evaluation["cost"] | evaluation.get("corruptions", {}).get("means", {})
    if "ood" in evaluation:
        row["ood_auroc"] = evaluation["ood"]["scores"].get(evaluation["ood"].get("best"), {}).get("auroc")
    return row


def keep(folder: Path, ensemble: Ensemble, evaluation: dict[str, Any], trial: Trial) -> None:
    """Write an ensemble's evaluation to evaluation.json in its run folder, where `choral report` reads it."""
    found = {"evaluation": {ensemble.recipe.name: evaluation}, "judged_by": trial.digest, "ensemble": ensemble._digest}
    write_json(folder / "evaluation.json", found, within=folder)


def judged(folder: Path | None, ensemble: Ensemble, trial: Trial) -> dict[str, Any]:
    """Return the evaluation in the run folder if it is of the same members and rows; otherwise evaluate, and write it there."""
    stored: dict[str, Any] = {}
    with contextlib.suppress(RunError):  # all that a damaged file says is said again
        stored = (None if folder is None else read_json(folder / "evaluation.json")) or {}
    found = stored.get("evaluation", {}).get(ensemble.recipe.name)
    known = stored.get("judged_by") == trial.digest and stored.get("ensemble") == ensemble._digest
    if found is None or not known:
        found = json.loads(json.dumps(judge(ensemble, trial), sort_keys=True))  # in the order a file would give back
        if folder is not None:
            keep(folder, ensemble, found, trial)
    return found


def plain(values: Any, digits: int = 6) -> Any:
    """Return tensors, also in dicts and lists, as nested lists of floats rounded to a few significant digits."""
    match values:
        case dict():
            return {name: plain(v, digits) for name, v in values.items()}
        case list():
            return [plain(v, digits) for v in values]
        case Tensor():
            return [plain(v, digits) for v in values] if values.dim() else float(f"{float(values):.{digits}g}")
    return values


def sizes(prediction: Predictive, targets: Tensor) -> list[dict[str, float]]:
    """Return scores of ensembles of some of the members: the mean and the standard deviation over random choices.

    Choices are windows of a random circular order, so that each member is chosen about equally often.
    """
    members = prediction.rows_by_member()
    circle = np.random.default_rng(0).permutation(len(members)).tolist() * 2
    starts = np.linspace(0, len(members), min(_ORDERS, len(members)), endpoint=False).astype(int)
    counts = sorted({round(c) for c in np.geomspace(1, len(members), 12)})
    found = []
    for size in counts:
        windows = [circle[s : s + size] for s in (starts if size < len(members) else [0])]
        chosen = (prediction.of_rows(sorted(row for i in window for row in members[i])) for window in windows)
        values = [part.brief(targets) for part in chosen]
        held = {n: [v[n] for v in values] for n in values[0]}
        means = {n: float(np.mean(v)) for n, v in held.items()}
        found.append({"members": size} | means | {f"{n}_std": float(np.std(v)) for n, v in held.items()})
    return found


def risk(prediction: Predictive, targets: Tensor) -> dict[str, Any]:
    """Return the error of the remaining rows when the least certain rows are left out, by the share that remains."""
    rows, alarm = prediction.row_scores(targets), prediction.sureness()[1]
    name = next((n for n in ("accuracy", "mse") if n in rows), None)
    if name is None or rows[name].shape != alarm.shape:
        return {}
    losses = (1 - rows[name] if name == "accuracy" else rows[name])[alarm.argsort(stable=True)].double()
    means = losses.cumsum(0) / torch.arange(1, len(losses) + 1)
    kept = torch.linspace(max(1, len(losses) // 20), len(losses), min(len(losses), 40)).round().long().unique()
    found = means[kept - 1] if name == "accuracy" else means[kept - 1].sqrt()
    return {"risk": {"of": "error rate" if name == "accuracy" else "RMSE", "kept": kept / len(losses), "risk": found}}


def _corruptions(ensemble: Ensemble, trial: Trial, batch_size: int) -> dict[str, Any]:
    y = trial.y[trial.corrupted_rows]
    table: dict[str, list[dict[str, float]]] = {}
    for name, severities in trial.corrupted.items():
        joint = ensemble._predictive(np.concatenate(severities), batch_size=batch_size)
        parts = [joint.of_points(slice(i * len(y), (i + 1) * len(y))) for i in range(len(severities))]
        table[name] = [part.brief(part.targets(y)) for part in parts]
    names = next(iter(table.values()))[0]
    score = "nll" if "nll" in names else joint.score
    levels = [
        {"severity": s} | {n: sum(rows[i][n] for rows in table.values()) / len(table) for n in names}
        for i, s in enumerate(trial.severities)
    ]
    return {
        "rows": len(y),
        "severities": list(trial.severities),
        "table": table,
        "levels": levels,
        "by_corruption": {name: sum(cell[score] for cell in cells) / len(cells) for name, cells in table.items()},
        "means": metrics.corrupted_means(table),
    }


def histograms(prediction: Predictive, other: Predictive | None = None) -> dict[str, Any]:
    """Return histograms of the entropy or standard deviation of rows, in log-spaced bins, in and out of distribution."""
    name, inside = prediction.sureness()
    sets = {"in": inside, **({} if other is None else {"out": other.sureness()[1]})}
    both = torch.cat(list(sets.values())).double()
    high = max(float(both.max()), 1e-12)
    low = min(max(float(both.quantile(0.01)), 1e-5 * high), 0.5 * high)
    edges = torch.logspace(np.log10(low), np.log10(high), _BINS + 1, dtype=torch.float64)
    where = {n: torch.bucketize(v.double().clamp(low, high), edges[1:-1]) for n, v in sets.items()}
    shares = {n: torch.bincount(w, minlength=_BINS) / len(w) for n, w in where.items()}
    return {"of": name} | plain({"edges": edges} | shares)
