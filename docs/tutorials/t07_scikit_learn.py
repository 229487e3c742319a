"""
In a scikit-learn pipeline
==========================

``EnsembleRegressor`` and ``EnsembleClassifier`` are estimators: pipelines, cross-validation and grid searches take them.
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
# A pipeline as usual.
columns = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), ["sex"]))
pipe = make_pipeline(columns, EnsembleRegressor("packed", epochs=90, random_state=0))
print("R2 in three folds:", cross_val_score(pipe, X, y, cv=3).round(2))

# %%
# The estimator also takes the data frame as it is: words, gaps and all. ``calibrate`` needs rows of its own.
X_train, X_rest, y_train, y_rest = train_test_split(X, y, test_size=0.5, random_state=0)
X_held, X_new, y_held, y_new = train_test_split(X_rest, y_rest, test_size=0.5, random_state=0)
model = EnsembleRegressor("packed", epochs=90, random_state=0).fit(X_train, y_train).calibrate(X_held, y_held)
print(f"NLL of new rows: {model.ensemble_.evaluate(X_new, y_new)['nll']:.2f}")
for level in (0.5, 0.8, 0.9):
    low, high = model.predict_interval(X_new, level=level)
    inside = ((low <= y_new) & (y_new <= high)).mean()
    print(f"nominal {level:.0%}, covered {inside:.0%}, mean width {np.mean(high - low):.0f}")

# %%
plots.intervals((low, high), y_new.to_numpy())
plt.show()

# %%
parts = model.predict_uncertainty(X_new)
print(f"{np.mean(parts.epistemic / parts.total):.0%} of the variance is disagreement, which more rows would lower")
