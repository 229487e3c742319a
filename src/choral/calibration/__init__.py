"""Calibration: corrections fitted on held-out data after training.

Each correction is a frozen value of plain numbers with an `apply`, stored as JSON with the ensemble.
"""

from choral.base.values import offered
from choral.calibration.conformal import (
    ConformalLabels,
    ConformalQuantile,
    ConformalResidual,
    ConformalSets,
    conformal_threshold,
    evaluate_intervals,
    evaluate_sets,
    fit_conformal_sets,
    fit_label_sets,
    fit_quantile_intervals,
    fit_residual_intervals,
)
from choral.calibration.members import (
    StackingWeights,
    Temperature,
    bagged_selection,
    fit_stacking,
    fit_temperature,
    greedy_selection,
)

__all__ = [
    "ConformalLabels", "ConformalQuantile", "ConformalResidual", "ConformalSets",
    "StackingWeights", "Temperature", "bagged_selection", "conformal_threshold",
    "evaluate_intervals", "evaluate_sets", "fit_conformal_sets", "fit_label_sets", "fit_quantile_intervals",
    "fit_residual_intervals", "fit_stacking", "fit_temperature", "greedy_selection",
]  # fmt: skip

globals().update(offered(__all__, globals()))
