"""Predictions: what an ensemble says about some points, how sure it is, and how well it did."""

from choral.predictions.base import Predictive, brief_of, means_of, scores_of
from choral.predictions.classification import Classification, MultiLabel
from choral.predictions.outputs import Outputs
from choral.predictions.prediction import Prediction
from choral.predictions.quantiles import QuantileRegression
from choral.predictions.regression import Counts, Mixture, Numbers, Regression

__all__ = [
    "Classification",
    "Counts",
    "Mixture",
    "MultiLabel",
    "Numbers",
    "Outputs",
    "Prediction",
    "Predictive",
    "QuantileRegression",
    "Regression",
    "brief_of",
    "means_of",
    "scores_of",
]
