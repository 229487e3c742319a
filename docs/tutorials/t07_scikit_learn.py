"""
In a scikit-learn pipeline
==========================

``EnsembleRegressor`` and ``EnsembleClassifier`` are estimators: they work in pipelines,
cross-validation and grid searches.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from choral import plots
from choral.sklearn import EnsembleRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X["sex"] = X["sex"].map({1.0: "woman", 2.0: "man"})
numbers = [c for c in X if c != "sex"]

# %%
# A pipeline as usual. The same steps score one network and an ensemble.
columns = make_column_transformer(
    (StandardScaler(), numbers), (OneHotEncoder(), ["sex"])
)
for method in ("single", "packed"):
    model = EnsembleRegressor(method, random_state=0)
    found = cross_val_score(make_pipeline(columns, model), X, y, cv=3)
    print(f"{method:7} R2 in three folds: {found.round(2)}, mean {found.mean():.3f}")

# %%
# The estimator also takes the data frame itself, with words and gaps. ``calibrate`` needs
# rows that were not trained on, and makes the intervals conformal.
X_train, X_rest, y_train, y_rest = train_test_split(X, y, test_size=0.5, random_state=0)
X_held, X_new, y_held, y_new = train_test_split(
    X_rest, y_rest, test_size=0.5, random_state=0
)
model = EnsembleRegressor("packed", random_state=0).fit(X_train, y_train)
model.calibrate(X_held, y_held)
for level in (0.5, 0.8, 0.9):
    low, high = model.predict_interval(X_new, level=level)
    inside = ((low <= y_new) & (y_new <= high)).mean()
    width = np.mean(high - low)
    print(f"nominal {level:.0%}, covered {inside:.0%}, mean width {width:.0f}")

# %%
plots.intervals((low, high), y_new.to_numpy())
plt.show()

# %%
# The decision: would more patients help? Only the epistemic part of the variance shrinks
# with more rows. Here it is small, so better measurements would help more than more rows.
parts = model.predict_uncertainty(X_new)
print(f"{np.mean(parts.epistemic / parts.total):.0%} of the variance is epistemic")
