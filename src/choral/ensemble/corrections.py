"""Corrections: what `choral.calibration` fits on held-out data, put to work in an ensemble's predictions.

An ensemble holds its corrections as values in the order selection, temperature, weights, conformal rule, whichever it
has; they are saved with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from choral.base.errors import InputError
from choral.calibration import MemberSelection, StackingWeights, Temperature, fit_stacking, select_members
from choral.calibration.members import Correction
from choral.predictions import Predictive


def checked(values: Sequence[Any], *, kind: type[Predictive]) -> tuple[Correction, ...]:
    """Return corrections in the order they are applied; InputError for two of one sort, or one that its kind of prediction does not take."""
    ranked: dict[int, Correction] = {}
    for value in values:
        if not isinstance(value, kind.accepts):
            known = ", ".join(accepted.__name__ for accepted in kind.accepts)
            raise InputError(f"{type(value).__name__} does not apply to {kind.task}; give values of {known}.")
        other = ranked.setdefault(value.rank, value)
        if other is not value:
            raise InputError(
                f"{type(other).__name__} and {type(value).__name__} are two corrections of one sort; give one."
            )
    return tuple(ranked[i] for i in sorted(ranked))


def correct(prediction: Predictive, values: Sequence[Correction]) -> Predictive:
    """Return a prediction with corrections applied in order; conformal rules are kept in it for `sets` or `interval`.

    >>> import torch
    >>> from choral.predictions import Classification
    >>> p = Classification(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))
    >>> correct(p, [MemberSelection(indices=(0,), nll=(0.1,)), Temperature(temperatures=(2.0,))]).logits.tolist()
    [[[1.0, 0.0]]]
    """
    for value in values:
        prediction = value.corrected(prediction)
    return prediction


def staying(values: Sequence[Correction], asked: Mapping[str, Any]) -> tuple[Correction, ...]:
    """Return what stays when those `asked` for are fitted: the weights of all members, unless members are weighted or selected anew."""
    kinds = {type(value) for value in values}
    if MemberSelection in kinds or any(asked.get(name) for name in ("select", "stacking")):
        return ()
    return tuple(value for value in values if type(value) is StackingWeights)


def fit_corrections(
    prediction: Predictive,
    y: Any,
    *,
    select: int | None = None,
    temperature: Literal["ensemble", "member"] | None = None,
    stacking: bool = False,
    level: float | None = None,
    conformal: str | None = None,
    seed: int = 0,
) -> tuple[Correction, ...]:
    """Return corrections fitted one after the other, each on what the ones before leave: those that are named, else one temperature.

    Args:
        prediction: of held-out rows no member was trained on, without corrections.
        y: labels or targets of those rows.
        select: choose at most this many members greedily by log score.
        temperature: divide logits by one number for the 'ensemble' or one for each 'member' (classification).
        stacking: weigh members by the log score of their mixture.
        level: nominal coverage of conformal sets or intervals; none are fitted if None.
        conformal: one of the prediction's `rules`, the first of them if None: 'aps' or 'raps' for classes ('raps' with
            penalty 0.01 beyond 2 classes); 'scaled' (by the predicted deviation), 'residual' or 'quantile' (the mixture's
            own interval, corrected) for regression.
        seed: of the random shares in sets of classes.
    """
    found: list[Correction] = []
    targets = prediction.targets(y)

    def add(value: Correction) -> None:
        nonlocal prediction
        found.append(value)
        prediction = value.corrected(prediction)

    if conformal is not None and level is None:
        raise InputError(
            f"conformal is {conformal!r}, but no level says how much is to be covered; give level=0.9, say."
        )
    if not stacking and all(value is None for value in (select, temperature, level)):
        if Temperature not in prediction.accepts:
            raise InputError(
                f"nothing says what is to be fitted, and {prediction.task} has no temperature; give level=0.9 for intervals that cover 90 %, "
                "or stacking=True for weights of members."
            )
        temperature = "ensemble"
    if select is not None or stacking:
        prediction.check_mixture()
    if select is not None:
        add(select_members(prediction.log_scores(targets), members=select))
    if temperature is not None:
        add(prediction.fit_temperature(targets, per=temperature))
    if stacking:
        add(fit_stacking(prediction.log_scores(targets)))
    if level is not None:
        add(prediction.fit_conformal(targets, level=level, rule=conformal, seed=seed))
    return tuple(found)
