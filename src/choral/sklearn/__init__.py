"""choral as scikit-learn estimators: `fit`, `predict`, pipelines, searches, and uncertainty that can be used.

Inside this package `sklearn` is scikit-learn itself: imports are absolute.
"""

from choral.sklearn.estimators import EnsembleClassifier, EnsembleRegressor

__all__ = ["EnsembleClassifier", "EnsembleRegressor"]
