"""Predictions: predictive distributions, their uncertainty and their scores."""

from choral.predictions.classification import Classification, MultiLabel
from choral.predictions.prediction import Outputs, Prediction, Predictive, means_of, scores_of
from choral.predictions.regression import Counts, Mixture, Numbers, QuantileRegression, Regression

__all__ = [
    "Classification", "Counts", "Mixture", "MultiLabel", "Numbers", "Outputs", "Prediction", "Predictive",
    "QuantileRegression", "Regression", "means_of", "scores_of",
]  # fmt: skip
