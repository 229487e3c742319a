"""scikit-learn estimators: `fit`, `predict`, pipelines and searches, with predictive uncertainty.

Inside this package `sklearn` is scikit-learn itself: imports are absolute.
"""

from choral.sklearn.estimators import EnsembleClassifier, EnsembleRegressor

__all__ = ["EnsembleClassifier", "EnsembleRegressor"]
