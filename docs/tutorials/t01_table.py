"""
From a table to intervals
=========================

Train on a data frame, predict with 95 % intervals, and check that they hold what they say.
"""

# %%
# The data: 442 patients, ten columns, and how far their disease progressed after a year. A path such as
# ``"patients.csv"`` works in the place of the data frame.
from sklearn.datasets import load_diabetes

import choral

table = load_diabetes(as_frame=True, scaled=False).frame
train, test = table[:332], table[332:]

# %%
# Without any setting, three kinds of networks are trained in eight folds, stop by themselves, and are combined by
# out-of-fold scores. Here ``members`` and ``epochs`` keep it short: one kind, four networks.
ensemble = choral.fit_table(train, "target", members=4, epochs=60)
print(ensemble)

# %%
# A prediction is a table: the mean, its standard deviation, a 95 % interval, and where the uncertainty comes from.
p = ensemble.predict(test)
print(p.to_frame().round(1).head())

# %%
# Is it any good? RMSE is in units of the target. ``coverage_95`` should be close to 0.95.
scores = ensemble.evaluate(test)
print({name: round(scores[name], 2) for name in ("rmse", "mae", "nll", "coverage_95")})

# %%
# Two figures tell most: predicted against actual values, and intervals with the targets they cover or miss.
import matplotlib.pyplot as plt

from choral import plots

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
plots.predicted_vs_actual(p, test["target"], ax=axes[0])
plots.intervals(p, test["target"], ax=axes[1])
axes[1].legend()
plt.show()

# %%
# In the shell the same is ``choral fit patients.csv --target progression``, then ``choral predict``.
