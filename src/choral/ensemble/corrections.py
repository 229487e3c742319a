"""Corrections: what `choral.posthoc` fits on held-out data, put to work in an ensemble's predictions.

An ensemble holds its corrections as values in the order selection, temperature, weights, conformal rule, whichever it
has; they are saved with it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.ensemble.predictions import Classification, Prediction, Regression
from choral.metrics.regression import gaussian_log_scores
from choral.posthoc import (
    ConformalQuantile,
    ConformalResidual,
    ConformalSets,
    MemberSelection,
    StackingWeights,
    Temperature,
    fit_conformal_sets,
    fit_quantile_intervals,
    fit_residual_intervals,
    fit_stacking,
    fit_temperature,
    label_log_scores,
    select_members,
)

_ORDER: tuple[tuple[type[Value], ...], ...] = (
    (MemberSelection,),
    (Temperature,),
    (StackingWeights,),
    (ConformalSets, ConformalResidual, ConformalQuantile),
)
_CLASSES_ONLY = (Temperature, ConformalSets)
_TARGETS_ONLY = (ConformalResidual, ConformalQuantile)


def checked(values: Sequence[Value], *, task: Literal["classification", "regression"]) -> tuple[Value, ...]:
    """Return corrections in the order they are applied; raises InputError for two of one sort or of the wrong task.

    Args:
        values: what the functions of `choral.posthoc` returned.
        task: what the ensemble predicts.
    """
    ranked: dict[int, Value] = {}
    for value in values:
        rank = next((i for i, kinds in enumerate(_ORDER) if isinstance(value, kinds)), None)
        if rank is None:
            known = ", ".join(k.__name__ for kinds in _ORDER for k in kinds)
            raise InputError(f"{type(value).__name__} is not a correction; give values of {known}.")
        if isinstance(value, _TARGETS_ONLY if task == "classification" else _CLASSES_ONLY):
            raise InputError(f"{type(value).__name__} does not apply to {task}; leave it out.")
        if rank in ranked:
            raise InputError(
                f"{type(ranked[rank]).__name__} and {type(value).__name__} are two corrections of one sort; give one."
            )
        ranked[rank] = value
    return tuple(ranked[i] for i in sorted(ranked))


def correct(prediction: Prediction, values: Sequence[Value]) -> Prediction:
    """Return a prediction with corrections applied in order; conformal rules are kept in it for `sets` or `interval`.

    >>> p = Classification(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))
    >>> correct(p, [MemberSelection(indices=(0,), nll=(0.1,)), Temperature(temperatures=(2.0,))]).logits.tolist()
    [[[1.0, 0.0]]]
    """
    for value in values:
        if isinstance(value, MemberSelection):
            prediction = _selected(prediction, value)
        elif isinstance(value, Temperature):
            assert isinstance(prediction, Classification)
            prediction = replace(prediction, logits=value.apply(prediction.logits))
        elif isinstance(value, StackingWeights):
            _check_count(value, prediction)
            prediction = replace(prediction, weights=value.weights)
        else:
            prediction = replace(prediction, conformal=value)  # type: ignore[arg-type]  # `checked` has seen its kind
    return prediction


def _selected(prediction: Prediction, chosen: MemberSelection) -> Prediction:
    held = prediction.learners
    learners = None if held is None else tuple(held[i] for i in chosen.indices)
    if isinstance(prediction, Classification):
        return replace(prediction, logits=chosen.apply(prediction.logits), learners=learners)
    means, variances = chosen.apply(prediction.member_means), chosen.apply(prediction.member_variances)
    return replace(prediction, member_means=means, member_variances=variances, learners=learners)


def _check_count(value: StackingWeights, prediction: Prediction) -> None:
    members = len(prediction.logits if isinstance(prediction, Classification) else prediction.member_means)
    if len(value.weights) != members:
        raise InputError(f"there are {len(value.weights)} stacking weights for {members} members; fit them again.")


def fit_corrections(
    prediction: Prediction,
    y: Any,
    *,
    select: int | None = None,
    temperature: Literal["ensemble", "member"] | None = None,
    stacking: bool = False,
    level: float | None = None,
    conformal: Literal["aps", "raps", "residual", "scaled", "quantile"] | None = None,
    seed: int = 0,
) -> tuple[Value, ...]:
    """Return corrections fitted one after the other, each on what the ones before leave.

    Args:
        prediction: of held-out rows no member was trained on, without corrections.
        y: labels or targets of those rows.
        select: choose at most this many members greedily by log score.
        temperature: divide logits by one number for the 'ensemble' or one for each 'member' (classification).
        stacking: weigh members by the log score of their mixture.
        level: coverage promised by conformal sets or intervals; none are fitted if None.
        conformal: 'aps' or 'raps' for classes ('raps' with penalty 0.01 beyond 2 classes); 'residual', 'scaled' (by the
            predicted deviation) or 'quantile' (the mixture's own interval, corrected) for regression. 'aps' and
            'scaled' if None.
        seed: of the random shares in sets of classes.
    """
    found: list[Value] = []

    def add(value: Value) -> None:
        nonlocal prediction
        found.append(value)
        prediction = correct(prediction, [value])

    targets = _targets(prediction, y)
    if isinstance(prediction, Classification) and prediction.combine == "logits":
        _refuse(select is not None or stacking or temperature == "member")
    if select is not None:
        add(select_members(_log_scores(prediction, targets), members=select))
    if temperature is not None:
        if not isinstance(prediction, Classification):
            raise InputError("temperature divides logits, so it applies to classification only; leave it out.")
        logits = prediction.logits.mean(0, keepdim=True) if prediction.combine == "logits" else prediction.logits
        add(fit_temperature(logits, targets, per=temperature))
    if stacking:
        add(fit_stacking(_log_scores(prediction, targets)))
    if level is not None:
        add(_conformal(prediction, targets, level, conformal, seed))
    return tuple(found)


def _refuse(asked: bool) -> None:
    if asked:
        raise InputError(
            "this ensemble averages logits, not probabilities, so members cannot be weighed, selected or cooled by the "
            "score of their mixture; use temperature='ensemble' and conformal sets."
        )


def _targets(prediction: Prediction, y: Any) -> Tensor:
    targets = torch.as_tensor(np.asarray(y))
    if isinstance(prediction, Classification):
        return targets.long()
    return targets.double().reshape(prediction.mean.shape)


def _log_scores(prediction: Prediction, targets: Tensor) -> Tensor:
    if isinstance(prediction, Classification):
        return label_log_scores(prediction.member_probs, targets)
    scores = gaussian_log_scores(prediction.member_means, prediction.member_variances, targets)
    return scores.flatten(2).sum(-1)


def _conformal(prediction: Prediction, targets: Tensor, level: float, rule: str | None, seed: int) -> Value:
    accepted = ("aps", "raps") if isinstance(prediction, Classification) else ("scaled", "residual", "quantile")
    rule = rule or accepted[0]
    if rule not in accepted:
        raise InputError(f"conformal is {rule!r}; for this task give one of {', '.join(accepted)}.")
    if isinstance(prediction, Classification):
        penalty = {"penalty": 0.01, "free_classes": 2} if rule == "raps" else {}
        return fit_conformal_sets(prediction.probs, targets, level=level, seed=seed, **penalty)  # type: ignore[arg-type]  # plain numbers
    assert isinstance(prediction, Regression)
    if rule == "quantile":
        return fit_quantile_intervals(*prediction.mixture_interval(level), targets, level=level)
    scales = prediction.std.double() if rule == "scaled" else None
    return fit_residual_intervals(prediction.mean.double(), targets, level=level, scales=scales)
