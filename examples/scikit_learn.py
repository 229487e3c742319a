"""From a data frame to intervals that hold what they promise, with scikit-learn's own tools.

python examples/scikit_learn.py
"""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from choral.sklearn import EnsembleRegressor

x, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
x = x.assign(sex=x["sex"].map({1.0: "woman", 2.0: "man"}), bmi=x["bmi"].where(x["age"] > 25))  # words, and gaps
x_train, x_rest, y_train, y_rest = train_test_split(x, y, test_size=0.5, random_state=0)
x_held, x_new, y_held, y_new = train_test_split(x_rest, y_rest, test_size=0.5, random_state=0)

model = EnsembleRegressor("packed", random_state=0).fit(x_train, y_train).calibrate(x_held, y_held)

print(f"R2 {model.score(x_new, y_new):.2f}")
for level in (0.5, 0.8, 0.9):
    low, high = model.predict_interval(x_new, level=level)
    inside = ((low <= y_new) & (y_new <= high)).mean()
    print(f"promised {level:.0%}, held {inside:.0%}, width {np.mean(high - low):.0f}")

parts = model.predict_uncertainty(x_new)
print(f"of the variance, {np.mean(parts.epistemic / parts.total):.0%} is disagreement that more rows would lower")
