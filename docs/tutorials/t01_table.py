"""
From a table to intervals
=========================

Train on a data frame, predict with intervals, check that they cover what they claim, and
decide by them.
"""

# %%
# The data: 442 patients, ten columns, and how far their disease progressed after a year. A
# path such as ``"patients.csv"`` works in the place of the data frame.
from sklearn.datasets import load_diabetes

import choral

table = load_diabetes(as_frame=True, scaled=False).frame
train, test = table[:332], table[332:]

# %%
# Without settings, three kinds of networks are trained in eight folds, stopped early, and
# combined by their out-of-fold scores. One network is trained for comparison.
ensemble = choral.fit_table(train, "target", progress=False)
one = choral.fit_table(train, "target", method="single", progress=False)

# %%
# RMSE and MAE are in units of the target. NLL also scores the predicted uncertainty, and
# ``coverage_95`` should be close to 0.95.
for name, fitted in (("one network", one), ("ensemble", ensemble)):
    scores = fitted.evaluate(test)
    shown = {n: round(scores[n], 2) for n in ("rmse", "mae", "nll", "coverage_95")}
    print(f"{name:12}", shown)

# %%
# A prediction is a table: the mean, its standard deviation, a 95 % interval, and the two
# parts of the uncertainty.
p = ensemble.predict(test)
print(p.to_frame().round(1).head())

# %%
# Two figures tell most: actual against predicted values, and intervals with the targets
# inside and outside.
import matplotlib.pyplot as plt

from choral import plots

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
plots.predicted_vs_actual(p, test["target"], ax=axes[0])
plots.intervals(p, test["target"], ax=axes[1])
axes[1].legend()
plt.show()

# %%
# The decision: treat patients whose disease will progress beyond 150. Where the 80 %
# interval contains 150, the prediction does not decide, and a further examination does.
low, high = (end.numpy() for end in p.interval(0.8))
actual = test["target"].to_numpy()
for name, rows in (
    ("treat", low > 150),
    ("examine", (low <= 150) & (high >= 150)),
    ("wait", high < 150),
):
    print(
        f"{name:8} {rows.sum():3} patients, {(actual[rows] > 150).mean():4.0%} beyond 150"
    )

# %%
# On the command line: ``choral fit patients.csv --target target``, then ``choral predict``.
