"""Evaluation: everything a report shows about one ensemble, as plain numbers.

`judge` turns an ensemble and the rows it is judged by (a `choral.judging.trial.Trial`) into a dict of JSON types; `evaluate` also
makes the rows, for one ensemble.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from choral import metrics
from choral.engine.files import read_json, write_json
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.predictions import Classification, Prediction, Regression
from choral.judging.maps import chains, pca
from choral.judging.trial import Trial, make_trial

_SHOWN = 16  # members in matrices, at most
_BINS = 20
MAP_ROWS = 200


def evaluate(ensemble: Ensemble, x: Any, y: Any, *, batch_size: int = 1024, **options: Any) -> dict[str, Any]:
    """Return everything that is measured about an ensemble, as plain JSON types.

    Args:
        ensemble: the ensemble.
        x: test inputs.
        y: their labels or targets.
        batch_size: points evaluated at once.
        options: ood, corruptions, severities, ... as in `make_trial`.
    """
    return judge(ensemble, make_trial(x, y, **options), batch_size=batch_size)


def judge(ensemble: Ensemble, trial: Trial, *, batch_size: int = 1024) -> dict[str, Any]:
    """Return everything that is measured about an ensemble on a trial.

    Keys: task, rows, members, scores, cost, reliability or coverage and intervals, sizes (measures with members added
    one by one, all draws of a stochastic member at once), diversity (between members, draws averaged), map, and with a second set or corruptions: histograms, ood, corruptions.
    """
    prediction, seconds = _timed(ensemble, trial.x, batch_size)
    targets = targets_of(prediction, trial.y)
    found: dict[str, Any] = {
        "task": ensemble.task,
        "rows": len(trial.x),
        "members": len(_learners(prediction)),
        "scores": scores(prediction, targets),
        "cost": _cost(ensemble, seconds),
        "sizes": _sizes(prediction, targets),
        "map": {"chains": chains(ensemble), **pca({"members": sketch(prediction)})},
    }
    if isinstance(prediction, Classification):
        table = metrics.reliability_table(prediction.probs, targets)
        found["reliability"] = {n: plain(getattr(table, n)) for n in ("edges", "counts", "confidence", "accuracy")}
        matrix = metrics.disagreement_matrix(_by_learner(prediction, prediction.member_probs)[:_SHOWN])
        found["diversity"] = {"measure": "disagreement", "matrix": plain(matrix)}
        if trial.corrupted:
            found["corruptions"] = _corruptions(ensemble, trial, batch_size)
    else:
        matrix = metrics.correlation_matrix(_by_learner(prediction, prediction.member_means)[:_SHOWN] - targets)
        found["diversity"] = {"measure": "correlation of errors", "matrix": plain(matrix)}
        found |= _regression_details(prediction, targets)
    other = None if trial.ood is None else ensemble.predict(trial.ood, batch_size=batch_size)
    found["histograms"] = _histograms(prediction, other)
    if other is not None:
        found["ood"] = {"name": trial.ood_name, "rows": len(trial.ood), "scores": _ood(prediction, other)}  # type: ignore[arg-type]  # a prediction of it exists
    return found


def _timed(ensemble: Ensemble, x: Any, batch_size: int) -> tuple[Prediction, float]:
    """Return a prediction and its seconds; a quick one is taken twice, since the first call of a shape prepares it."""
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        prediction = ensemble.predict(x, batch_size=batch_size)
        seconds = time.perf_counter() - started
        if seconds > 1:
            break
    return prediction, seconds


def measure(ensemble: Ensemble, x: Any, y: Any, *, batch_size: int = 1024) -> dict[str, Any]:
    """Return every scalar measure of an ensemble on labelled data, with what it cost to make, as one flat row."""
    prediction, seconds = _timed(ensemble, x, batch_size)
    return _row(ensemble, scores(prediction, targets_of(prediction, y)), _cost(ensemble, seconds))


def row_of(ensemble: Ensemble, evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the flat row `measure` gives, from an evaluation, with the means over corruptions and the AUROC."""
    row = _row(ensemble, evaluation["scores"], evaluation["cost"])
    row |= evaluation.get("corruptions", {}).get("means", {})
    if "ood" in evaluation:
        best = "entropy" if ensemble.task == "classification" else "variance"
        row["ood_auroc"] = evaluation["ood"]["scores"][best]["auroc"]
    return row


def _row(ensemble: Ensemble, measured: dict[str, float], cost: dict[str, Any]) -> dict[str, Any]:
    head = {"method": ensemble.recipe.name, "members": ensemble.members, "epochs": ensemble.recipe.epochs}
    return head | measured | cost


def keep(folder: Path, ensemble: Ensemble, evaluation: dict[str, Any], trial: Trial) -> None:
    """Write an ensemble's evaluation into the results.json of its run folder, where `choral report` finds it."""
    path = folder / "results.json"
    stored = read_json(path) or {}
    found = stored | {"evaluation": {ensemble.recipe.name: evaluation}, "judged_by": trial.digest}
    write_json(path, found, within=folder)


def judged(folder: Path | None, ensemble: Ensemble, trial: Trial) -> dict[str, Any]:
    """Return the evaluation that the run folder keeps if it was judged by the same rows; else judge, and keep it."""
    stored = (None if folder is None else read_json(folder / "results.json")) or {}
    found = stored.get("evaluation", {}).get(ensemble.recipe.name)
    if found is None or stored.get("judged_by") != trial.digest:
        found = json.loads(json.dumps(judge(ensemble, trial), sort_keys=True))  # in the order a file would give back
        if folder is not None:
            keep(folder, ensemble, found, trial)
    return found


def corruption_errors(evaluations: Mapping[str, dict[str, Any]], *, baseline: str) -> dict[str, Any] | None:
    """Return each method's mean corruption error and relative one against a baseline (1 = the baseline), or None.

    Corruptions that cost the baseline less than half a point on average are left out of the relative error, whose
    divisor they would bring near zero.

    Args:
        evaluations: by method, from `judge`; None is returned where they hold no corruptions.
        baseline: the method compared with.
    """
    tables = {n: e["corruptions"]["table"] for n, e in evaluations.items() if "corruptions" in e}
    if baseline not in tables:
        return None
    errors = {n: {c: [1 - cell["accuracy"] for cell in cells] for c, cells in t.items()} for n, t in tables.items()}
    clean = {n: 1 - evaluations[n]["scores"]["accuracy"] for n in tables}
    own = errors[baseline]
    all_of = [c for c in own if sum(own[c]) > 0]
    hurt = [c for c in own if sum(own[c]) / len(own[c]) - clean[baseline] >= 0.005]
    found: dict[str, dict[str, float]] = {}
    for name, table in errors.items():
        found[name] = {}
        if all_of:
            pair = [{c: t[c] for c in all_of} for t in (table, own)]
            found[name]["corruption_error"] = metrics.mean_corruption_error(*pair)
        if hurt:
            pair = [{c: t[c] for c in hurt} for t in (table, own)]
            found[name]["relative_corruption_error"] = metrics.relative_mean_corruption_error(
                *pair, clean_error=clean[name], baseline_clean_error=clean[baseline]
            )
    return {"baseline": baseline, "methods": found, "left_out": [c for c in own if c not in hurt]}


def scores(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    """Return every scalar measure of a prediction, as the ensemble combines its members (see `choral.metrics`)."""
    weights = None if prediction.weights is None else torch.tensor(prediction.weights, dtype=torch.float64)
    if isinstance(prediction, Regression):
        found = metrics.evaluate_regression(
            prediction.member_means, prediction.member_variances, targets, weights=weights
        )
        return found | (_learner_errors(prediction, targets) if prediction.learners is not None else {})
    alone = _by_learner(prediction, prediction.member_probs)
    pairs = len(alone) > 1
    stochastic = prediction.learners is not None
    found = metrics.evaluate_classification(
        prediction.member_probs, targets, weights=weights, pairs=pairs and not stochastic
    )
    if stochastic:
        own = metrics.evaluate_classification(alone, targets, pairs=pairs)
        of_members = ("member_accuracy", "member_nll", "disagreement", "pairwise_kl", "member_correlation")
        found |= {n: own[n] for n in of_members if n in own}
    if prediction.combine == "logits":
        joint = metrics.evaluate_classification(prediction.probs.unsqueeze(0), targets, pairs=False)
        found |= {n: joint[n] for n in ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "entropy")}
    return found


def _learners(prediction: Prediction) -> list[list[int]]:
    """Return the rows of each member: one, or all its draws."""
    if prediction.learners is None:
        values = prediction.logits if isinstance(prediction, Classification) else prediction.member_means
        return [[i] for i in range(len(values))]
    rows: dict[int, list[int]] = {}
    for i, learner in enumerate(prediction.learners):
        rows.setdefault(learner, []).append(i)
    return list(rows.values())


def _by_learner(prediction: Prediction, values: Tensor) -> Tensor:
    """Return what each member says, its draws averaged (member, ...)."""
    if prediction.learners is None:
        return values
    weights = None if prediction.weights is None else torch.tensor(prediction.weights)
    return metrics.average_draws(values, prediction.learners, weights=weights)


def _learner_errors(prediction: Regression, targets: Tensor) -> dict[str, float]:
    """Return the measures of members alone, each the mixture of its draws."""
    parts = [(prediction.member_means[rows], prediction.member_variances[rows]) for rows in _learners(prediction)]
    count = len(parts)
    return {
        "member_rmse": sum(metrics.rmse(m, targets) for m, _ in parts) / count,
        "member_nll": sum(metrics.mixture_nll(m, v, targets) for m, v in parts) / count,
        "member_crps": sum(metrics.crps(m, v, targets) for m, v in parts) / count,
        "residual_correlation": metrics.member_correlation(_by_learner(prediction, prediction.member_means) - targets),
    }


def targets_of(prediction: Prediction, y: Any) -> Tensor:
    """Return labels as whole numbers, or targets in the shape of the predicted mean."""
    targets = torch.as_tensor(np.asarray(y))
    if isinstance(prediction, Classification):
        return targets.long()
    return targets.float().reshape(prediction.mean.shape)


def sketch(prediction: Prediction, *, rows: int = MAP_ROWS) -> Tensor:
    """Return what each member says about the first rows, (member, value): the point it takes in function space."""
    values = prediction.member_probs if isinstance(prediction, Classification) else prediction.member_means
    return values[:, :rows].flatten(1).double()


def plain(values: Tensor, digits: int = 6) -> Any:
    """Return a tensor as nested lists of floats with a few significant digits."""
    if values.dim():
        return [plain(v, digits) for v in values]
    return float(f"{float(values):.{digits}g}")


def _cost(ensemble: Ensemble, seconds: float) -> dict[str, Any]:
    counted = ensemble.info.get("counted", {})
    return {
        "parameters": ensemble.info.get("parameters", ensemble.parameters),
        "train_flops": counted.get("train_flops"),
        "predict_flops": ensemble.info.get("predict_flops"),
        "train_seconds": counted.get("train_seconds"),
        "predict_seconds": seconds,
    }


def _first(prediction: Prediction, count: int) -> Prediction:
    """Return the prediction of the first members alone, all draws of each, their weights rescaled."""
    rows = [row for own in _learners(prediction)[:count] for row in own]
    kept = prediction.weights
    if kept is not None:
        total = sum(kept[i] for i in rows)
        kept = tuple(kept[i] / total for i in rows) if total else None
    if isinstance(prediction, Classification):
        return Classification(prediction.logits[rows], prediction.combine, kept)
    return Regression(prediction.member_means[rows], prediction.member_variances[rows], kept)


def _sizes(prediction: Prediction, targets: Tensor) -> list[dict[str, float]]:
    members = len(_learners(prediction))
    counts = sorted({round(c) for c in np.geomspace(1, members, 24)} | set(range(1, min(members, 24) + 1)))
    found = []
    for count in counts:
        part = _first(prediction, count)
        if isinstance(part, Classification):
            cell = _cell(part, targets)
        else:
            weights = None if part.weights is None else torch.tensor(part.weights, dtype=torch.float64)
            cell = {
                "rmse": metrics.rmse(part.member_means, targets, weights=weights),
                "nll": metrics.mixture_nll(part.member_means, part.member_variances, targets, weights=weights),
            }
        found.append({"members": count, **cell})
    return found


def _cell(prediction: Classification, labels: Tensor) -> dict[str, float]:
    probs = prediction.probs
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
    }


def _corruptions(ensemble: Ensemble, trial: Trial, batch_size: int) -> dict[str, Any]:
    assert trial.corrupted_y is not None
    labels = torch.as_tensor(trial.corrupted_y).long()
    table: dict[str, list[dict[str, float]]] = {}
    for name, severities in trial.corrupted.items():
        joint = ensemble.predict(np.concatenate(severities), batch_size=batch_size)
        assert isinstance(joint, Classification)
        parts = joint.logits.split(len(labels), 1)
        table[name] = [_cell(Classification(part, joint.combine, joint.weights), labels) for part in parts]
    levels = [
        {"severity": s}
        | {n: sum(rows[i][n] for rows in table.values()) / len(table) for n in ("accuracy", "nll", "ece")}
        for i, s in enumerate(trial.severities)
    ]
    return {
        "rows": len(labels),
        "severities": list(trial.severities),
        "table": table,
        "levels": levels,
        "by_corruption": {name: sum(cell["nll"] for cell in cells) / len(cells) for name, cells in table.items()},
        "means": metrics.corrupted_means(table),
    }


def _histogram(values: Tensor, low: float, high: float) -> list[float]:
    counts = torch.histc(values.double().clamp(low, high), bins=_BINS, min=low, max=high)
    return plain(counts / len(values))


def _histograms(prediction: Prediction, other: Prediction | None) -> dict[str, Any]:
    """Return shares of rows by confidence (classes) or predicted deviation (regression), in and out of distribution."""
    if isinstance(prediction, Classification):
        name, low, high = "confidence", 0.0, 1.0
        inside = prediction.confidence
        outside = other.confidence if isinstance(other, Classification) else None
    else:
        inside = prediction.std[:, 0]
        outside = other.std[:, 0] if isinstance(other, Regression) else None
        name, low = "deviation", 0.0
        high = float((inside if outside is None else torch.cat([inside, outside])).quantile(0.99)) or 1.0
    edges = plain(torch.linspace(low, high, _BINS + 1))
    found = {"of": name, "edges": edges, "in": _histogram(inside, low, high)}
    return found if outside is None else found | {"out": _histogram(outside, low, high)}


def _ood(prediction: Prediction, other: Prediction) -> dict[str, dict[str, float]]:
    if isinstance(prediction, Classification) and isinstance(other, Classification):
        both = []
        for p in (prediction, other):
            weights = None if p.weights is None else torch.tensor(p.weights, dtype=torch.float64)
            both.append(metrics.ood_scores(p.member_probs, member_logits=p.logits, weights=weights))
        return metrics.evaluate_ood(*both)
    found = {
        n: [getattr(p, n)[:, 0].double() for p in (prediction, other)] for n in ("variance", "epistemic", "aleatoric")
    }
    return {name: metrics.evaluate_scores(*pair) for name, pair in found.items()}


def _regression_details(prediction: Regression, targets: Tensor) -> dict[str, Any]:
    weights = None if prediction.weights is None else torch.tensor(prediction.weights, dtype=torch.float64)
    at = metrics.mixture_cdf(prediction.member_means, prediction.member_variances, targets, weights=weights)
    levels = [round(0.05 * i, 2) for i in range(1, 20)] + [0.99]
    covered = [{"level": n, "coverage": float(((at - 0.5).abs() <= n / 2).double().mean())} for n in levels]
    order = prediction.mean[:, 0].argsort()
    shown = order[torch.linspace(0, len(order) - 1, min(len(order), 60)).round().long()]
    low, high = prediction.mixture_interval(0.9)
    names = ("target", "mean", "low", "high")
    columns = [plain(v[shown, 0]) for v in (targets, prediction.mean, low, high)]
    return {
        "coverage": covered,
        "intervals": {"level": 0.9, "rows": [dict(zip(names, row)) for row in zip(*columns)]},
    }
