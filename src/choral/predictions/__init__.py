"""Predictions: what an ensemble says about some points, how sure it is, and how well it did."""

from choral.predictions.base import Prediction
from choral.predictions.classification import Classification
from choral.predictions.regression import Regression

__all__ = ["Classification", "Prediction", "Regression"]
